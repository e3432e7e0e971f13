//! `cargo xtask package`: `dist/`, programs for a machine with a GPU and no Rust, and the crate for people with Rust and
//! no source of its library.

mod library;

use crate::shell;
use crate::test::LADDER;
use crate::wheel;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The parts to package.
#[derive(clap::Args)]
pub struct Arguments {
    /// Write only the crate, to this folder
    #[arg(long = "crate", value_name = "FOLDER")]
    only_crate: Option<PathBuf>,
}

/// Builds the command, bench and all test binaries and copies them to `dist`, which appears whole.
pub fn run(arguments: &Arguments) -> Result<()> {
    kernel_builder::Compiler::find()?;
    if let Some(folder) = &arguments.only_crate {
        return library::write(folder);
    }
    let staging = Path::new("target/dist");
    if staging.exists() {
        std::fs::remove_dir_all(staging)?;
    }
    std::fs::create_dir_all(staging.join("tests"))?;

    // In one call, so that all cores are busy while either waits for a crate.
    let line = "build --release -p host -p bench --features host/ladder,bench/ladder";
    let programs = built(line, false)?;
    for (package, name) in [("host", "attention"), ("bench", "bench")] {
        let is_named = |path: &&PathBuf| path.file_stem().is_some_and(|stem| stem == package);
        let Some(program) = programs.iter().find(is_named) else {
            bail!("the package {package} has a program of its name");
        };
        install(program, &staging.join(name))?;
    }
    // The emulator's own tests compile the kernels; here they run through the command's tests.
    let line =
        format!("test --no-run --workspace --features {LADDER} --exclude xtask --exclude emulator");
    let tests = built(&line, true)?;
    for test in &tests {
        // NAME-HASH, as cargo calls test binaries; the hash keeps unit tests of two crates apart.
        let name = test.file_name().context("a test binary has a name")?;
        install(test, &staging.join("tests").join(name))?;
    }
    library::write(&staging.join("crate"))?;
    wheel::package(&staging.join("python"))?;
    for file in ["README.md", "run-tests"] {
        std::fs::copy(
            Path::new("xtask/src/package").join(file),
            staging.join(file),
        )?;
    }

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

/// The executables that cargo makes, by its own messages: tests, or programs.
fn built(line: &str, tests: bool) -> Result<Vec<PathBuf>> {
    let mut cargo = shell::cargo(line);
    let messages = shell::output(cargo.arg("--message-format=json-render-diagnostics"))?;
    let mut executables = Vec::new();
    for line in messages.lines() {
        let message: serde_json::Value = serde_json::from_str(line)?;
        if message["reason"] == "compiler-artifact" && message["profile"]["test"] == tests {
            executables.extend(message["executable"].as_str().map(PathBuf::from));
        }
    }
    Ok(executables)
}

/// Copies a binary without its debug information, which is most of it.
fn install(from: &Path, to: &Path) -> Result<()> {
    std::fs::copy(from, to).with_context(|| from.display().to_string())?;
    if shell::exists("strip") {
        shell::run(Command::new("strip").arg(to))?;
    }
    Ok(())
}
