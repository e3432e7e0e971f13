//! `cargo xtask profile`: counts of a kernel on a GPU, or of kernels on the emulator.

use crate::{bench, count};
use anyhow::Result;
use clap::{CommandFactory, Parser};
use std::ffi::OsString;

/// Count what kernels do on the emulator, which needs no GPU
#[derive(Parser)]
#[command(bin_name = "cargo xtask profile", disable_version_flag = true)]
struct Emulator {
    /// Count on the emulator, not on a GPU
    #[arg(long, required = true)]
    emulator: bool,
    /// Count this kernel or rung of the ladder alone; may be repeated
    #[arg(long = "kernel", value_name = "NAME", value_parser = count::name)]
    kernels: Vec<&'static str>,
    /// Queries and keys, and the sizes of matrices
    #[arg(long, value_name = "N", default_value_t = 512)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=8192))]
    seqlen: u32,
}

/// Counts on the emulator, or profiles one kernel on the GPU.
pub fn run(arguments: &[OsString]) -> Result<()> {
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    if has("--emulator") {
        let line = [OsString::from("profile")].into_iter();
        let emulator = Emulator::parse_from(line.chain(arguments.iter().cloned()));
        return count::run(emulator.seqlen, &emulator.kernels);
    }
    bench::run(
        "profile --reports target/profiles --results bench/RESULTS",
        arguments,
    )?;
    if has("--help") || has("-h") {
        println!("\nOr: {}", Emulator::command().render_help());
    }
    Ok(())
}
