//! A PTX module: its directives, and kernels ready to run.

use crate::cfg::{Successors, reconvergence_points};
use crate::decode::{Action, Decoder, Name, Scope};
use crate::error::{Error, SyntaxError};
use crate::instructions;
use crate::pool::registers_at_launch;
use crate::registers::{AnyReg, Pred, Reg, Registers};
use crate::shared::SHARED_BASE;
use crate::source::{Files, Location};
use crate::syntax::{Cursor, Operand, PLACE, Statement};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A loaded module.
///
/// ```
/// # let text = "
/// #     .version 7.0
/// #     .target sm_80
/// #     .address_size 64
/// #     .visible .entry nothing() { ret; }";
/// let module = emulator::Module::parse(text, "nothing.ptx")?;
/// let kernel = module.entry("nothing")?;
/// # assert!(kernel.parameters().is_empty());
/// # Ok::<(), emulator::Error>(())
/// ```
#[derive(Debug)]
pub struct Module {
    file: String,
    kernels: BTreeMap<String, Kernel>,
}

/// An entry of a module, ready to run.
pub struct Kernel {
    pub(crate) name: String,
    pub(crate) file: String,
    /// The source files that locations name.
    pub(crate) files: Arc<Files>,
    source: Arc<str>,
    parameters: Vec<Parameter>,
    /// The most threads of a block, from `.maxntid` or `.reqntid`.
    pub(crate) max_threads: Option<u32>,
    /// Registers of a thread at its start, from the launch bounds.
    pub(crate) registers_at_launch: Option<u32>,
    pub(crate) instructions: Vec<Instruction>,
    /// The registers of a warp at its start.
    pub(crate) registers: Registers,
    /// Bytes of the variables before the dynamic shared memory.
    pub(crate) static_shared: u32,
    /// Whether it has `wgmma`.
    pub(crate) has_products: bool,
}

/// A parameter of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name in the module.
    pub name: String,
    /// Its type.
    pub kind: ParameterType,
    /// Its offset in the argument block.
    pub(crate) offset: u32,
}

/// The type of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterType {
    /// A scalar of this many bytes.
    Scalar(u32),
    /// An array of this many bytes: a structure passed by value.
    Bytes(u32),
}

impl ParameterType {
    /// Its size in bytes.
    #[must_use]
    pub fn size(self) -> u32 {
        match self {
            ParameterType::Scalar(bytes) | ParameterType::Bytes(bytes) => bytes,
        }
    }
}

/// Launch bounds.
#[derive(Default)]
struct Bounds {
    /// The most threads of a block.
    threads: Option<u32>,
    /// Blocks that a multiprocessor should hold.
    blocks: Option<u32>,
    /// The most registers of a thread.
    registers: Option<u32>,
}

/// An instruction of a kernel.
pub(crate) struct Instruction {
    pub line: u32,
    pub opcode: String,
    /// The last `.loc` before it.
    pub location: Option<Location>,
    /// The predicate of the lanes that execute it, and whether it is negated.
    pub guard: Option<(Pred, bool)>,
    pub action: Action,
    /// The 32-bit registers among its operands, which products under way may use. The instructions of
    /// products check their own.
    pub words: Vec<Reg<u32>>,
    /// The instruction where lanes that part at this branch meet again.
    pub meeting: Option<usize>,
}

/// A limit on the emulator's memory: more registers than any kernel has.
const MAX_REGISTERS: u32 = 1 << 16;
/// A limit on the emulator's memory: more shared memory than any device has.
const MAX_SHARED: u32 = 1 << 20;

impl Module {
    /// Reads a module; `name` stands for it in messages.
    ///
    /// # Errors
    /// If the text is not PTX, or holds a directive, an instruction or an operand that the emulator
    /// does not know. It skips nothing but sections of debug information.
    pub fn parse(text: &str, name: &str) -> Result<Self, Error> {
        let mut parser = Parser {
            cursor: Cursor::new(text).map_err(|e| e.of_file(name))?,
            file: name,
            source: text.into(),
            target: 0,
            files: Files::default(),
            location: None,
            variables: Vec::new(),
            dynamic: None,
        };
        let mut kernels = parser.module()?;
        // The compiler names the files after the kernels.
        let files = Arc::new(parser.files);
        for kernel in kernels.values_mut() {
            kernel.files = Arc::clone(&files);
        }
        let file = name.to_owned();
        Ok(Module { file, kernels })
    }

    /// The kernel of a name.
    ///
    /// # Errors
    /// If no kernel has it.
    pub fn entry(&self, name: &str) -> Result<&Kernel, Error> {
        self.kernels.get(name).ok_or_else(|| Error::NoEntry {
            file: self.file.clone(),
            entry: name.to_owned(),
            known: self.kernels.keys().cloned().collect(),
        })
    }

    /// All kernels, by name.
    pub fn entries(&self) -> impl Iterator<Item = &Kernel> {
        self.kernels.values()
    }
}

impl Kernel {
    /// The entry's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The parameters, in order.
    #[must_use]
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// A line of the module's text, from 1.
    pub(crate) fn source_line(&self, line: u32) -> &str {
        let index = (line as usize).wrapping_sub(1);
        self.source.lines().nth(index).unwrap_or_default().trim()
    }
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("Kernel")
            .field("name", &self.name)
            .field("file", &self.file)
            .field("parameters", &self.parameters)
            .finish_non_exhaustive()
    }
}

struct Parser<'a> {
    cursor: Cursor<'a>,
    file: &'a str,
    source: Arc<str>,
    /// Compute capability of the module's target, times 10.
    target: u32,
    files: Files,
    /// The last `.loc` of the kernel.
    location: Option<Location>,
    /// Static shared variables: name, alignment, bytes.
    variables: Vec<(&'a str, u32, u32)>,
    /// The dynamic shared variable and its alignment.
    dynamic: Option<(&'a str, u32)>,
}

impl<'a> Parser<'a> {
    fn module(&mut self) -> Result<BTreeMap<String, Kernel>, Error> {
        let mut kernels = BTreeMap::new();
        self.header().map_err(|e| e.of_file(self.file))?;
        while !self.cursor.at_end() {
            let is_extern = self.cursor.accept(".extern");
            let _ = self.cursor.accept(".visible") || self.cursor.accept(".weak");
            if self.cursor.accept(".entry") {
                let kernel = self.entry()?;
                kernels.insert(kernel.name.clone(), kernel);
            } else if self.cursor.accept(".file") {
                self.source_file().map_err(|e| e.of_file(self.file))?;
            } else if self.cursor.accept(".section") {
                self.debug_section().map_err(|e| e.of_file(self.file))?;
            } else {
                self.shared_variable(is_extern)
                    .map_err(|e| e.of_file(self.file))?;
            }
        }
        Ok(kernels)
    }

    fn header(&mut self) -> Result<(), SyntaxError> {
        self.cursor.expect(".version")?;
        self.cursor.take()?;
        self.cursor.expect(".target")?;
        let target = self.cursor.word()?;
        let number = target
            .strip_prefix("sm_")
            .map(|n| n.trim_end_matches(['a', 'f']));
        let number = number.and_then(|number| number.parse().ok());
        let error = || self.cursor.error(format!("{target} is not a target"));
        self.target = number.ok_or_else(error)?;
        while self.cursor.accept(",") {
            self.cursor.word()?;
        }
        self.cursor.expect(".address_size")?;
        self.cursor.expect("64")
    }

    /// `.file 1 "path"`, which may go on with a time and a size.
    fn source_file(&mut self) -> Result<(), SyntaxError> {
        let number = self.cursor.count()?;
        self.files
            .insert(number, self.cursor.take()?.trim_matches('"'));
        while self.cursor.accept(",") {
            self.cursor.take()?;
        }
        Ok(())
    }

    /// `.section .debug_info { ... }`: nothing that a kernel executes.
    fn debug_section(&mut self) -> Result<(), SyntaxError> {
        self.cursor.word()?;
        self.cursor.expect("{")?;
        while !self.cursor.accept("}") {
            self.cursor.take()?;
        }
        Ok(())
    }

    /// `.loc file line column`, which may go on with the function and where it was inlined.
    fn location(&mut self) -> Result<Location, SyntaxError> {
        let (file, line) = (self.cursor.count()?, self.cursor.count()?);
        self.cursor.count()?;
        while self.cursor.accept(",") {
            // `function_name label`, perhaps with an offset, and `inlined_at file line column`.
            let words = if self.cursor.accept("inlined_at") {
                3
            } else {
                2
            };
            for _ in 0..words {
                self.cursor.take()?;
            }
            if self.cursor.accept("+") {
                self.cursor.count()?;
            }
        }
        Ok(Location { file, line })
    }

    /// `.shared .align N .b8 name[bytes];`, with `[]` if the launch gives the size.
    fn shared_variable(&mut self, is_extern: bool) -> Result<(), SyntaxError> {
        if !self.cursor.accept(".shared") {
            let found = self.cursor.peek(0);
            return Err(self.cursor.error(format!("{found:?} is not supported")));
        }
        let alignment = self.alignment()?;
        let element = self.scalar_bytes()?;
        let name = self.cursor.word()?;
        let mut bytes = None;
        if self.cursor.accept("[") && !self.cursor.accept("]") {
            bytes = Some(self.cursor.count()?);
            self.cursor.expect("]")?;
        }
        match bytes {
            None if is_extern => self.dynamic = Some((name, alignment)),
            _ if is_extern => return Err(self.cursor.error("an extern variable has no size")),
            count => {
                let bytes = count.unwrap_or(1).saturating_mul(element);
                self.variables.push((name, alignment, bytes));
            }
        }
        self.cursor.expect(";")
    }

    fn alignment(&mut self) -> Result<u32, SyntaxError> {
        if !self.cursor.accept(".align") {
            return Ok(1);
        }
        let alignment = self.cursor.count()?;
        if !alignment.is_power_of_two() || alignment > SHARED_BASE {
            return Err(self
                .cursor
                .error("an alignment is a power of two, at most 1024"));
        }
        Ok(alignment)
    }

    /// The size of a scalar type such as `.b8`.
    fn scalar_bytes(&mut self) -> Result<u32, SyntaxError> {
        let error = self
            .cursor
            .error(format!("{:?} is not a scalar type", self.cursor.peek(0)));
        let name = self.cursor.take()?;
        let bits = name.get(2..).and_then(|bits| bits.parse::<u32>().ok());
        match bits {
            Some(bits @ (8 | 16 | 32 | 64)) if matches!(&name[..2], ".b" | ".u" | ".s" | ".f") => {
                Ok(bits / 8)
            }
            _ => Err(error),
        }
    }

    fn entry(&mut self) -> Result<Kernel, Error> {
        let mut scope = Scope::default();
        scope.open();
        let head = self
            .entry_head(&mut scope)
            .map_err(|e| e.of_file(self.file))?;
        let (name, parameters, bounds) = head;
        let static_shared = self
            .lay_out_shared(&mut scope)
            .map_err(|e| e.of_file(self.file))?;
        let instructions = self.body(&mut scope)?;
        let mut all = instructions.iter();
        Ok(Kernel {
            has_products: all.any(|i| i.opcode.starts_with("wgmma.")),
            name,
            file: self.file.to_owned(),
            files: Arc::default(),
            source: self.source.clone(),
            parameters,
            max_threads: bounds.threads,
            registers_at_launch: bounds.threads.map(|threads| {
                registers_at_launch(threads, bounds.blocks.unwrap_or(1), bounds.registers)
            }),
            instructions,
            registers: scope.registers,
            static_shared,
        })
    }

    /// Reads what stands before the body.
    fn entry_head(
        &mut self,
        scope: &mut Scope<'a>,
    ) -> Result<(String, Vec<Parameter>, Bounds), SyntaxError> {
        let name = self.cursor.word()?.to_owned();
        let mut parameters: Vec<Parameter> = Vec::new();
        let mut end = 0_u32;
        self.cursor.expect("(")?;
        while !self.cursor.accept(")") {
            if !parameters.is_empty() {
                self.cursor.expect(",")?;
            }
            let parameter = self.parameter(end)?;
            end = parameter.offset + parameter.kind.size();
            let meaning = Name::Parameter(parameter.offset, parameter.kind.size());
            scope.declare(parameter.name.clone(), meaning);
            parameters.push(parameter);
        }
        let mut bounds = Bounds::default();
        while !self.cursor.accept("{") {
            match self.cursor.take()? {
                ".maxntid" | ".reqntid" => {
                    let mut threads = self.cursor.count()?;
                    while self.cursor.accept(",") {
                        threads = threads.saturating_mul(self.cursor.count()?);
                    }
                    bounds.threads = Some(threads);
                }
                ".minnctapersm" => bounds.blocks = Some(self.cursor.count()?),
                ".maxnreg" => bounds.registers = Some(self.cursor.count()?),
                other => return Err(self.cursor.error(format!("{other:?} is not supported"))),
            }
        }
        Ok((name, parameters, bounds))
    }

    fn parameter(&mut self, end: u32) -> Result<Parameter, SyntaxError> {
        const MAX_PARAMETERS: u32 = 32764;
        self.cursor.expect(".param")?;
        let alignment = self.alignment()?;
        let element = self.scalar_bytes()?;
        let name = self.cursor.word()?.to_owned();
        let mut kind = ParameterType::Scalar(element);
        if self.cursor.accept("[") {
            kind = ParameterType::Bytes(self.cursor.count()?.saturating_mul(element));
            self.cursor.expect("]")?;
        }
        if kind.size() > MAX_PARAMETERS || end > MAX_PARAMETERS {
            return Err(self
                .cursor
                .error("the parameters take more than 32764 bytes"));
        }
        Ok(Parameter {
            name,
            kind,
            offset: end.next_multiple_of(alignment.max(element)),
        })
    }

    /// Gives the shared variables their addresses; returns where dynamic shared memory starts.
    fn lay_out_shared(&self, scope: &mut Scope<'a>) -> Result<u32, SyntaxError> {
        let mut end = 0_u32;
        for &(name, alignment, bytes) in &self.variables {
            let start = end.next_multiple_of(alignment);
            end = start.saturating_add(bytes);
            if end > MAX_SHARED {
                return Err(self.cursor.error("more shared memory than any device has"));
            }
            scope.declare(name.to_owned(), Name::Shared(SHARED_BASE + start));
        }
        if let Some((name, alignment)) = self.dynamic {
            end = end.next_multiple_of(alignment);
            scope.declare(name.to_owned(), Name::Shared(SHARED_BASE + end));
        }
        Ok(end)
    }

    fn body(&mut self, scope: &mut Scope<'a>) -> Result<Vec<Instruction>, Error> {
        let mut instructions: Vec<Instruction> = Vec::new();
        let outside = scope.depth();
        scope.open();
        self.location = None;
        while scope.depth() > outside {
            if self.cursor.accept("{") {
                scope.open();
            } else if self.cursor.accept("}") {
                self.close(scope)?;
            } else if self.cursor.accept(".pragma") {
                // Advice to the assembler.
                self.cursor
                    .take()
                    .and_then(|_| self.cursor.expect(";"))
                    .map_err(|e| e.of_file(self.file))?;
            } else if self.cursor.accept(".loc") {
                let location = self.location().map_err(|e| e.of_file(self.file))?;
                self.location = Some(location);
            } else if let Some(place) = self.cursor.peek(0).strip_prefix(PLACE) {
                self.location = self.files.location(place);
                self.cursor.take().map_err(|e| e.of_file(self.file))?;
            } else if self.cursor.accept(".reg") {
                self.registers(scope).map_err(|e| e.of_file(self.file))?;
            } else if self.cursor.peek(1) == ":" {
                let (label, _) = (self.cursor.take(), self.cursor.take());
                let label = label.map_err(|e| e.of_file(self.file))?;
                if !scope.label(label, instructions.len()) {
                    let error = self.cursor.error("the label is defined twice");
                    return Err(error.of_file(self.file));
                }
            } else {
                let statement = self.cursor.statement().map_err(|e| e.of_file(self.file))?;
                instructions.push(self.instruction(&statement, scope)?);
            }
        }
        self.close(scope)?;
        resolve(&mut instructions, scope);
        Ok(instructions)
    }

    /// Closes a pair of braces.
    fn close(&self, scope: &mut Scope<'a>) -> Result<(), Error> {
        scope.close().map_err(|label| {
            let error = self.cursor.error(format!("label {label} is not defined"));
            error.of_file(self.file)
        })
    }

    /// `.reg .b32 a, b<3>;`, where `b<3>` is `b0`, `b1` and `b2`.
    fn registers(&mut self, scope: &mut Scope<'a>) -> Result<(), SyntaxError> {
        let kind = self.cursor.word()?;
        loop {
            let name = self.cursor.word()?;
            let mut names = vec![name.to_owned()];
            if self.cursor.accept("<") {
                let count = self.cursor.count()?;
                if scope.registers.len() as u32 + count.min(MAX_REGISTERS) > MAX_REGISTERS {
                    return Err(self
                        .cursor
                        .error(format!("more than {MAX_REGISTERS} registers")));
                }
                names = (0..count).map(|i| format!("{name}{i}")).collect();
                self.cursor.expect(">")?;
            }
            for name in names {
                let registers = &mut scope.registers;
                let meaning = match kind {
                    ".pred" => Name::Predicate(registers.declare_predicate(&name)),
                    ".b16" | ".u16" | ".s16" | ".f16" => {
                        Name::Register(AnyReg::B16(registers.declare(&name)))
                    }
                    ".b32" | ".u32" | ".s32" | ".f32" => {
                        Name::Register(AnyReg::B32(registers.declare(&name)))
                    }
                    ".b64" | ".u64" | ".s64" | ".f64" => {
                        Name::Register(AnyReg::B64(registers.declare(&name)))
                    }
                    _ => {
                        return Err(self
                            .cursor
                            .error(format!("registers of type {kind} are not supported")));
                    }
                };
                scope.declare(name, meaning);
            }
            if self.cursor.accept(";") {
                return Ok(());
            }
            self.cursor.expect(",")?;
        }
    }

    fn instruction(
        &self,
        statement: &Statement<'a>,
        scope: &mut Scope<'a>,
    ) -> Result<Instruction, Error> {
        let fail = |message: String| Error::Instruction {
            file: self.file.to_owned(),
            line: statement.line,
            instruction: statement.opcode.to_owned(),
            message,
        };
        let mut decoder = Decoder {
            statement,
            target: self.target,
            scope,
        };
        let guard = match statement.guard {
            Some((name, negated)) => Some((decoder.named_predicate(name).map_err(fail)?, negated)),
            None => None,
        };
        let action = instructions::decode(&mut decoder).map_err(fail)?;
        let mut words = Vec::new();
        if !matches!(action, Action::Warpgroup(_)) {
            collect_words(&statement.operands, decoder.scope, &mut words);
        }
        Ok(Instruction {
            line: statement.line,
            opcode: statement.opcode.to_owned(),
            location: self.location,
            guard,
            action,
            words,
            meeting: None,
        })
    }
}

/// Appends the 32-bit registers among some operands.
fn collect_words(operands: &[Operand], scope: &Scope, words: &mut Vec<Reg<u32>>) {
    for operand in operands {
        let names = match operand {
            Operand::Name(name) | Operand::Address(name, _) => [Some(name), None],
            Operand::Pair(a, b) => [Some(a), Some(b)],
            Operand::Vector(elements) | Operand::Tensor(_, _, elements) => {
                collect_words(elements, scope, words);
                [None; 2]
            }
            Operand::Immediate(_) => [None; 2],
        };
        for name in names.into_iter().flatten() {
            if let Some(Name::Register(AnyReg::B32(register))) = scope.find(name) {
                words.push(register);
            }
        }
    }
}

/// Replaces references to labels by the instructions after the labels, and finds where lanes that
/// part at a branch meet again.
fn resolve(instructions: &mut [Instruction], scope: &Scope) {
    let mut code = Vec::with_capacity(instructions.len());
    for instruction in &mut *instructions {
        let guarded = instruction.guard.is_some();
        code.push(match &mut instruction.action {
            Action::Branch { target, .. } => {
                *target = scope.target(*target);
                let target = *target;
                Successors::Branch { target, guarded }
            }
            Action::Exit => Successors::Exit { guarded },
            Action::Trap => Successors::Trap { guarded },
            _ => Successors::Next,
        });
    }
    for (instruction, meeting) in instructions.iter_mut().zip(reconvergence_points(&code)) {
        instruction.meeting = meeting;
    }
}
