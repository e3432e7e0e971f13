//! Running programs.

use anyhow::{Context, Result, ensure};
use std::process::Command;

/// The cargo that runs this task.
pub fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Runs a command, which shares the terminal.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot run {command:?}"))?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}

/// What a command prints; its standard error shares the terminal.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stderr(std::process::Stdio::inherit())
        .output()
        .with_context(|| format!("cannot run {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

/// Whether a program can be run at all.
pub fn exists(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--version");
    command.output().is_ok_and(|output| output.status.success())
}
