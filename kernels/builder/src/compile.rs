//! Running the compiler.

use crate::{Compiler, Error, target_dir, workspace};
use kernels::catalog::Arch;
use std::process::Command;

const TARGET: &str = "nvptx64-nvidia-cuda";

/// Flags for `core` and the kernels alike.
const FLAGS: &[&str] = &[
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
    // The PTX is the result; there is nothing to link.
    "-Clinker=true",
];

/// Compiles the kernels for a target; returns the PTX of all of them, as the compiler wrote it.
///
/// # Errors
/// What the compiler said.
pub fn compile(compiler: &Compiler, arch: Arch) -> Result<String, Error> {
    let target_dir = target_dir().join("kernels").join(arch.name());
    let mut command = Command::new(&compiler.cargo);
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(is_of_an_outer_build) {
            command.env_remove(name);
        }
    }
    let cpu = format!("-Ctarget-cpu={}", arch.name());
    let flags = [&[cpu.as_str()], FLAGS].concat();
    command
        .current_dir(workspace())
        .args(["rustc", "--quiet", "--package", "kernels", "--lib"])
        .args(["--profile", "ptx", "--crate-type", "cdylib"])
        .args(["--target", TARGET, "-Zbuild-std=core"])
        .arg("--target-dir")
        .arg(&target_dir)
        .args(["--", "--emit=asm"])
        // The compiler is a released one; this lets it use the unstable features that the target
        // needs.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTC", &compiler.rustc)
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    let output = command.output().map_err(|source| Error::Run {
        program: compiler.cargo.clone(),
        source,
    })?;
    if !output.status.success() {
        return Err(Error::Compile(
            String::from_utf8_lossy(&output.stderr).into(),
        ));
    }
    let path = target_dir.join(TARGET).join("ptx/deps/kernels.s");
    std::fs::read_to_string(&path).map_err(|source| Error::File { path, source })
}

/// Variables that an outer cargo set for a build script, or a user for the host's code.
fn is_of_an_outer_build(name: &str) -> bool {
    const PREFIXES: &[&str] = &[
        "CARGO_BUILD_",
        "CARGO_CFG_",
        "CARGO_FEATURE_",
        "CARGO_MANIFEST_",
        "CARGO_PKG_",
        "CARGO_PROFILE_",
        "CARGO_TARGET_",
        "RUSTC",
    ];
    const NAMES: &[&str] = &[
        "CARGO",
        "CARGO_ENCODED_RUSTFLAGS",
        "CARGO_INCREMENTAL",
        "CARGO_MAKEFLAGS",
        "MAKEFLAGS",
        "RUSTFLAGS",
        "RUSTUP_TOOLCHAIN",
        "TARGET",
    ];
    NAMES.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}
