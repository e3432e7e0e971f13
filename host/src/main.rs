//! Runs attention on random or given q, k and v, checks it and times it.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
