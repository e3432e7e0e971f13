//! Running programs.

use anyhow::{Context, Result, ensure};
use std::ffi::OsStr;
use std::process::{Command, Stdio};

/// A program and its arguments, the words of a line.
pub fn command(program: impl AsRef<OsStr>, line: &str) -> Command {
    let mut command = Command::new(program);
    command.args(line.split_whitespace());
    command
}

/// The cargo that runs this task, and its arguments.
pub fn cargo(line: &str) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    command(cargo, line)
}

/// Runs a command, which shares the terminal.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot run {command:?}"))?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}

/// The output of a command; its standard error shares the terminal.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot run {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

/// Whether a program can be run at all.
pub fn exists(program: &str) -> bool {
    let output = command(program, "--version").output();
    output.is_ok_and(|output| output.status.success())
}
