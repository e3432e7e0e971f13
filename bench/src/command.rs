//! Other programs.

use anyhow::{Result, ensure};
use std::process::Command;

/// Runs another program and returns its output.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command.output()?;
    let text = String::from_utf8(output.stdout)?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {text}{said}");
    Ok(text)
}

/// The driver's version by `nvidia-smi`; the driver's API knows only the CUDA version.
pub fn driver_version() -> Option<String> {
    let mut query = Command::new("nvidia-smi");
    query.args(["--query-gpu=driver_version", "--format=csv,noheader"]);
    let text = output(&mut query).ok()?;
    text.lines().next().map(|line| line.trim().to_owned())
}
