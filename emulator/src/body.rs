//! Reading of an entry's body: declarations of registers, labels and instructions.

use crate::cfg::{Graph, Successors, reconvergence_points};
use crate::decode::{Action, Decoder, Name, Scope};
use crate::error::{Error, SyntaxError};
use crate::instructions;
use crate::kernel::Instruction;
use crate::liveness::Effect;
use crate::parser::Parser;
use crate::registers::{AnyReg, Reg};
use crate::source::Location;
use crate::syntax::{Operand, PLACE, Statement};

/// A limit on the emulator's memory: more registers than any kernel has.
const MAX_REGISTERS: u32 = 1 << 16;

impl<'a> Parser<'a> {
    /// Reads up to the brace that closes the body; the instructions, and their graph.
    pub fn body(&mut self, scope: &mut Scope<'a>) -> Result<(Vec<Instruction>, Graph), Error> {
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
                let pc = instructions.len();
                instructions.push(self.instruction(pc, &statement, scope)?);
            }
        }
        self.close(scope)?;
        let graph = resolve(&mut instructions, scope);
        Ok((instructions, graph))
    }

    /// Closes a pair of braces.
    fn close(&self, scope: &mut Scope<'a>) -> Result<(), Error> {
        scope.close().map_err(|label| {
            let error = self.cursor.error(format!("label {label} is not defined"));
            error.of_file(self.file)
        })
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
        pc: usize,
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
            accesses: Vec::new(),
        };
        let guard = match statement.guard {
            Some((name, negated)) => Some((decoder.named_predicate(name).map_err(fail)?, negated)),
            None => None,
        };
        let action = instructions::decode(&mut decoder).map_err(fail)?;
        let mut words = Vec::new();
        collect_words(&statement.operands, decoder.scope, &mut words);
        if let Action::Warpgroup(_) = action {
            decoder.scope.in_products.append(&mut words);
        }
        let mut accesses = decoder.accesses;
        accesses.sort_by_key(|(_, effect)| *effect != Effect::Read);
        for (register, effect) in accesses {
            scope.registers.note(pc, register, effect);
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
/// part at a branch meet again; the graph of the instructions.
fn resolve(instructions: &mut [Instruction], scope: &Scope) -> Graph {
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
    let graph = Graph::new(&code);
    let meetings = reconvergence_points(&code, &graph);
    for (instruction, meeting) in instructions.iter_mut().zip(meetings) {
        instruction.meeting = meeting;
    }
    graph
}
