//! The command, run as a user would. Everything here holds with and without a GPU.

mod backward;
mod bad;
mod caches;
mod emulator;
mod files;
mod fp8;
mod gemm;
mod good;
mod modifiers;

use ferroattn::{bf16, f16};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// The command; `FERROATTN_BIN` names it if this test was copied to another machine.
fn command() -> Command {
    let built = || OsString::from(env!("CARGO_BIN_EXE_host"));
    Command::new(std::env::var_os("FERROATTN_BIN").unwrap_or_else(built))
}

struct Finished {
    status: Option<i32>,
    stdout: String,
    stderr: String,
}

fn run(args: &[&str]) -> Finished {
    finished(command().args(args).output().expect("the command starts"))
}

fn finished(output: Output) -> Finished {
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Finished {
        status: output.status.code(),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

/// Runs with the words of a line.
fn run_line(line: &str) -> Finished {
    run(&line.split_whitespace().collect::<Vec<_>>())
}

fn run_on_cpu(line: &str) -> Finished {
    run_line(&format!("--device cpu {line}"))
}

/// Runs `gemm` on the CPU.
fn gemm_on_cpu(line: &str) -> Finished {
    run_line(&format!("gemm --device cpu {line}"))
}

/// Runs on the CPU, where it must succeed silently; returns standard output.
fn succeed(line: &str) -> String {
    let finished = run_on_cpu(line);
    assert_eq!(finished.status, Some(0), "{line}: {}", finished.stderr);
    assert_eq!(finished.stderr, "", "{line}");
    finished.stdout
}

/// The outcomes that a `--json` run printed, one on each line.
fn outcomes(stdout: &str) -> Vec<Value> {
    let parse = |line| serde_json::from_str(line).expect("JSON");
    stdout.lines().map(parse).collect()
}

/// The outcome that a `--json` run of one kernel printed.
fn outcome(stdout: &str) -> Value {
    let [outcome] = <[Value; 1]>::try_from(outcomes(stdout)).expect("one line");
    outcome
}

/// The outcomes of a successful run on the CPU.
fn json(line: &str) -> Vec<Value> {
    outcomes(&succeed(&format!("--json {line}")))
}

/// Runs on the CPU, where it must be refused for all of `reasons`.
fn refuse(line: &str, reasons: &[&str]) {
    refused(line, &run_on_cpu(line), reasons);
}

/// Exit status 2 and one line on standard error, which says all of `reasons`.
fn refused(line: &str, finished: &Finished, reasons: &[&str]) {
    let Finished {
        status,
        stdout,
        stderr,
    } = finished;
    assert_eq!(*status, Some(2), "{line}: {stdout}{stderr}");
    assert_eq!(stdout, "", "{line}");
    assert!(
        stderr.starts_with("error: ") && stderr.lines().count() == 1,
        "{line}: {stderr}"
    );
    for reason in reasons {
        assert!(
            stderr.contains(reason),
            "{line}: {reason:?} is not in: {stderr}"
        );
    }
}

/// Runs on the CPU, where the arguments must be refused for all of `reasons`.
fn mistype(line: &str, reasons: &[&str]) {
    mistyped(line, &run_on_cpu(line), reasons);
}

/// Exit status 2 and clap's message, whose first paragraph says all of `reasons`.
fn mistyped(line: &str, finished: &Finished, reasons: &[&str]) {
    let Finished {
        status,
        stdout,
        stderr,
    } = finished;
    assert_eq!(*status, Some(2), "{line}: {stdout}{stderr}");
    assert_eq!(stdout, "", "{line}");
    assert!(stderr.starts_with("error: "), "{line}: {stderr}");
    let help = "For more information, try '--help'.";
    assert!(stderr.trim_end().ends_with(help), "{line}: {stderr}");
    for reason in reasons {
        assert!(
            stderr.contains(reason),
            "{line}: {reason:?} is not in: {stderr}"
        );
    }
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn file_names(folder: &TempDir) -> Vec<OsString> {
    let entries = fs::read_dir(folder).expect("a folder");
    entries
        .map(|entry| entry.expect("an entry").file_name())
        .collect()
}

/// A tensor of a file: name, dtype, shape, data.
type FileTensor<'a> = (&'a str, Dtype, &'a [usize], &'a [u8]);

/// Writes `inputs.safetensors`.
fn write(folder: &TempDir, tensors: &[FileTensor]) -> PathBuf {
    let views = tensors.iter().map(|&(name, dtype, shape, data)| {
        let view = TensorView::new(dtype, shape.to_vec(), data);
        (name, view.expect("data of the shape's size"))
    });
    let path = folder.path().join("inputs.safetensors");
    fs::write(&path, serialize(views, None).expect("serialisable")).expect("a writable folder");
    path
}

/// Writes q `[1, 2, 3, 8]` and k `[1, 1, 4, 8]` of zeros, so that all visible keys weigh the same, and v
/// `[1, 1, 4, 8]` with rows of 0, 1, 2 and 3. The file begins with another tensor.
fn write_even_weights<T: bytemuck::Pod>(
    folder: &TempDir,
    dtype: Dtype,
    convert: impl Fn(f32) -> T,
) -> PathBuf {
    let zeros = [convert(0.0); 48];
    let v: Vec<T> = (0..32).map(|i| convert((i / 8) as f32)).collect();
    let (q_shape, kv_shape) = ([1, 2, 3, 8], [1, 1, 4, 8]);
    write(
        folder,
        &[
            ("q", dtype, &q_shape, bytemuck::cast_slice(&zeros)),
            ("k", dtype, &kv_shape, bytemuck::cast_slice(&zeros[..32])),
            ("v", dtype, &kv_shape, bytemuck::cast_slice(&v)),
            ("other", Dtype::F64, &[3], &[7; 24]),
        ],
    )
}

/// Writes the same q, k and v in f32, v with `dim_v` elements in a row; d_o of ones; and `others`.
fn write_with_d_o(folder: &TempDir, dim_v: usize, others: &[FileTensor]) -> PathBuf {
    let (q_shape, kv_shape) = ([1, 2, 3, 8], [1, 1, 4, 8]);
    let (v_shape, o_shape) = ([1, 1, 4, dim_v], [1, 2, 3, dim_v]);
    let (zeros, ones) = ([0.0_f32; 48], vec![1.0_f32; 6 * dim_v]);
    let v: Vec<f32> = (0..4 * dim_v).map(|i| (i / dim_v) as f32).collect();
    let tensors: [FileTensor; 4] = [
        ("q", Dtype::F32, &q_shape, bytemuck::cast_slice(&zeros)),
        (
            "k",
            Dtype::F32,
            &kv_shape,
            bytemuck::cast_slice(&zeros[..32]),
        ),
        ("v", Dtype::F32, &v_shape, bytemuck::cast_slice(&v)),
        ("d_o", Dtype::F32, &o_shape, bytemuck::cast_slice(&ones)),
    ];
    write(folder, &[&tensors[..], others].concat())
}

/// The numbers of tensors in f32 that a run on `inputs.safetensors` wrote.
fn written<const N: usize>(folder: &TempDir, line: &str, names: [&str; N]) -> [Vec<f32>; N] {
    let output = folder.path().join("output");
    let [input, shown] = [folder.path().join("inputs.safetensors"), output.clone()];
    let files = format!("--input {} --output {}", input.display(), shown.display());
    succeed(&format!("--check full {files} {line}"));
    let bytes = fs::read(output).expect("an output file");
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    names.map(|name| {
        let tensor = file
            .tensor(name)
            .unwrap_or_else(|_| panic!("no {name}: {line}"));
        bytemuck::pod_collect_to_vec(tensor.data())
    })
}

fn expect_close(found: &[f32], expected: &[f32]) {
    let is_close = |(a, b): (&f32, &f32)| (a - b).abs() <= 2e-6 * b.abs().max(1.0);
    let close = found.len() == expected.len() && found.iter().zip(expected).all(is_close);
    assert!(close, "{found:?} is not {expected:?}");
}
