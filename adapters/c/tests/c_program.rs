//! The example in C compiles against the header, links the library, and finds what plain loops find.

use ferroattn_c::device::{ferroattn_close, ferroattn_open_emulator};
use ferroattn_c::status::FerroattnStatus;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::ptr::null_mut;
use std::sync::LazyLock;

/// The folder of the library that cargo built for this test.
fn libraries() -> PathBuf {
    let program = std::env::current_exe().expect("a program");
    let folder = program.parent().expect("a folder").to_owned();
    let name = format!(
        "{}ferroattn_c{}",
        std::env::consts::DLL_PREFIX,
        std::env::consts::DLL_SUFFIX
    );
    assert!(folder.join(&name).exists(), "cargo built no {name}");
    folder
}

/// The compiled example, one for all tests.
static PROGRAM: LazyLock<PathBuf> = LazyLock::new(compiled);

fn compiled() -> PathBuf {
    let (folder, libraries) = (Path::new(env!("CARGO_MANIFEST_DIR")), libraries());
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("attention");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let compile = Command::new(&compiler)
        .args([
            "-std=c99",
            "-pedantic",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-O1",
        ])
        .arg("-I")
        .arg(folder.join("include"))
        .arg(folder.join("examples/attention.c"))
        .arg("-o")
        .arg(&program)
        .arg("-L")
        .arg(&libraries)
        .arg("-lferroattn_c")
        .arg("-lm")
        .arg(format!("-Wl,-rpath,{}", libraries.display()))
        .output();
    let compile = compile.unwrap_or_else(|error| {
        panic!("this test needs a C compiler, {compiler} or what the variable CC names: {error}")
    });
    assert!(compile.status.success(), "{}", text(&compile));
    program
}

fn text(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    format!("{out}{err}")
}

/// Whether this build has kernels for an emulated GPU.
fn has_kernels() -> bool {
    let mut device = null_mut();
    // SAFETY: the handle is this function's, which closes it.
    unsafe {
        let status = ferroattn_open_emulator(&mut device);
        ferroattn_close(device);
        status == FerroattnStatus::Ok
    }
}

#[test]
fn example_agrees_with_plain_loops() {
    // The emulated GPU has no caches of e4m3.
    let devices: &[(&str, usize)] = match has_kernels() {
        true => &[("cpu", 6), ("emulator", 5)],
        false => &[("cpu", 6)],
    };
    for &(device, compared) in devices {
        let run = Command::new(&*PROGRAM).arg(device).output();
        let run = run.expect("a program that was just compiled");
        let text = text(&run);
        println!("{text}");
        assert!(run.status.success(), "{text}");
        assert_eq!(text.matches("largest error").count(), compared, "{text}");
    }
}

#[test]
fn example_says_why_it_fails() {
    let run = Command::new(&*PROGRAM).arg("4000000").output();
    let run = run.expect("a program that was just compiled");
    assert!(!run.status.success());
    let text = text(&run);
    assert!(text.starts_with("unsupported: "), "{text}");
    assert_eq!(text.trim_end().lines().count(), 1, "{text}");
}
