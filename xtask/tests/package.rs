//! `cargo xtask package` where it cannot do its work.

use std::process::Command;

#[test]
fn one_line_says_that_there_is_no_compiler() {
    let mut xtask = Command::new(env!("CARGO_BIN_EXE_xtask"));
    let output = xtask
        .arg("package")
        .env("KERNEL_RUSTC", "no/such/rustc")
        .env("RUST_BACKTRACE", "1")
        .output()
        .expect("xtask runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.starts_with("error: KERNEL_RUSTC=no/such/rustc: not a rustc"));
    assert_eq!(said.lines().count(), 1, "{said}");
}
