//! `cargo xtask test`: everything that shows that the project works.

use crate::{build_ptx, setup, shell};
use anyhow::Result;

/// What to pass on.
#[derive(clap::Args)]
pub struct Arguments {
    /// Arguments for `cargo test`, such as a filter
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    cargo_test: Vec<String>,
}

/// The features that compile the kernels of the ladder.
pub const LADDER: &str = "host/ladder,bench/ladder,tests/ladder";

/// A crate outside the workspace.
const EXAMPLE: &str = "examples/custom_score";

/// Sets up, builds the kernels with their contract, and runs all tests of the workspace; without arguments, also the tests of
/// the example outside it.
pub fn run(arguments: &Arguments) -> Result<()> {
    setup::run()?;
    build_ptx::run(&build_ptx::Arguments {
        ladder: true,
        ..Default::default()
    })?;
    let mut cargo = shell::cargo(&format!("test --workspace --features {LADDER}"));
    shell::run(cargo.args(&arguments.cargo_test))?;
    match arguments.cargo_test.is_empty() {
        true => shell::run(shell::cargo("test").current_dir(EXAMPLE)),
        false => Ok(()),
    }
}
