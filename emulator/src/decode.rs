//! Decoding of statements: names become registers, and an instruction family turns the opcode into a
//! closure over them.

use crate::barrier::BarrierUse;
use crate::cluster::ClusterUse;
use crate::context::Context;
use crate::error::Violation;
use crate::host;
use crate::liveness::Effect;
use crate::registers::{AnyReg, Declarations, Pred, Reg, Value};
use crate::syntax::{Operand, Statement};
use crate::warpgroup::{Warpgroup, WarpgroupOperation};
use std::collections::HashMap;

/// Executes an instruction in the active lanes of a warp.
pub(crate) type Operation = Box<dyn OnLanes>;

/// A closure that works on lanes. Its table of functions has one: in that of `dyn Fn` a compiler puts the closure's code
/// twice, which takes a third of the time to compile this crate.
pub(crate) trait OnLanes: Send + Sync {
    fn execute(&self, context: &mut Context) -> Result<(), Box<Violation>>;
}

impl<F: Fn(&mut Context) -> Result<(), Box<Violation>> + Send + Sync> OnLanes for F {
    fn execute(&self, context: &mut Context) -> Result<(), Box<Violation>> {
        self(context)
    }
}

/// The effect of an instruction.
pub(crate) enum Action {
    /// Arrives at the barrier of the block's cluster, or waits there.
    Cluster(ClusterUse),
    /// Works on registers and memory; the warp goes on with the next instruction.
    Lanes(Operation),
    /// `target` is the number of a reference to a label until the kernel is complete, and then an
    /// instruction's.
    Branch { target: usize, uniform: bool },
    /// Ends the lanes that execute it.
    Exit,
    /// Ends the kernel, with a fault.
    Trap,
    /// Stops the warp until others arrive.
    Barrier(BarrierUse),
    /// Stops the warp until the others of its warpgroup are at the same instruction; then works on
    /// the four.
    Warpgroup(WarpgroupOperation),
}

/// An action; none for an opcode of another family; an error for operands that do not fit.
pub(crate) type Decoded = Result<Option<Action>, String>;

/// An action of a closure that works on lanes. It is part of the code for [wide](host::is_wide) hosts and of that for
/// others, however large it is: a compiler would rather have both call it, compiled for any host.
macro_rules! lanes {
    ($operation:expr) => {
        $crate::decode::lanes_action(
            #[inline(always)]
            $operation,
        )
    };
}

/// An action of a closure that works on a warpgroup, compiled as [`lanes`] does it.
macro_rules! warpgroup {
    ($operation:expr) => {
        $crate::decode::warpgroup_action(
            #[inline(always)]
            $operation,
        )
    };
}

pub(crate) use {lanes, warpgroup};

/// The action that [`lanes`] makes.
pub(crate) fn lanes_action(
    operation: impl Fn(&mut Context) -> Result<(), Box<Violation>> + Send + Sync + 'static,
) -> Decoded {
    Ok(Some(Action::Lanes(match host::is_wide() {
        // SAFETY: the host was asked.
        true => Box::new(move |c: &mut Context| unsafe {
            host::call_wide(
                #[inline(always)]
                || operation(c),
            )
        }),
        false => Box::new(operation),
    })))
}

/// The action that [`warpgroup`] makes.
pub(crate) fn warpgroup_action(
    operation: impl Fn(&mut Warpgroup) -> Result<(), Box<Violation>> + Send + Sync + 'static,
) -> Decoded {
    Ok(Some(Action::Warpgroup(match host::is_wide() {
        // SAFETY: the host was asked.
        true => Box::new(move |g: &mut Warpgroup| unsafe {
            host::call_wide(
                #[inline(always)]
                || operation(g),
            )
        }),
        false => Box::new(operation),
    })))
}

/// The meaning of a name.
#[derive(Clone, Copy)]
pub(crate) enum Name {
    Register(AnyReg),
    Predicate(Pred),
    /// A variable in shared memory, by its address.
    Shared(u32),
    /// A kernel parameter, by its offset and size.
    Parameter(u32, u32),
}

/// The declarations of a pair of braces.
#[derive(Default)]
struct Block<'a> {
    names: HashMap<String, Name>,
    /// Labels, by the instruction that they stand before.
    labels: HashMap<&'a str, usize>,
    /// Labels that branches name, with the number of the reference.
    references: Vec<(&'a str, usize)>,
}

/// The names that are visible at a point of a kernel, and the registers they declare.
#[derive(Default)]
pub(crate) struct Scope<'a> {
    pub registers: Declarations,
    /// The registers that products use, some more than once.
    pub in_products: Vec<Reg<u32>>,
    /// Braces that are open, the innermost last.
    blocks: Vec<Block<'a>>,
    constants: HashMap<(u32, u64), AnyReg>,
    /// By the number of a reference: the instruction that the label stands before.
    targets: Vec<usize>,
}

impl<'a> Scope<'a> {
    pub fn open(&mut self) {
        self.blocks.push(Block::default());
    }

    /// Closes the innermost braces. References to labels not found in them go to the braces around.
    /// Gives a label that no braces define.
    pub fn close(&mut self) -> Result<(), &'a str> {
        let Block {
            labels, references, ..
        } = self.blocks.pop().expect("an open scope");
        for (name, reference) in references {
            match (labels.get(name), self.blocks.last_mut()) {
                (Some(target), _) => self.targets[reference] = *target,
                (None, Some(around)) => around.references.push((name, reference)),
                (None, None) => return Err(name),
            }
        }
        Ok(())
    }

    pub fn depth(&self) -> usize {
        self.blocks.len()
    }

    fn innermost(&mut self) -> &mut Block<'a> {
        self.blocks.last_mut().expect("an open scope")
    }

    pub fn declare(&mut self, name: String, meaning: Name) {
        self.innermost().names.insert(name, meaning);
    }

    pub fn find(&self, name: &str) -> Option<Name> {
        let mut blocks = self.blocks.iter().rev();
        blocks.find_map(|block| block.names.get(name).copied())
    }

    /// Defines a label, before an instruction; whether the braces define it for the first time.
    pub fn label(&mut self, name: &'a str, target: usize) -> bool {
        self.innermost().labels.insert(name, target).is_none()
    }

    /// The number of a reference to a label, which may be defined later.
    pub fn reference(&mut self, label: &'a str) -> usize {
        let number = self.targets.len();
        self.targets.push(usize::MAX);
        self.innermost().references.push((label, number));
        number
    }

    /// The instruction that a reference names, once its braces are closed.
    pub fn target(&self, reference: usize) -> usize {
        self.targets[reference]
    }
}

/// A statement that is being turned into an action.
pub(crate) struct Decoder<'a, 's> {
    pub statement: &'s Statement<'a>,
    /// Compute capability of the module's target, times 10.
    pub target: u32,
    pub scope: &'s mut Scope<'a>,
    /// Registers that the instruction reads or changes in part, and that it overwrites.
    pub accesses: Vec<(AnyReg, Effect)>,
}

impl<'a, 's> Decoder<'a, 's> {
    pub fn opcode(&self) -> &'a str {
        self.statement.opcode
    }

    /// Fails if the module's target is older than this.
    pub fn require_target(&self, least: u32) -> Result<(), String> {
        match self.target >= least {
            true => Ok(()),
            false => Err(format!(
                "needs target sm_{least} or later; the module's is sm_{}",
                self.target
            )),
        }
    }

    /// The operands, which must be `N`.
    pub fn operands<const N: usize>(&self) -> Result<&'s [Operand<'a>; N], String> {
        let operands = &self.statement.operands;
        operands
            .as_slice()
            .try_into()
            .map_err(|_| format!("expected {N} operands, found {}", operands.len()))
    }

    /// The operand of a name. A register counts as read, until the instruction says that it writes it.
    pub fn find(&mut self, name: &str) -> Option<Name> {
        let meaning = self.scope.find(name);
        if let Some(Name::Register(register)) = meaning {
            self.accesses.push((register, Effect::Read));
        }
        meaning
    }

    /// A register of any width, which the instruction may read.
    pub fn any(&mut self, operand: &Operand) -> Result<AnyReg, String> {
        match operand {
            Operand::Name(name) => match self.find(name) {
                Some(Name::Register(register)) => Ok(register),
                Some(_) => Err(format!("{name} is not a register of 16, 32 or 64 bits")),
                None => Err(format!("{name} is not declared")),
            },
            other => Err(format!("expected a register, found {other:?}")),
        }
    }

    /// A register of any width, which the instruction writes in all lanes that execute it.
    pub fn any_destination(&mut self, operand: &Operand) -> Result<AnyReg, String> {
        let register = self.any(operand)?;
        let (_, effect) = self.accesses.last_mut().expect("it counts as read");
        *effect = match self.statement.guard {
            None => Effect::Write,
            Some(_) => Effect::GuardedWrite,
        };
        Ok(register)
    }

    /// A register of `T`'s width, which the instruction may read.
    pub fn register<T: Value>(&mut self, operand: &Operand) -> Result<Reg<T>, String> {
        of_width(self.any(operand)?)
    }

    /// A register of `T`'s width, which the instruction writes in all lanes that execute it.
    pub fn destination<T: Value>(&mut self, operand: &Operand) -> Result<Reg<T>, String> {
        of_width(self.any_destination(operand)?)
    }

    /// A register of `T`'s width, or an immediate.
    pub fn source<T: Value>(&mut self, operand: &Operand) -> Result<Reg<T>, String> {
        let Operand::Immediate(bits) = operand else {
            return self.register(operand);
        };
        let value = T::truncate(*bits);
        let (constants, registers) = (&mut self.scope.constants, &mut self.scope.registers);
        let constant = constants
            .entry((T::BITS, value.widen()))
            .or_insert_with(|| T::any(registers.constant(value)));
        Ok(T::of(*constant).expect("stored under its width"))
    }

    /// A predicate register.
    pub fn predicate(&self, operand: &Operand) -> Result<Pred, String> {
        match operand {
            Operand::Name(name) => self.named_predicate(name),
            other => Err(format!("expected a predicate, found {other:?}")),
        }
    }

    pub fn named_predicate(&self, name: &str) -> Result<Pred, String> {
        match self.scope.find(name) {
            Some(Name::Predicate(predicate)) => Ok(predicate),
            Some(_) => Err(format!("{name} is not a predicate")),
            None => Err(format!("{name} is not declared")),
        }
    }

    /// The registers of a vector of `N`, which the instruction may read.
    pub fn vector<T: Value, const N: usize>(
        &mut self,
        operand: &Operand,
    ) -> Result<[Reg<T>; N], String> {
        self.elements(operand, Self::register)
    }

    /// The registers of a vector of `N`, which the instruction writes in all lanes that execute it.
    pub fn destinations<T: Value, const N: usize>(
        &mut self,
        operand: &Operand,
    ) -> Result<[Reg<T>; N], String> {
        self.elements(operand, Self::destination)
    }

    fn elements<T: Value, const N: usize>(
        &mut self,
        operand: &Operand,
        register: impl Fn(&mut Self, &Operand) -> Result<Reg<T>, String>,
    ) -> Result<[Reg<T>; N], String> {
        let Operand::Vector(elements) = operand else {
            return Err(format!("expected a vector of {N} registers"));
        };
        let registers: Result<Vec<_>, _> = elements.iter().map(|e| register(self, e)).collect();
        registers?.try_into().map_err(|_| {
            format!(
                "expected a vector of {N} registers, found {}",
                elements.len()
            )
        })
    }
}

fn of_width<T: Value>(register: AnyReg) -> Result<Reg<T>, String> {
    T::of(register).ok_or_else(|| {
        format!(
            "expected a register of {} bits, found one of {}",
            T::BITS,
            register.bits()
        )
    })
}
