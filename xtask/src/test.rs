//! `cargo xtask test`: everything that shows that the project works.

use crate::sources;
use crate::times::Times;
use crate::{build_ptx, setup, shell};
use anyhow::{Context, Result};
use std::path::PathBuf;

/// Tests to run, and arguments to pass on.
#[derive(clap::Args)]
pub struct Arguments {
    /// Print where the time went: by step, and for the tests of devices by DEVICE::FILE, with the longest tests
    #[arg(long)]
    times: bool,
    /// Leave out what passed before on the CPU and the emulator, where neither sources nor the PTX of its kernels changed
    #[arg(long)]
    changed: bool,
    /// Arguments for `cargo test`, such as a filter
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    cargo_test: Vec<String>,
}

/// The features that compile the kernels of the ladder.
pub const LADDER: &str = "host/ladder,bench/ladder,tests/ladder";

/// Crates outside the workspace.
const OUTSIDE: [&str; 4] = [
    "adapters/candle",
    "examples/custom_score",
    "examples/engine",
    "tests/featureless",
];

/// Sets up, builds the kernels with their contract, and runs all tests of the workspace; without arguments, also the tests
/// outside it.
pub fn run(arguments: &Arguments) -> Result<()> {
    let mut times = Times::default();
    times.step("setup", setup::run)?;
    times.step("contract of the kernels", || {
        build_ptx::run(&build_ptx::Arguments {
            ladder: true,
            ..Default::default()
        })
    })?;
    let folder = folder()?;
    let of_tests = folder.join("times");
    let cargo = |only: &str| {
        let mut cargo = shell::cargo(&format!("test --workspace --features {LADDER} {only}"));
        cargo.args(&arguments.cargo_test);
        cargo
    };
    times.step("compiling the tests", || shell::run(&mut cargo("--no-run")))?;
    let mut tests = cargo("");
    tests.env("FERROATTN_TIMES", &of_tests);
    if arguments.changed {
        tests.env("FERROATTN_PASSED", folder.join("passed"));
        tests.env("FERROATTN_SOURCES", sources::digest()?);
    }
    times.step("tests", || shell::run(&mut tests))?;
    if arguments.cargo_test.is_empty() {
        times.step("tests outside the workspace", || {
            OUTSIDE.iter().try_for_each(|folder| {
                // All workspaces compile their dependencies to one folder.
                let mut cargo = shell::cargo("test");
                cargo.env("CARGO_TARGET_DIR", kernel_builder::target_dir());
                shell::run(cargo.current_dir(folder))
            })
        })?;
    }
    if arguments.times {
        println!("{}", times.table(&of_tests)?);
    }
    Ok(())
}

/// The folder for the record of passed tests and the times of all.
fn folder() -> Result<PathBuf> {
    let folder = kernel_builder::target_dir().join("tests");
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    std::path::absolute(&folder).with_context(|| folder.display().to_string())
}
