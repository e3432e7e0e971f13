//! The library as a folder that any stable Rust builds: its crates, and the PTX of their kernels.

use crate::shell;
use anyhow::{Context, Result};
use kernel_builder::Package;
use std::path::Path;
use std::process::Command;

/// The crates that a dependant needs; each is a member of the folder's own workspace.
const MEMBERS: [&str; 4] = ["ferroattn", "emulator", "kernels", "kernels/builder"];

/// Files that stand beside the crates.
const FILES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];

/// Arguments of git that list the files that it knows or does not ignore.
const LISTED: [&str; 4] = ["ls-files", "--cached", "--others", "--exclude-standard"];

/// Writes the crates to a folder, for `cargo add --path FOLDER/ferroattn`.
pub fn write(folder: &Path) -> Result<()> {
    let listed = shell::output(Command::new("git").args(LISTED).args(MEMBERS).args(FILES))?;
    for file in listed.lines().filter(|file| Path::new(file).exists()) {
        let to = folder.join(file);
        std::fs::create_dir_all(to.parent().context("a file has a folder")?)?;
        std::fs::copy(file, &to).with_context(|| file.to_owned())?;
    }
    let manifest = std::fs::read_to_string("Cargo.toml")?;
    let lines = manifest.lines().map(|line| match line.split_once(" = ") {
        Some(("members", _)) => format!("members = {MEMBERS:?}\n"),
        _ => format!("{line}\n"),
    });
    std::fs::write(folder.join("Cargo.toml"), lines.collect::<String>())?;
    let modules = kernel_builder::build(&Package::kernels())?;
    let ptx = folder.join("ferroattn/ptx");
    std::fs::create_dir_all(&ptx)?;
    kernel_builder::embed(Some(&modules), &ptx)?;
    Ok(())
}
