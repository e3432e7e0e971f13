//! Running the compiler, without cargo: `core` and the kernels are one call each.

use crate::{Compiler, Error, cache, workspace};
use kernels::catalog::Arch;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Flags for `core` and the kernels alike.
const FLAGS: &[&str] = &[
    "--edition=2024",
    "--target=nvptx64-nvidia-cuda",
    "--cap-lints=allow",
    "-Copt-level=3",
    // Bounds checks that survive would call into a panic runtime that is not there.
    "-Zunstable-options",
    "-Cpanic=immediate-abort",
    // Arrays of fragments become registers only in loops that are unrolled and calls that are inlined.
    "-Cllvm-args=-unroll-threshold=1000000",
    "-Cllvm-args=-inline-threshold=1000000",
    // Strength reduction gives every product of the loop counter a register of its own for the whole
    // loop: it costs the D=128 and D=256 kernels their freedom from spills.
    "-Cllvm-args=-disable-lsr",
    // rustc does not mark `asm!` as convergent. These passes duplicate a block into both arms of a
    // branch, which must not happen to a barrier, shuffle or tensor-core instruction.
    "-Zmir-enable-passes=-JumpThreading",
    "-Cllvm-args=-jump-threading-threshold=0",
    "-Cllvm-args=-simplifycfg-max-small-block-size=0",
];

/// Flags for a library that others inline: its functions are kept for them, without machine code.
const LIBRARY: &[&str] = &[
    "--crate-type=rlib",
    "--emit=link",
    "-Zno-codegen",
    "-Zalways-encode-mir",
    "-Zforce-unstable-if-unmarked",
];

/// Flags for the kernels: the PTX is the result, there is nothing to link.
const KERNELS: &[&str] = &[
    "--crate-name=kernels",
    "--crate-type=cdylib",
    "--emit=asm",
    "-Ccodegen-units=1",
    "-Clto=fat",
];

/// Compiles the kernels for a target; returns the PTX of all of them, as the compiler wrote it.
///
/// # Errors
/// What the compiler said.
pub fn compile(compiler: &Compiler, arch: Arch) -> Result<String, Error> {
    let source = workspace().join("kernels/src");
    let cpu = format!("-Ctarget-cpu={}", arch.name());
    let inputs = ((&compiler.version, FLAGS, KERNELS, &cpu), sources(&source)?);
    let made = cache::folder(inputs, |folder| {
        let library = core_library(compiler)?;
        rustc(compiler, KERNELS, |rustc| {
            rustc.arg(&cpu).arg("-L").arg(library);
            rustc.arg("-o").arg(folder.join("ptx"));
            rustc.arg(source.join("lib.rs"))
        })
    })?;
    cache::read(&made.join("ptx"))
}

/// The folder of the compiled `core`, which rustc ships as source only for this target, and of
/// `compiler_builtins`, which it wants to see beside it: empty, since kernels call nothing.
fn core_library(compiler: &Compiler) -> Result<PathBuf, Error> {
    cache::folder((&compiler.version, FLAGS, LIBRARY), |folder| {
        let builtins = folder.join("compiler_builtins.rs");
        let text = "#![feature(compiler_builtins)]\n#![compiler_builtins]\n#![no_std]\n";
        cache::write(&builtins, text)?;
        for (name, source) in [
            ("core", compiler.library.join("core/src/lib.rs")),
            ("compiler_builtins", builtins),
        ] {
            rustc(compiler, LIBRARY, |rustc| {
                rustc.args(["--crate-name", name]).arg("-L").arg(folder);
                rustc.arg("--out-dir").arg(folder).arg(source)
            })?;
        }
        Ok(())
    })
}

/// Runs the compiler with [`FLAGS`] and others.
fn rustc(
    compiler: &Compiler,
    flags: &[&str],
    arguments: impl FnOnce(&mut Command) -> &mut Command,
) -> Result<(), Error> {
    let mut command = Command::new(&compiler.rustc);
    // The compiler is a released one; the target needs unstable features.
    command.env("RUSTC_BOOTSTRAP", "1").args(FLAGS).args(flags);
    let output = arguments(&mut command).output();
    let output = output.map_err(|source| Error::Run {
        program: compiler.rustc.clone(),
        source,
    })?;
    if output.status.success() {
        Ok(())
    } else {
        let said = String::from_utf8_lossy(&output.stderr);
        Err(Error::Compile(said.into()))
    }
}

/// The Rust files of a folder and the folders in it, by their path there: what decides the PTX, so
/// without the lines that are comments.
fn sources(folder: &Path) -> Result<BTreeMap<PathBuf, Vec<String>>, Error> {
    let mut sources = BTreeMap::new();
    let failed = |source| Error::File {
        path: folder.into(),
        source,
    };
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = PathBuf::from(path.file_name().unwrap_or_default());
        if path.is_dir() {
            let inner = self::sources(&path)?.into_iter();
            sources.extend(inner.map(|(path, lines)| (name.join(path), lines)));
        } else {
            let text = cache::read(&path)?;
            let lines = text.lines().map(str::trim);
            let code = lines.filter(|line| !line.is_empty() && !line.starts_with("//"));
            sources.insert(name, code.map(str::to_owned).collect());
        }
    }
    Ok(sources)
}
