//! The project's tasks, one file each: `cargo xtask TASK`.

mod bench;
mod build_ptx;
mod count;
mod doctor;
mod layout;
mod package;
mod profile;
mod setup;
mod shell;
mod sources;
mod table;
mod test;
mod times;
mod wheel;

use clap::Parser;
use std::process::ExitCode;

/// Tasks of the project.
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
enum Task {
    /// Install missing tools: a compiler for the kernels, ptxas and nvdisasm
    Setup,
    /// Print what is there (compiler, tools, driver, GPU) and what each missing piece would give; exit status 0, or 2 if
    /// KERNEL_RUSTC names no compiler
    Doctor,
    /// Compile the kernels to PTX in target/ptx, check them, and print what they use
    BuildPtx(build_ptx::Arguments),
    /// Set up, build the kernels with all checks, and run all tests
    Test(test::Arguments),
    /// Time the kernels, and other implementations beside them, on a GPU
    Bench(bench::Arguments),
    /// Draw the newest results of bench as charts in bench/charts, and as tables in README.md and docs/performance.md
    Plot(bench::Arguments),
    /// Profile a kernel with ncu on a GPU; with --sass count its machine code; with --emulator count instructions,
    /// bank conflicts and memory traffic without a GPU
    Profile(bench::Arguments),
    /// Draw layouts in the terminal or as SVG: operands of mma, shared memory, bank conflicts, main loops
    Layout(layout::Arguments),
    /// Write dist/: the command, the tests and bench, to run on a machine with a driver and no Rust; and dist/crate, the
    /// library with its kernels inside, for any stable Rust
    Package(package::Arguments),
    /// Write the Python packages to dist/: ferroattn-*.whl, and flash-attn/flash_attn-*.whl
    Wheel(wheel::Arguments),
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
        Task::Doctor => std::process::exit(i32::from(doctor::run())),
        Task::BuildPtx(arguments) => build_ptx::run(&arguments),
        Task::Test(arguments) => test::run(&arguments),
        Task::Bench(arguments) => bench::run("--results bench/RESULTS", &arguments.bench),
        Task::Plot(arguments) => bench::run(
            "plot --results bench/RESULTS --charts bench/charts --tables README.md --tables docs/performance.md",
            &arguments.bench,
        ),
        Task::Profile(arguments) => profile::run(&arguments.bench),
        Task::Layout(arguments) => layout::run(&arguments).or_else(|message| {
            eprintln!("error: {message}");
            std::process::exit(2)
        }),
        Task::Package(arguments) => package::run(&arguments),
        Task::Wheel(arguments) => wheel::run(&arguments),
    }
}
