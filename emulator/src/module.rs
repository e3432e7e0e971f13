//! A PTX module: kernels ready to run.

use crate::error::Error;
use crate::kernel::Kernel;
use crate::parser;
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
    source: Arc<str>,
    kernels: BTreeMap<String, Kernel>,
}

impl Module {
    /// Reads a module; `name` stands for it in messages.
    ///
    /// # Errors
    /// If the text is not PTX, or holds a directive, an instruction or an operand that the emulator
    /// does not know. It skips nothing but sections of debug information.
    pub fn parse(text: &str, name: &str) -> Result<Self, Error> {
        let source = text.into();
        let kernels = parser::kernels(&source, name)?;
        let file = name.to_owned();
        Ok(Module {
            file,
            source,
            kernels,
        })
    }

    /// Whether it was read from this text under this name.
    pub(crate) fn is(&self, text: &str, name: &str) -> bool {
        self.file == name && *self.source == *text
    }

    /// Size of its text.
    pub(crate) fn text_bytes(&self) -> usize {
        self.source.len()
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
