//! The command: computes attention or a matrix product, checks the result and prints how long it took.

mod args;
mod cache;
mod call;
mod choice;
mod counters;
mod device;
mod e4m3;
mod element_type;
mod fp8;
mod gemm;
mod inputs;
mod measure;
mod memory;
mod modifiers;
mod operands;
mod output;
mod passes;
mod prefix;
mod progress;
mod report;
mod safetensors;
mod tensors;

use anyhow::{Context, Result};
use args::{Args, Task};
use clap::Parser;
use ferroattn::Error;
use rayon::ThreadPoolBuilder;
use std::process::ExitCode;

/// Runs the command: 0 if all checks passed, 1 if a check or the device failed, 2 for bad input.
fn main() -> ExitCode {
    let args = Args::try_parse().unwrap_or_else(|error| args::named(error).exit());
    let error = match run(&args) {
        Ok(true) => return ExitCode::SUCCESS,
        Ok(false) => return ExitCode::from(1),
        Err(error) => error,
    };
    let library_error = error.downcast_ref();
    if let Some(Error::Cuda { .. } | Error::Emulator { .. }) = library_error {
        eprintln!("error: {error:#}");
        return ExitCode::from(1);
    }
    // Names of files and tensors may hold line breaks.
    let line = format!("{error:#}").replace(char::is_control, " ");
    let tip = library_error.and_then(tip).unwrap_or_default();
    eprintln!("error: {line}{tip}");
    ExitCode::from(2)
}

/// Advice on what to type instead, which the library cannot give.
fn tip(error: &Error) -> Option<String> {
    Some(match error {
        Error::NotOnCpu { .. } => "; type --device emulator".to_owned(),
        Error::Multiplies(kernel) => format!("; type gemm --kernel {kernel}"),
        Error::UnknownKernel { near, .. } if near.is_empty() => {
            "; --list-kernels prints them all".to_owned()
        }
        Error::NotCompiled => "; type cargo xtask setup and build again".to_owned(),
        _ => return None,
    })
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
        None => passes::run(args),
        Some(Task::Gemm(args)) => gemm::run(args),
    }
}
