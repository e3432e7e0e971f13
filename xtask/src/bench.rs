//! `cargo xtask bench`, `plot` and `profile`: the binary `bench`, with the repository's folders.

use crate::shell;
use anyhow::Result;
use ladder::Rung;
use std::ffi::OsString;

/// Arguments for the binary.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Arguments {
    /// Arguments for `bench`; --help lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub bench: Vec<OsString>,
}

/// Whether an argument names the ladder or one of its kernels, perhaps in a list or with options; or a timeline, which
/// its kernels record.
fn is_of_the_ladder(argument: &OsString) -> bool {
    let argument = argument.to_string_lossy();
    let mut words = argument.split([',', ':', '=']);
    words.any(|word| {
        ["ladder", "--timeline"].contains(&word) || Rung::ALL.iter().any(|rung| rung.name() == word)
    })
}

/// Runs the binary, with the kernels of the ladder if an argument names them, and ends with its exit status.
pub fn run(first: &str, rest: &[OsString]) -> Result<()> {
    let mut cargo = shell::cargo("run --quiet --release -p bench");
    if rest.iter().any(is_of_the_ladder) {
        cargo.args(["--features", "ladder"]);
    }
    cargo.arg("--").args(first.split_whitespace()).args(rest);
    match cargo.status()?.code() {
        Some(0) => Ok(()),
        code => std::process::exit(code.unwrap_or(1)),
    }
}
