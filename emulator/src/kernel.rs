//! An entry of a module, its parameters and instructions.

use crate::decode::Action;
use crate::products::Numbers;
use crate::registers::{Pred, Reg, Registers};
use crate::source::{Files, Location};
use std::sync::Arc;

/// An entry of a module, ready to run.
pub struct Kernel {
    pub(crate) name: String,
    pub(crate) file: String,
    /// The source files that locations name.
    pub(crate) files: Arc<Files>,
    pub(crate) source: Arc<str>,
    pub(crate) parameters: Vec<Parameter>,
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
    /// Whether it waits for the launches before it, and not at its start.
    pub(crate) waits_itself: bool,
    /// The registers that its `wgmma` use.
    pub(crate) in_products: Arc<Numbers>,
    /// Whether blocks change the same numbers or wait for each other: by atomics, reductions or sleeps.
    pub(crate) blocks_meet: bool,
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

/// An instruction of a kernel.
pub(crate) struct Instruction {
    pub line: u32,
    pub opcode: String,
    /// The last `.loc` before it.
    pub location: Option<Location>,
    /// The predicate of the lanes that execute it, and whether it is negated.
    pub guard: Option<(Pred, bool)>,
    pub action: Action,
    /// The registers among its operands that products use, too. The instructions of products check their own.
    pub words: Vec<Reg<u32>>,
    /// The instruction where lanes that part at this branch meet again.
    pub meeting: Option<usize>,
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
