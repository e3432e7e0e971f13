//! Reading of a module: its directives, and the heads of its entries.

use crate::decode::{Name, Scope};
use crate::error::{Error, SyntaxError};
use crate::kernel::{Kernel, Parameter, ParameterType};
use crate::pool::registers_at_launch;
use crate::products::Numbers;
use crate::shared::SHARED_BASE;
use crate::source::{Files, Location};
use crate::syntax::Cursor;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A limit on the emulator's memory: more shared memory than any device has.
const MAX_SHARED: u32 = 1 << 20;

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

/// The kernels of a module, by name; `file` stands for it in messages.
pub(crate) fn kernels(text: &Arc<str>, file: &str) -> Result<BTreeMap<String, Kernel>, Error> {
    let mut parser = Parser {
        cursor: Cursor::new(text).map_err(|e| e.of_file(file))?,
        file,
        source: Arc::clone(text),
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
    Ok(kernels)
}

/// Reads a module.
pub(crate) struct Parser<'a> {
    pub cursor: Cursor<'a>,
    pub file: &'a str,
    source: Arc<str>,
    /// Compute capability of the module's target, times 10.
    pub target: u32,
    pub files: Files,
    /// The last `.loc` of the kernel.
    pub location: Option<Location>,
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
        let (mut instructions, graph) = self.body(&mut scope)?;
        let in_products = Numbers::new(&scope.in_products, scope.registers.words());
        for instruction in &mut instructions {
            instruction.words.retain(|word| in_products.has(*word));
        }
        let has = |opcode: &str| instructions.iter().any(|i| i.opcode.starts_with(opcode));
        Ok(Kernel {
            has_products: has("wgmma."),
            waits_itself: has("griddepcontrol.wait"),
            blocks_meet: [
                "atom.",
                "red.",
                "cp.reduce.",
                "nanosleep.",
                "barrier.cluster.",
            ]
            .into_iter()
            .any(has),
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
            in_products: Arc::new(in_products),
            registers: scope.registers.lay_out(&graph),
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
}
