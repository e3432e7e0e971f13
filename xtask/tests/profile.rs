//! `cargo xtask profile --emulator` as it is typed, where it counts nothing.

use std::process::{Command, Output};

fn profile(arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.arg("profile").args(arguments.split_whitespace());
    command.output().unwrap()
}

#[test]
fn what_does_not_apply_is_refused() {
    for (arguments, said) in [
        ("--emulator --kernel split-q --dim 64", "'--dim'"),
        ("--emulator --kernel forward_f16_d65", "has this name"),
        ("--emulator --kernel pack", "has this name"),
        ("--sass --emulator", "'--sass'"),
        ("--emulator --seqlen 0", "1..=8192"),
        ("--seqlen 5000000000 --emulator", "1..=8192"),
        ("--emulator here", "'here'"),
    ] {
        let output = profile(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        assert!(output.stdout.is_empty(), "{arguments}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.starts_with("error: ") && text.contains(said), "{text}");
    }
}

#[test]
fn help_says_what_is_counted() {
    let output = profile("--emulator --help");
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    for words in [
        "Usage: cargo xtask profile [OPTIONS] --emulator",
        "--seqlen <N>",
        "--kernel <NAME>",
        "needs no GPU",
    ] {
        assert!(text.contains(words), "{text}");
    }
}
