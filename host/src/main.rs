//! The command: computes attention or a matrix product, checks the result and prints how long it took.

mod args;
mod choice;
mod counters;
mod device;
mod forward;
mod gemm;
mod inputs;
mod measure;
mod memory;
mod output;
mod progress;
mod report;
mod safetensors;

use anyhow::{Context, Result};
use args::{Args, Task};
use attention::Error;
use clap::Parser;
use rayon::ThreadPoolBuilder;
use std::process::ExitCode;

/// Runs the command: 0 if all checks passed, 1 if a check or the device failed, 2 for bad input.
fn main() -> ExitCode {
    let args = Args::parse();
    let error = match run(&args) {
        Ok(true) => return ExitCode::SUCCESS,
        Ok(false) => return ExitCode::from(1),
        Err(error) => error,
    };
    if let Some(Error::Cuda { .. } | Error::Emulator { .. }) = error.downcast_ref() {
        eprintln!("error: {error:#}");
        return ExitCode::from(1);
    }
    // Names of files and tensors may hold line breaks.
    let line = format!("{error:#}").replace(char::is_control, " ");
    eprintln!("error: {line}");
    ExitCode::from(2)
}

/// Whether all checks passed.
fn run(args: &Args) -> Result<bool> {
    let threads = ThreadPoolBuilder::new().build_global();
    threads.context("cannot start threads")?;
    match &args.task {
        None if args.list_kernels => {
            report::list_kernels()?;
            Ok(true)
        }
        None => forward::run(args),
        Some(Task::Gemm(args)) => gemm::run(args),
    }
}
