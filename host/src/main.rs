//! The command: computes attention or a matrix product, checks the result and prints how long it took.

mod args;
mod counters;
mod device;
mod forward;
mod gemm;
mod inputs;
mod measure;
mod output;
mod progress;
mod report;
mod run;
mod safetensors;

use std::process::ExitCode;

fn main() -> ExitCode {
    run::main()
}
