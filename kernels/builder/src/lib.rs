//! Compiles the [`kernels`] crate to PTX and checks what came out.
//!
//! The same code runs in the host's build script and in `cargo xtask build-ptx`:
//!
//! 1. [`Compiler::find`]: a rustc whose library source is installed.
//! 2. [`compile`]: the crate as one PTX text for a target.
//! 3. [`split`]: a module for each kernel family, dtype, head dim and tile, with launch bounds.
//! 4. [`contract::check`]: what each entry may and must contain.
//! 5. [`ptxas::assemble`], with the assembler at hand: registers, spills and shared
//!    memory for every target that a kernel is for.
//!
//! ```no_run
//! # fn main() -> Result<(), kernel_builder::Error> {
//! let modules = kernel_builder::build(kernels::catalog::Arch::Sm80)?;
//! for module in modules {
//!     std::fs::write(format!("{}.ptx", module.name), &module.text).unwrap();
//! }
//! # Ok(())
//! # }
//! ```

mod cache;
mod compile;
mod compiler;
pub mod contract;
mod embed;
mod error;
pub mod ptxas;
mod split;

pub use compile::compile;
pub use compiler::Compiler;
pub use embed::{TABLE, embed};
pub use error::Error;
pub use split::{Entry, Module, split};

use kernels::catalog::Arch;
use std::path::PathBuf;

/// Compiles all kernels of a target, splits them into modules, and checks each entry's contract.
///
/// # Errors
/// [`Error::NoCompiler`] if there is nothing to compile with; else what failed.
pub fn build(arch: Arch) -> Result<Vec<Module>, Error> {
    let text = compile(&Compiler::find()?, arch)?;
    let modules = split(&text, arch)?;
    for entry in modules.iter().flat_map(|module| &module.entries) {
        contract::check(entry)?;
    }
    Ok(modules)
}

/// The workspace's root.
fn workspace() -> PathBuf {
    let crate_dir = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    crate_dir.ancestors().nth(2).unwrap_or(&crate_dir).into()
}

/// The folder for what the builder makes and installs.
#[must_use]
pub fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => workspace().join(dir),
        None => workspace().join("target"),
    }
}
