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
    bench: Vec<OsString>,
}

/// Times the kernels, into `bench/RESULTS`.
pub fn run(arguments: &Arguments) -> Result<()> {
    forward(&["--results", "bench/RESULTS"], &arguments.bench)
}

/// Draws results of `bench/RESULTS` into `bench/charts`.
pub fn plot(arguments: &Arguments) -> Result<()> {
    let folders = ["--results", "bench/RESULTS", "--charts", "bench/charts"];
    forward(&[&["plot"], &folders[..]].concat(), &arguments.bench)
}

/// Profiles a kernel, into `target/profiles`.
pub fn profile(arguments: &[OsString]) -> Result<()> {
    forward(&["profile", "--reports", "target/profiles"], arguments)
}

/// Whether an argument names the ladder or one of its kernels, perhaps in a list or with options.
fn is_of_the_ladder(argument: &OsString) -> bool {
    let argument = argument.to_string_lossy();
    let mut words = argument.split([',', ':', '=']);
    words.any(|word| word == "ladder" || Rung::ALL.iter().any(|rung| rung.name() == word))
}

/// Runs the binary, with the kernels of the ladder if an argument names them, and ends with its exit status.
fn forward(first: &[&str], rest: &[OsString]) -> Result<()> {
    let mut cargo = shell::cargo();
    cargo.args(["run", "--quiet", "--release", "-p", "bench"]);
    if rest.iter().any(is_of_the_ladder) {
        cargo.args(["--features", "ladder"]);
    }
    cargo.arg("--");
    let status = cargo.args(first).args(rest).status()?;
    match status.code() {
        Some(0) => Ok(()),
        code => std::process::exit(code.unwrap_or(1)),
    }
}
