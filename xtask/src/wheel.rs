//! `cargo xtask wheel`: the packages of Python, `dist/ferroattn-*.whl` and `dist/flash-attn/flash_attn-*.whl`.

use crate::shell;
use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Arguments of the task.
#[derive(clap::Args)]
pub struct Arguments {
    /// Install the wheel into a new virtual environment, and run its tests there: first with NumPy, then with PyTorch
    #[arg(long)]
    test: bool,
}

/// The package's folder.
const FOLDER: &str = "adapters/python";

/// Builds the wheels, and tests one if the arguments say so.
pub fn run(arguments: &Arguments) -> Result<()> {
    let python = python()?;
    build(&python, Path::new("dist"))?;
    if arguments.test {
        test(&python)?;
    }
    Ok(())
}

/// Writes the wheels, and what tests them on another machine, to a folder.
pub fn package(folder: &Path) -> Result<()> {
    build(&python()?, folder)?;
    let copy = |from: &str, to: PathBuf| {
        let from = format!("{FOLDER}/{from}");
        shell::run(shell::command("cp", "-r").arg(from).arg(to))
    };
    copy("tests", folder.to_owned())?;
    copy("benchmarks", folder.to_owned())?;
    // Beside its wheel, for a test.
    copy("flash-attn/flash_attn", folder.join("flash-attn"))?;
    let script = "xtask/src/package/run-python-tests";
    std::fs::copy(script, folder.join("run-tests")).context(script)?;
    Ok(())
}

fn build(python: &str, folder: &Path) -> Result<()> {
    let mut backend = Command::new(python);
    backend.arg(format!("{FOLDER}/backend.py")).arg(folder);
    let target = std::path::absolute(kernel_builder::target_dir())?;
    shell::run(backend.env("CARGO_TARGET_DIR", target))
}

/// A Python that can build: 3.11 or later.
fn python() -> Result<String> {
    let reads = |python: &&str| {
        let output = shell::command(python, "-c").arg("import tomllib").output();
        output.is_ok_and(|output| output.status.success())
    };
    let found = ["python3", "python3.13", "python3.12", "python3.11"]
        .into_iter()
        .find(|python| reads(python));
    match found {
        Some(python) => Ok(python.to_owned()),
        None => bail!("no Python 3.11 or later is there; the wheels' backend needs one"),
    }
}

/// Tests the wheel in a virtual environment of its own.
fn test(python: &str) -> Result<()> {
    let environment = kernel_builder::target_dir().join("python");
    shell::run(shell::command(python, "-m venv --clear").arg(&environment))?;
    let bin = std::path::absolute(environment.join("bin"))?;
    let tool = |name: &str, line: &str| shell::command(bin.join(name), line);
    // Most of PyTorch's modules are never imported: Python compiles those that are.
    let install = |line: &str| {
        shell::run(&mut tool(
            "python",
            &format!("-m pip install --quiet --no-compile {line}"),
        ))
    };
    install(&format!(
        "{} numpy pytest pytest-xdist -c {FOLDER}/tests/requirements.txt",
        wheel()?.display()
    ))?;
    let tests = |workers: usize| {
        let mut pytest = tool("python", &format!("-m pytest -q -n {workers}"));
        // The installed package, not the folder's.
        shell::run(pytest.current_dir(format!("{FOLDER}/tests")))
    };
    tests(1)?;
    install(&format!("-r {FOLDER}/tests/requirements.txt"))?;
    for line in ["ruff check --quiet", "ruff format --check --quiet", "mypy"] {
        shell::run(tool("python", &format!("-m {line}")).current_dir(FOLDER))?;
    }
    shell::run(&mut tool("python", "-m ferroattn"))?;
    tests(2)
}

/// The wheel that was built.
fn wheel() -> Result<PathBuf> {
    let found: Vec<_> = glob::glob("dist/ferroattn-*.whl")?.collect::<Result<_, _>>()?;
    ensure!(
        found.len() == 1,
        "dist has {} wheels of ferroattn; it must have one",
        found.len()
    );
    Ok(found.into_iter().next().expect("one"))
}
