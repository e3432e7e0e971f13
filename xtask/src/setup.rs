//! `cargo xtask setup`: installs what is missing.

use crate::shell;
use anyhow::{Result, bail};
use kernel_builder::{Compiler, Error, ptxas};
use std::process::Command;

/// A tool of the CUDA toolkit that PyPI has.
struct Tool {
    name: &'static str,
    package: &'static str,
    /// What there is not without it.
    without: &'static str,
}

const TOOLS: [Tool; 2] = [
    Tool {
        name: "ptxas",
        package: "nvidia-cuda-nvcc",
        without: "registers and spills go unchecked",
    },
    Tool {
        name: "nvdisasm",
        package: "nvidia-cuda-nvdisasm",
        without: "machine code cannot be shown",
    },
];

/// Installs a compiler for the kernels with rustup or apt, and `ptxas` and `nvdisasm` with pip into
/// `target`.
pub fn run() -> Result<()> {
    match Compiler::find() {
        Ok(compiler) => println!("kernel compiler: {}", compiler.rustc.display()),
        Err(Error::NoCompiler) => {
            let compiler = install_compiler()?;
            println!("kernel compiler: {} (installed)", compiler.rustc.display());
            // A host built without the kernels would stay without them.
            for profile in ["dev", "release"] {
                shell::run(shell::cargo().args([
                    "clean",
                    "--quiet",
                    "-p",
                    "attention",
                    "--profile",
                    profile,
                ]))?;
            }
        }
        Err(error) => bail!(error),
    }
    if TOOLS
        .iter()
        .any(|tool| ptxas::find_tool(tool.name).is_none())
    {
        install_tools();
    }
    for tool in TOOLS {
        match ptxas::find_tool(tool.name) {
            Some(path) => println!("{}: {}", tool.name, path.display()),
            None => println!(
                "{}: none (needs Python 3 with pip); {}",
                tool.name, tool.without
            ),
        }
    }
    Ok(())
}

/// rustup has the source of the toolchain in use; Debian has a compiler with its source.
fn install_compiler() -> Result<Compiler> {
    const DEBIAN: &[&str] = &["rustc-web", "rust-web-src"];
    type Step = fn() -> Result<()>;
    let ways: [(&str, Step); 2] = [
        ("rustup", || {
            shell::run(Command::new("rustup").args(["component", "add", "rust-src"]))
        }),
        ("apt-get", || {
            shell::run(&mut as_root(&["apt-get", "update", "--quiet=2"]))?;
            let install = [
                "apt-get",
                "install",
                "--quiet=2",
                "--yes",
                "--no-install-recommends",
            ];
            shell::run(&mut as_root(&[&install, DEBIAN].concat()))
        }),
    ];
    for (program, install) in ways {
        if !shell::exists(program) {
            continue;
        }
        println!("installing a compiler for the kernels with {program} ...");
        if let Err(error) = install() {
            println!("{program}: {error}");
        }
        if let Ok(compiler) = Compiler::find() {
            return Ok(compiler);
        }
    }
    bail!(
        "no compiler for the kernels could be installed; install a rustc 1.95 or later with its \
         library source (rustup component add rust-src, or Debian's {}), or name one in KERNEL_RUSTC",
        DEBIAN.join(" ")
    )
}

fn as_root(arguments: &[&str]) -> Command {
    let is_root = shell::output(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0");
    let prefix = if is_root { "env" } else { "sudo" };
    let mut command = Command::new(prefix);
    command
        .arg("DEBIAN_FRONTEND=noninteractive")
        .args(arguments);
    command.stdout(std::process::Stdio::null());
    command
}

/// All at once: pip's `--target` takes the place of the folder that the packages share.
fn install_tools() {
    println!("installing ptxas and nvdisasm with pip ...");
    let mut pip = Command::new("python3");
    pip.env("PIP_ROOT_USER_ACTION", "ignore");
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"]);
    pip.arg("--target").arg(ptxas::tools_dir());
    pip.args(TOOLS.iter().map(|tool| format!("{}>=13,<14", tool.package)));
    if let Err(error) = shell::run(&mut pip) {
        println!("pip: {error}");
    }
}
