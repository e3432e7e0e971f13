//! `cargo xtask profile`: what the kernels do, on a GPU or on the emulator.

use crate::{bench, count};
use anyhow::Result;
use std::ffi::OsString;

/// What to profile, and on what.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Arguments {
    /// Count what every kernel does on the emulator, which needs no GPU
    #[arg(long)]
    emulator: bool,
    /// Queries and keys
    #[arg(long)]
    seqlen: Option<usize>,
    /// Without --emulator: arguments for `bench profile`; --help lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    bench: Vec<OsString>,
}

/// Counts on the emulator, or profiles one kernel on the GPU.
pub fn run(arguments: &Arguments) -> Result<()> {
    if arguments.emulator {
        return count::run(arguments.seqlen.unwrap_or(512));
    }
    let seqlen = arguments
        .seqlen
        .map(|seqlen| format!("--seqlen={seqlen}").into());
    let arguments: Vec<_> = seqlen.into_iter().chain(arguments.bench.clone()).collect();
    bench::profile(&arguments)
}
