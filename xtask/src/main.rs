//! The project's tasks, one file each: `cargo xtask TASK`.

mod build_ptx;
mod package;
mod profile;
mod setup;
mod shell;
mod test;

use clap::Parser;

/// Tasks of the project.
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
enum Task {
    /// Install what is missing to build the kernels: their compiler, and ptxas
    Setup,
    /// Compile the kernels to PTX in target/ptx, check them, and print what they use
    BuildPtx,
    /// Set up, build the kernels with all checks, and run all tests
    Test(test::Arguments),
    /// Count what every kernel does: instructions, bank conflicts, memory traffic
    Profile(profile::Arguments),
    /// Write dist/: the command and the tests, to run on a machine with a driver and no Rust
    Package,
}

fn main() -> anyhow::Result<()> {
    // Tasks name files from the workspace's root.
    std::env::set_current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))?;
    match Task::parse() {
        Task::Setup => setup::run(),
        Task::BuildPtx => build_ptx::run(),
        Task::Test(arguments) => test::run(&arguments),
        Task::Profile(arguments) => profile::run(&arguments),
        Task::Package => package::run(),
    }
}
