//! `cargo xtask package`: `dist/`, programs for a machine with a GPU and no Rust, and the crate for people with Rust and
//! no source of its library.

use crate::test::LADDER;
use crate::{package_crate, shell};
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};

const README: &str = "\
# Attention kernels in Rust, packaged

Needs an NVIDIA driver (580 or later is known to work) and nothing else.

    ./attention --seqlen 8192 --dim 64     run and check a kernel
    ./attention --help                     all options
    ./attention gemm --m 8192 --n 8192     multiply matrices
    ./bench --grid full --peers torch      time the kernels, and PyTorch beside them if it is there
    ./bench --grid gemm --peers torch      time matrix products, and cuBLAS beside them
    ./bench profile --dim 128              look into a kernel with ncu, if it is there
    ./bench --help                         all options
    ./run-tests                            run all tests, those on the GPU among them

The folder crate has the library for Rust 1.95 or later, kernels inside: cargo add --path crate/attention
";

/// Runs every test binary; stays in the folder so that they find the command.
const RUN_TESTS: &str = "\
#!/bin/sh
# Runs all packaged tests.
cd \"$(dirname \"$0\")\" || exit 2
ATTENTION_BIN=\"$PWD/attention\" && export ATTENTION_BIN
status=0
for test in tests/*; do
    echo \"== $test\"
    \"$test\" \"$@\" || status=1
done
exit $status
";

/// What to package.
#[derive(clap::Args)]
pub struct Arguments {
    /// Write only the crate, to this folder
    #[arg(long = "crate", value_name = "FOLDER")]
    only_crate: Option<PathBuf>,
}

/// Builds the command, bench and all test binaries and copies them to `dist`, which appears whole.
pub fn run(arguments: &Arguments) -> Result<()> {
    ensure!(
        kernel_builder::Compiler::find().is_ok(),
        "{}",
        kernel_builder::Error::NoCompiler
    );
    if let Some(folder) = &arguments.only_crate {
        return package_crate::write(folder);
    }
    let staging = Path::new("target/dist");
    if staging.exists() {
        std::fs::remove_dir_all(staging)?;
    }
    std::fs::create_dir_all(staging.join("tests"))?;

    for (package, name) in [("host", "attention"), ("bench", "bench")] {
        let binary = built(
            &["build", "--release", "-p", package, "--features", "ladder"],
            |artifact| !artifact["executable"].is_null(),
        )?;
        ensure!(binary.len() == 1, "the package {package} has one binary");
        install(&binary[0], &staging.join(name))?;
    }
    let tests = built(
        // The emulator's own tests compile the kernels; here they run through the command's tests.
        &[
            "test",
            "--no-run",
            "--workspace",
            "--features",
            LADDER,
            "--exclude",
            "xtask",
            "--exclude",
            "emulator",
        ],
        |artifact| artifact["profile"]["test"] == true && !artifact["executable"].is_null(),
    )?;
    for test in &tests {
        // NAME-HASH, as cargo calls test binaries; the hash keeps unit tests of two crates apart.
        let name = test.file_name().context("a test binary has a name")?;
        install(test, &staging.join("tests").join(name))?;
    }
    package_crate::write(&staging.join("crate"))?;
    std::fs::write(staging.join("README.md"), README)?;
    let script = staging.join("run-tests");
    std::fs::write(&script, RUN_TESTS)?;
    shell::run(std::process::Command::new("chmod").arg("+x").arg(&script))?;

    let dist = Path::new("dist");
    if dist.exists() {
        std::fs::remove_dir_all(dist)?;
    }
    std::fs::rename(staging, dist)?;
    println!(
        "dist: the command, bench, {} test binaries and the crate",
        tests.len()
    );
    Ok(())
}

/// The executables of a cargo run that `wanted` accepts, by cargo's own messages.
fn built(arguments: &[&str], wanted: impl Fn(&serde_json::Value) -> bool) -> Result<Vec<PathBuf>> {
    let format = "--message-format=json-render-diagnostics";
    let messages = shell::output(shell::cargo().args(arguments).arg(format))?;
    let mut executables = Vec::new();
    for line in messages.lines() {
        let message: serde_json::Value = serde_json::from_str(line)?;
        if message["reason"] == "compiler-artifact" && wanted(&message) {
            let path = message["executable"]
                .as_str()
                .context("an executable has a path")?;
            executables.push(path.into());
        }
    }
    Ok(executables)
}

/// Copies a binary without its debug information, which is most of it.
fn install(from: &Path, to: &Path) -> Result<()> {
    std::fs::copy(from, to).with_context(|| from.display().to_string())?;
    if shell::exists("strip") {
        shell::run(std::process::Command::new("strip").arg(to))?;
    }
    Ok(())
}
