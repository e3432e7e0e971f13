//! `cargo xtask setup`: installs what is missing.

use crate::shell;
use anyhow::{Result, bail};
use kernel_builder::{Compiler, Error, ptxas};
use std::process::{Command, Stdio};

/// Tools of the CUDA toolkit: name, package on PyPI, and what is missing without it.
const TOOLS: [[&str; 3]; 2] = [
    [
        "ptxas",
        "nvidia-cuda-nvcc",
        "registers and spills go unchecked",
    ],
    [
        "nvdisasm",
        "nvidia-cuda-nvdisasm",
        "machine code cannot be shown",
    ],
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
                let line = format!("clean --quiet -p ferroattn --profile {profile}");
                shell::run(&mut shell::cargo(&line))?;
            }
        }
        Err(error) => bail!(error),
    }
    let found = TOOLS.iter().map(|[name, ..]| ptxas::find_tool(name));
    if found.clone().any(|path| path.is_none()) {
        install_tools();
    }
    for ([name, _, without], path) in TOOLS.iter().zip(found) {
        match path {
            Some(path) => println!("{name}: {}", path.display()),
            None => println!("{name}: none (needs Python 3 with pip); {without}"),
        }
    }
    Ok(())
}

/// rustup has the source of the toolchain in use; Debian has a compiler with its source.
fn install_compiler() -> Result<Compiler> {
    const DEBIAN: &str = "rustc-web rust-web-src";
    let install = format!("install --quiet=2 --yes --no-install-recommends {DEBIAN}");
    let debian = ["update --quiet=2", &install].map(apt_get);
    let rustup = shell::command("rustup", "component add rust-src");
    for (program, mut commands) in [("rustup", vec![rustup]), ("apt-get", debian.into())] {
        if !shell::exists(program) {
            continue;
        }
        println!("installing a compiler for the kernels with {program} ...");
        if let Err(error) = commands.iter_mut().try_for_each(shell::run) {
            println!("{program}: {error}");
        }
        if let Ok(compiler) = Compiler::find() {
            return Ok(compiler);
        }
    }
    bail!(
        "no compiler for the kernels could be installed; install a rustc 1.95 or later with its \
         library source (rustup component add rust-src, or Debian's {DEBIAN}), or name one in KERNEL_RUSTC"
    )
}

/// `apt-get`, as root and without questions.
fn apt_get(line: &str) -> Command {
    let id = shell::output(&mut shell::command("id", "-u"));
    let is_root = id.is_ok_and(|id| id.trim() == "0");
    let line = format!("DEBIAN_FRONTEND=noninteractive apt-get {line}");
    let mut command = shell::command(if is_root { "env" } else { "sudo" }, &line);
    command.stdout(Stdio::null());
    command
}

/// All at once: pip's `--target` takes the place of the folder that the packages share.
fn install_tools() {
    println!("installing ptxas and nvdisasm with pip ...");
    let mut pip = shell::command("python3", "-m pip install --quiet --no-deps --upgrade");
    pip.env("PIP_ROOT_USER_ACTION", "ignore");
    pip.arg("--target").arg(ptxas::tools_dir());
    pip.args(TOOLS.map(|[_, package, _]| format!("{package}>=13,<14")));
    if let Err(error) = shell::run(&mut pip) {
        println!("pip: {error}");
    }
}
