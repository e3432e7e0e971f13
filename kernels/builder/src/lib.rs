//! Compiles crates of kernels to PTX and checks what came out.
//!
//! The library's build script and `cargo xtask build-ptx` run this code:
//!
//! 1. [`Compiler::find`]: a rustc whose library source is installed.
//! 2. [`Session::compile`]: kernels of a [`Package`] as one PTX text, several texts in parallel.
//! 3. [`split`]: a module for each kernel family, dtype, head dim and tile, with launch bounds.
//! 4. [`Twins`]: modules of bf16, written from f16's, as programs write them when they load them.
//! 5. [`contract::check`]: what each entry may and must contain.
//! 6. [`ptxas::assemble`], with the assembler at hand: registers, spills and shared
//!    memory for every target that a kernel is for.
//!
//! ```no_run
//! # fn main() -> Result<(), kernel_builder::Error> {
//! for module in kernel_builder::build(&kernel_builder::Package::kernels())? {
//!     std::fs::write(format!("{}.ptx", module.name), &module.text).unwrap();
//! }
//! # Ok(())
//! # }
//! ```

mod cache;
mod collectives;
mod compile;
mod compiler;
pub mod contract;
mod embed;
mod error;
mod generics;
mod locations;
pub mod ptxas;
pub mod sass;
mod split;
mod twins;

pub use collectives::{Collectives, Golden};
pub use compile::{Package, Session};
pub use compiler::Compiler;
pub use embed::{TABLE, embed, script};
pub use error::Error;
pub use split::{EntryPoint, Module, split};
pub use twins::Twins;

use kernels::catalog::Spec;
use rayon::prelude::*;
use std::cmp::Reverse;
use std::path::PathBuf;

/// Kernels that one call of the compiler compiles: few, so that all cores are busy to the end, and many, so
/// that the crate is not read too often.
const PART: usize = 8;

/// Compiles the kernels of a package, splits them into modules, and checks each entry's contract.
///
/// # Errors
/// [`Error::NoCompiler`] if there is nothing to compile with; else what failed.
pub fn build(package: &Package) -> Result<Vec<Module>, Error> {
    let golden = Golden::read(&package.folder)?;
    compiled(package, Some(&golden))
}

/// [Builds](build) kernels of a package that has `all` of these, and writes their [golden counts](Golden).
///
/// # Errors
/// [`Error::NoCompiler`] if there is nothing to compile with; else what failed.
pub fn bless(package: &Package, all: &[&Spec]) -> Result<Vec<Module>, Error> {
    let modules = compiled(package, None)?;
    Golden::bless(&package.folder, all, &modules)?;
    Ok(modules)
}

/// The modules of a package, whose counts are to be `golden`'s.
fn compiled(package: &Package, golden: Option<&Golden>) -> Result<Vec<Module>, Error> {
    if package.kernels.is_empty() {
        return Ok(Vec::new());
    }
    let compiler = Compiler::find()?;
    let session = Session::new(&compiler, package)?;
    let twins = Twins::of(&package.kernels);
    let mut parts: Vec<Vec<&'static Spec>> = Vec::new();
    for kernel in twins.compiled() {
        match parts.last_mut() {
            Some(part) if belongs(kernel, part) => part.push(kernel),
            _ => parts.push(vec![kernel]),
        }
    }
    // The longest part first, so that no core works alone at the end.
    let mut parts: Vec<_> = parts.into_iter().enumerate().collect();
    parts.sort_by_key(|(_, kernels)| Reverse(instructions(kernels, golden)));
    let built = parts.into_iter().par_bridge().map(|(place, kernels)| {
        let compiled = split(&session.compile(&kernels)?, &kernels)?;
        let mut modules = compiled.clone();
        for module in &compiled {
            modules.extend(twins.module(module)?);
        }
        for entry in modules.iter().flat_map(|module| &module.entries) {
            contract::check(entry, golden)?;
        }
        Ok((place, modules))
    });
    let mut built: Vec<(usize, Vec<Module>)> = built.collect::<Result<_, Error>>()?;
    built.sort_by_key(|(place, _)| *place);
    Ok(built.into_iter().flat_map(|(_, modules)| modules).collect())
}

/// Instructions of whole warps in kernels, which tell about how long they take to compile.
fn instructions(kernels: &[&Spec], golden: Option<&Golden>) -> u32 {
    let counts = { kernels.iter() }.filter_map(|&kernel| golden?.of(kernel));
    let counts = counts.flat_map(Collectives::named);
    counts.map(|(_, count)| count).sum()
}

/// Whether the next kernel of a package is compiled with those before it: one module is one part.
fn belongs(kernel: &Spec, part: &[&Spec]) -> bool {
    let last = part[part.len() - 1];
    let fits = part.len() < PART || kernel.module == last.module;
    kernel.target == last.target && fits
}

/// The workspace's root.
fn workspace() -> PathBuf {
    let crate_dir = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    crate_dir.ancestors().nth(2).unwrap_or(&crate_dir).into()
}

/// The folder for what the builder makes and installs.
pub fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => workspace().join(dir),
        None => workspace().join("target"),
    }
}
