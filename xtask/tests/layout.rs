//! `cargo xtask layout` as it is typed.

use std::process::{Command, Output};

fn layout(arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.arg("layout").args(arguments.split_whitespace());
    command.output().unwrap()
}

#[test]
fn a_pipe_gets_plain_text() {
    for arguments in ["mma", "ldmatrix", "swizzle", "smem"] {
        let output = layout(arguments);
        assert!(output.status.success(), "{arguments}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.lines().count() > 20, "{text}");
        assert!(!text.contains('\x1b'), "{text}");
    }
}

#[test]
fn bad_input_is_told() {
    for (arguments, works) in [
        ("circle", "unrecognized subcommand 'circle'"),
        ("swizzle --dim 48", "a multiple of 32 from 32 to 256"),
        ("smem --dim 512", "a multiple of 32 from 32 to 256"),
        ("swizzle --rows 0", "1..=256"),
        ("swizzle --swizzle 3,3", "own, none, pad, or B,M,S"),
        (
            "swizzle --swizzle 3,4,3 --dim 32 --rows 6",
            "multiple of 4 rows",
        ),
        ("ldmatrix --order columns", "rows, chunks"),
        ("mma --dim 64", "'--dim'"),
        ("mma --svg no/such/folder/a.svg", "cannot write"),
    ] {
        let output = layout(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        assert!(output.stdout.is_empty(), "{arguments}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(
            text.starts_with("error: ") && text.contains(works),
            "{text}"
        );
    }
}

#[test]
fn alone_it_lists_what_there_is() {
    let output = layout("");
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    for subject in ["mma", "ldmatrix", "swizzle", "smem"] {
        let listed = |line: &str| line.trim_start().starts_with(subject);
        assert!(text.lines().any(listed), "{text}");
    }
}

/// A relative file counts from the folder where the command is typed.
#[test]
fn pictures_go_into_files() {
    let folder = env!("CARGO_TARGET_TMPDIR");
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.args(["layout", "mma", "--svg", "mma.svg"]);
    let output = command.current_dir(folder).output().unwrap();
    assert!(output.status.success());
    let picture = std::fs::read_to_string(format!("{folder}/mma.svg")).unwrap();
    assert!(picture.starts_with("<svg"), "{picture}");
}
