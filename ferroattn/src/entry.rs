//! Kernels as their launches know them.

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::ptx::{self, Modules};
use kernels::abi::Switches;
use kernels::catalog::{self, Kernel, Target};
use kernels::text;

impl Dtype {
    /// The type as the catalog of kernels knows it.
    ///
    /// # Errors
    /// If no kernel computes in it.
    #[doc(hidden)]
    pub fn of_kernels(self) -> Result<catalog::Dtype> {
        match self {
            Dtype::F16 => Ok(catalog::Dtype::F16),
            Dtype::Bf16 => Ok(catalog::Dtype::Bf16),
            Dtype::F32 => Err(Error::NoKernels(self)),
        }
    }
}

/// A kernel as its launches know it, whatever crate it was compiled from.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The entry point's symbol, unlike all others of its crate.
    pub name: &'static str,
    /// The PTX module it lives in.
    pub module: &'static str,
    /// The target that the module was compiled for.
    pub target: Target,
    /// Threads of a block.
    pub threads: u32,
    /// The modules of its crate.
    pub modules: Modules,
    /// The switches that are on in the text that the driver compiles.
    pub switches: Switches,
}

impl Entry {
    /// The PTX text that a driver compiles: this kernel alone, with its switches on and without what never runs.
    ///
    /// # Errors
    /// If the program was built without it, or it lacks a switch.
    ///
    /// # Panics
    /// If its modules are not what a build script wrote.
    pub fn text(&self) -> Result<String> {
        let module = ptx::text(self.modules, self.module);
        Ok(text::prune(&self.alone(module)?))
    }

    /// The [text](Self::text), with [marks](kernels::text::lines) that name the source lines of its instructions.
    ///
    /// # Errors
    /// If the program was built without it, or it lacks a switch.
    ///
    /// # Panics
    /// If its modules are not what a build script wrote.
    pub fn marked_text(&self) -> Result<String> {
        Ok(text::prune(&self.whole_text()?))
    }

    /// The [marked text](Self::marked_text) with what never runs.
    ///
    /// # Errors
    /// If the program was built without it, or it lacks a switch.
    ///
    /// # Panics
    /// If its modules are not what a build script wrote.
    pub fn whole_text(&self) -> Result<String> {
        self.alone(ptx::marked(self.modules, self.module))
    }

    /// This kernel of its module, with its switches on.
    fn alone(&self, module: Option<String>) -> Result<String> {
        let kernel = module.and_then(|module| text::entry(&module, self.name));
        let written = self.switches.written(kernel.ok_or(Error::NotCompiled)?);
        written.map_err(|switch| Error::Switch {
            kernel: self.name,
            switch: switch.name(),
        })
    }
}

impl From<&'static Kernel> for Entry {
    /// A kernel that this crate's build compiled.
    fn from(kernel: &'static Kernel) -> Self {
        Entry {
            name: kernel.name,
            module: kernel.module,
            target: kernel.target,
            threads: kernel.launch.threads,
            modules: ptx::COMPILED_MODULES,
            switches: Switches::NONE,
        }
    }
}
