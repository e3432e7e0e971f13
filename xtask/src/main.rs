//! The project's tasks, one file each: `cargo xtask TASK`.

mod bench;
mod build_ptx;
mod count;
mod layout;
mod package;
mod profile;
mod setup;
mod shell;
mod table;
mod test;

use clap::Parser;
use std::process::ExitCode;

/// Tasks of the project.
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
enum Task {
    /// Install missing tools: a compiler for the kernels, ptxas and nvdisasm
    Setup,
    /// Compile the kernels to PTX in target/ptx, check them, and print what they use
    BuildPtx(build_ptx::Arguments),
    /// Set up, build the kernels with all checks, and run all tests
    Test(test::Arguments),
    /// Time the kernels, and other implementations beside them, on a GPU
    Bench(bench::Arguments),
    /// Draw the newest results of bench as charts, in bench/charts
    Plot(bench::Arguments),
    /// Profile a kernel with ncu on a GPU; with --sass count its machine code; with --emulator count instructions,
    /// bank conflicts and memory traffic without a GPU
    Profile(bench::Arguments),
    /// Draw layouts in the terminal or as SVG: operands of mma, shared memory, bank conflicts, main loops
    Layout(layout::Arguments),
    /// Write dist/: the command, the tests and bench, to run on a machine with a driver and no Rust; and dist/crate, the
    /// library with its kernels inside, for any stable Rust
    Package(package::Arguments),
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One line, whatever RUST_BACKTRACE says.
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    let task = Task::parse();
    // Tasks name files from the workspace's root.
    std::env::set_current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))?;
    match task {
        Task::Setup => setup::run(),
        Task::BuildPtx(arguments) => build_ptx::run(&arguments),
        Task::Test(arguments) => test::run(&arguments),
        Task::Bench(arguments) => bench::run("--results bench/RESULTS", &arguments.bench),
        Task::Plot(arguments) => bench::run(
            "plot --results bench/RESULTS --charts bench/charts",
            &arguments.bench,
        ),
        Task::Profile(arguments) => profile::run(&arguments.bench),
        Task::Layout(arguments) => layout::run(&arguments).or_else(|message| {
            eprintln!("error: {message}");
            std::process::exit(2)
        }),
        Task::Package(arguments) => package::run(&arguments),
    }
}
