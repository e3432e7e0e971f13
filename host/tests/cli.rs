//! The command, run as a user would. Everything here holds with and without a GPU.

use attention::{bf16, f16};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// The command; `ATTENTION_BIN` names it where this test was copied to another machine.
fn command() -> Command {
    let built = || OsString::from(env!("CARGO_BIN_EXE_host"));
    Command::new(std::env::var_os("ATTENTION_BIN").unwrap_or_else(built))
}

struct Finished {
    status: Option<i32>,
    stdout: String,
    stderr: String,
}

fn run(args: &[&str]) -> Finished {
    let output = command().args(args).output().expect("the command starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Finished {
        status: output.status.code(),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

fn run_on_cpu(line: &str) -> Finished {
    let args: Vec<&str> = ["--device", "cpu"]
        .into_iter()
        .chain(line.split_whitespace())
        .collect();
    run(&args)
}

/// Runs on the CPU, where it must succeed silently; returns standard output.
fn succeed(line: &str) -> String {
    let finished = run_on_cpu(line);
    assert_eq!(finished.status, Some(0), "{line}: {}", finished.stderr);
    assert_eq!(finished.stderr, "", "{line}");
    finished.stdout
}

/// The objects of a successful `--json` run.
fn json(line: &str) -> Vec<Value> {
    let parse = |line| serde_json::from_str(line).expect("JSON");
    succeed(&format!("--json {line}"))
        .lines()
        .map(parse)
        .collect()
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

/// q and k of zeros, so that all visible keys weigh the same, and v with rows of 0, 1, 2 and 3;
/// q is `[1, 2, 3, 8]`, k and v are `[1, 1, 4, 8]`.
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
        ],
    )
}

mod good {
    use super::*;

    #[test]
    fn the_table_has_a_row_that_passes() {
        let table = succeed("--seqlen 70 --dim 32 --iters 2 --warmup 1");
        assert!(table.starts_with("CPU: batch 1, heads 8, kv_heads 8, seqlen 70, seqlen_kv 70"));
        for column in [
            "kernel",
            "median",
            "min",
            "TFLOP/s",
            "error",
            "tolerance",
            "check",
        ] {
            assert!(table.contains(column), "{column}: {table}");
        }
        let row = table
            .lines()
            .find(|line| line.contains(" cpu "))
            .expect("a row");
        assert!(row.contains("pass"), "{row}");
    }

    #[test]
    fn json_has_every_field() {
        let objects = json(
            "--batch 2 --heads 4 --kv-heads 2 --seqlen 65 --seqlen-kv 129 --dim 40 --dtype bf16 \
             --causal --scale -0.2 --check full --iters 3",
        );
        let [object] = &objects[..] else {
            panic!("one line for the one kernel, not {objects:?}");
        };
        let expected = serde_json::json!({
            "device": "CPU", "kernel": "cpu", "dtype": "bf16", "batch": 2, "heads": 4,
            "kv_heads": 2, "seqlen_q": 65, "seqlen_kv": 129, "dim": 40, "causal": true,
            "passed": true,
        });
        for (field, value) in expected.as_object().expect("an object") {
            assert_eq!(&object[field], value, "{field}");
        }
        let number = |field: &str| object[field].as_f64().expect(field);
        assert!(0.0 < number("min_ms") && number("min_ms") <= number("median_ms"));
        let flops = 4.0 * 2.0 * 4.0 * 65.0 * 129.0 * 40.0 / 2.0;
        let rate = flops / number("median_ms") / 1e9;
        assert!((number("tflops") / rate - 1.0).abs() < 1e-6);
        assert!(0.0 < number("max_abs_err") && number("max_abs_err") <= number("tolerance"));
        assert_eq!(object.as_object().map(|object| object.len()), Some(16));
    }

    #[test]
    fn options_combine() {
        for line in [
            "--seqlen 1 --dim 8",
            "--seqlen 1 --seqlen-kv 300 --dim 256 --causal",
            "--seqlen 300 --seqlen-kv 5 --dim 64 --causal --dtype bf16",
            "--seqlen 129 --dim 96 --heads 6 --kv-heads 1 --scale 0",
            "--seqlen 64 --kernel cpu",
            "--seqlen 64 --kernel all",
        ] {
            let objects = json(&format!("{line} --check full"));
            assert_eq!(objects[0]["passed"], true, "{line}");
        }
    }

    #[test]
    fn an_unchecked_result_neither_passed_nor_failed() {
        let objects = json("--seqlen 64 --check off");
        for field in ["passed", "max_abs_err", "tolerance"] {
            assert_eq!(objects[0][field], Value::Null);
        }
    }

    #[test]
    fn auto_says_which_device_it_took() {
        let finished = run(&["--seqlen", "64", "--json"]);
        assert_eq!(finished.status, Some(0), "{}", finished.stderr);
        let object: Value = serde_json::from_str(&finished.stdout).expect("JSON");
        let said = format!("device: {} (", object["device"].as_str().expect("a name"));
        assert!(finished.stderr.starts_with(&said), "{}", finished.stderr);
        assert_eq!(finished.stderr.lines().count(), 1);
    }

    #[test]
    fn kernels_are_listed() {
        let finished = run(&["--list-kernels"]);
        assert_eq!((finished.status, finished.stderr.as_str()), (Some(0), ""));
        let rows: Vec<Vec<&str>> = finished
            .stdout
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        for kernel in kernels::table::KERNELS {
            let row = rows.iter().find(|row| row.contains(&kernel.name));
            let row = row.unwrap_or_else(|| panic!("no {}", kernel.name));
            assert!(row.contains(&kernel.dtype.name()) && row.contains(&kernel.arch.name()));
        }
        assert!(rows.iter().any(|row| row.contains(&"cpu")));
    }

    #[test]
    fn the_seed_decides() {
        let folder = folder();
        let [a, b, c] = [("a", 1), ("b", 1), ("c", 2)].map(|(name, seed)| {
            let path = folder.path().join(name);
            succeed(&format!(
                "--seqlen 64 --seed {seed} --output {}",
                path.display()
            ));
            fs::read(path).expect("an output file")
        });
        assert_eq!(a, b);
        assert_ne!(a, c);
    }

    #[test]
    fn a_reader_that_leaves_changes_nothing() {
        let mut child = command()
            .args(["--device", "cpu", "--seqlen", "64", "--json"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command starts");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("the command ends");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        assert_eq!(output.status.code(), Some(0));
    }

    /// Every dtype that a file may have, causal and not, against means told by hand.
    #[test]
    fn files_go_in_and_come_out() {
        for dtype in [Dtype::F16, Dtype::BF16, Dtype::F32] {
            for causal in [false, true] {
                let folder = folder();
                let input = match dtype {
                    Dtype::F32 => write_even_weights(&folder, dtype, |x| x),
                    Dtype::BF16 => write_even_weights(&folder, dtype, bf16::from_f32),
                    _ => write_even_weights(&folder, dtype, f16::from_f32),
                };
                let output = folder.path().join("result.safetensors");
                let table = succeed(&format!(
                    "--input {} --output {} {}",
                    input.display(),
                    output.display(),
                    if causal { "--causal" } else { "" }
                ));
                assert!(table.contains("heads 2, kv_heads 1, seqlen 3, seqlen_kv 4, dim 8"));

                let bytes = fs::read(output).expect("an output file");
                let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
                let o = file.tensor("o").expect("o");
                let lse = file.tensor("lse").expect("lse");
                let o_dtype = if dtype == Dtype::BF16 {
                    dtype
                } else {
                    Dtype::F16
                };
                assert_eq!((o.dtype(), o.shape()), (o_dtype, &[1, 2, 3, 8][..]));
                assert_eq!((lse.dtype(), lse.shape()), (Dtype::F32, &[1, 2, 3][..]));
                let o: Vec<u16> = bytemuck::pod_collect_to_vec(o.data());
                let lse: Vec<f32> = bytemuck::pod_collect_to_vec(lse.data());
                for (row, (o, lse)) in o.chunks(8).zip(lse).enumerate() {
                    // Row i sees keys 0..=i+1 if causal; their values are 0, 1, 2, ...
                    let keys = if causal { row % 3 + 2 } else { 4 };
                    let mean = (keys - 1) as f32 / 2.0;
                    let mean = match o_dtype {
                        Dtype::BF16 => bf16::from_f32(mean).to_bits(),
                        _ => f16::from_f32(mean).to_bits(),
                    };
                    assert_eq!(o, [mean; 8], "{dtype:?}, causal {causal}, row {row}");
                    assert!((lse - (keys as f32).ln()).abs() < 1e-6, "row {row}: {lse}");
                }
            }
        }
    }

    #[test]
    fn a_file_can_be_converted() {
        let folder = folder();
        let input = write_even_weights(&folder, Dtype::F16, f16::from_f32);
        let objects = json(&format!("--input {} --dtype bf16", input.display()));
        assert_eq!(objects[0]["dtype"], "bf16");
        assert_eq!(objects[0]["passed"], true);
    }

    #[test]
    fn nan_and_infinity_are_checked_like_other_numbers() {
        let folder = folder();
        let data: Vec<f16> = (0..80)
            .map(|i| match i {
                3 => f16::NAN,
                17 => f16::INFINITY,
                _ => f16::from_f32((i % 7) as f32),
            })
            .collect();
        let tensor = |name| {
            (
                name,
                Dtype::F16,
                &[1, 1, 10, 8][..],
                bytemuck::cast_slice(&data),
            )
        };
        let input = write(&folder, &[tensor("q"), tensor("k"), tensor("v")]);
        for causal in ["", "--causal"] {
            let objects = json(&format!(
                "--input {} --check full {causal}",
                input.display()
            ));
            assert_eq!(objects[0]["passed"], true);
        }
    }
}

/// Without a compiler at build time there is nothing to emulate, and the command must say so.
mod emulator {
    use super::*;

    fn run_on_emulator(line: &str) -> Option<Finished> {
        let line = format!("--device emulator {line}");
        let finished = run(&line.split_whitespace().collect::<Vec<_>>());
        if attention::ptx::COMPILED {
            assert_eq!(finished.status, Some(0), "{line}: {}", finished.stderr);
            assert_eq!(finished.stderr, "", "{line}");
            return Some(finished);
        }
        refused(&line, &finished, &["cargo xtask setup"]);
        None
    }

    #[test]
    fn every_kernel_that_serves_a_problem_passes() {
        let line = "--kernel all --json --heads 2 --kv-heads 1 --seqlen 70 --seqlen-kv 90 --dim 40 --causal --dtype bf16";
        let Some(finished) = run_on_emulator(line) else {
            return;
        };
        let outcomes: Vec<Value> = finished
            .stdout
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect();
        let kernels: Vec<_> = outcomes.iter().map(|o| &o["kernel"]).collect();
        assert_eq!(kernels[0], "forward_bf16_d64_causal");
        assert_eq!(kernels.len(), 5);
        for outcome in &outcomes {
            assert_eq!(outcome["device"], "emulator");
            assert_eq!(outcome["passed"], true);
            assert!(outcome.get("counters").is_none());
        }
    }

    #[test]
    fn counters_are_printed_on_request() {
        let line = "--heads 1 --seqlen 64 --dim 64 --counters";
        let Some(finished) = run_on_emulator(line) else {
            return;
        };
        for what in ["warp-instructions: ", "mma: 512 (2097152 FLOP)", "ldmatrix"] {
            assert!(finished.stdout.contains(what), "{}", finished.stdout);
        }
        let finished = run_on_emulator(&format!("{line} --json")).expect("compiled");
        let outcome: Value = serde_json::from_str(&finished.stdout).expect("JSON");
        let counters = &outcome["counters"];
        assert_eq!(counters["mma"], 512);
        assert_eq!(counters["bank_conflicts"], serde_json::json!([]));
        assert!(counters["accesses"][0]["wavefronts"].is_u64());
    }

    #[test]
    fn only_the_emulator_counts() {
        refuse("--counters", &["--counters", "--device emulator"]);
    }
}

mod bad {
    use super::*;

    #[test]
    fn sizes() {
        let allowed = "multiple of 8 from 8 to 256";
        refuse("--dim 0", &["dim is 0", allowed]);
        refuse("--dim 12", &["dim is 12", allowed]);
        refuse("--dim 264", &["dim is 264", allowed]);
        refuse("--seqlen 0", &["seqlen_q is 0", "at least 1"]);
        refuse("--seqlen-kv 0", &["seqlen_kv is 0", "at least 1"]);
        refuse("--batch 0", &["batch is 0", "at least 1"]);
        refuse("--heads 0", &["heads is 0", "at least 1"]);
        refuse("--kv-heads 0", &["kv_heads is 0", "at least 1"]);
        refuse(
            "--heads 6 --kv-heads 4",
            &["heads is 6", "multiple of kv_heads", "4"],
        );
        refuse(
            "--heads 4 --kv-heads 8",
            &["heads is 4", "multiple of kv_heads", "8"],
        );
    }

    #[test]
    fn sizes_that_overflow() {
        refuse(
            "--seqlen 18446744073709551615",
            &["seqlen_q is", "at most 2147482624"],
        );
        refuse(
            "--seqlen-kv 2147482625",
            &["seqlen_kv is", "at most 2147482624"],
        );
        refuse("--batch 4611686018427387904", &["size of q overflows"]);
        refuse(
            "--batch 2305843009213693951 --heads 16 --seqlen 1",
            &["size of q overflows"],
        );
        refuse("--seqlen 99999999999999999999", &["--seqlen", "too large"]);
    }

    #[test]
    fn sizes_beyond_the_memory() {
        let reasons = ["batch, heads, seqlen and dim", "memory on CPU", "free"];
        refuse("--seqlen 2000000000 --dim 256", &reasons);
        refuse(
            "--seqlen 1 --seqlen-kv 2000000000 --heads 1000 --dim 256",
            &reasons,
        );
        refuse("--batch 1000000000 --seqlen 1000", &reasons);
    }

    #[test]
    fn options() {
        for scale in ["NaN", "inf", "-inf"] {
            refuse(&format!("--scale {scale}"), &["scale is", "finite"]);
        }
        refuse("--scale big", &["--scale"]);
        refuse("--seqlen -1", &["--seqlen", "-1"]);
        refuse("--seqlen x", &["--seqlen", "'x'"]);
        refuse("--iters 0", &["--iters", "at least 1"]);
        refuse("--dtype f64", &["--dtype", "f16", "bf16"]);
        refuse("--check some", &["--check", "sample", "full", "off"]);
        refuse("--sequence 5", &["--sequence"]);
        refuse("--input x --dim 8", &["--input", "--dim"]);
    }

    #[test]
    fn devices() {
        let run_on = |device| run(&["--device", device, "--seqlen", "64"]);
        for device in ["gpu", "cuda:", "cuda:-1", "cuda:x", ""] {
            refused(
                device,
                &run_on(device),
                &["--device", "auto, cuda, cuda:I", "cpu"],
            );
        }
        let finished = run_on("cuda:4096");
        let driver = !finished.stderr.contains("no NVIDIA driver");
        let reason = if driver {
            "no CUDA device 4096"
        } else {
            "libcuda"
        };
        refused("cuda:4096", &finished, &[reason]);
    }

    #[test]
    fn kernels() {
        refuse(
            "--kernel forward_f16_d46",
            &["\"forward_f16_d46\"", "forward_f16_d64"],
        );
        refuse("--kernel zzz", &["\"zzz\"", "--list-kernels"]);
        refuse(
            "--kernel forward_f16_d64",
            &["forward_f16_d64", "not on the CPU"],
        );
    }

    #[test]
    fn files() {
        let folder = folder();
        let path = folder.path().join("bad.safetensors");
        let refuse_it = |reason: &str| {
            let line = format!("--input {}", path.display());
            refuse(&line, &["--input", "bad.safetensors", reason]);
        };
        refuse_it("No such file");
        let incomplete = "not a whole safetensors file";
        for foreign in ["", "text that is longer than the eight bytes of a length"] {
            fs::write(&path, foreign).expect("a writable folder");
            refuse_it(incomplete);
        }
        let whole = fs::read(write_even_weights(&folder, Dtype::F16, f16::from_f32));
        let whole = whole.expect("the file just written");
        for length in [7, 50, whole.len() - 1] {
            fs::write(&path, &whole[..length]).expect("a writable folder");
            refuse_it(incomplete);
        }
    }

    /// A file of zeros with these tensors is refused.
    fn refuse_tensors(tensors: &[(&str, Dtype, &[usize])], reasons: &[&str]) {
        let folder = folder();
        let zeros = [0; 4096];
        let tensors: Vec<FileTensor> = tensors
            .iter()
            .map(|&(name, dtype, shape)| {
                let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
                (name, dtype, shape, &zeros[..bytes])
            })
            .collect();
        let path = write(&folder, &tensors);
        refuse(&format!("--input {}", path.display()), reasons);
    }

    #[test]
    fn tensors() {
        use Dtype::{BF16, F16, F64, I16};
        let shape: &[usize] = &[1, 2, 3, 8];
        let absent = [("q", F16, shape), ("v", F16, shape)];
        refuse_tensors(&absent, &["--input", "no tensor k"]);
        for dtype in [F64, I16] {
            let foreign = [("q", F16, shape), ("k", F16, shape), ("v", dtype, shape)];
            refuse_tensors(&foreign, &["v is", "F16, BF16 or F32"]);
        }
        let mixed = [("q", F16, shape), ("k", BF16, shape), ("v", F16, shape)];
        refuse_tensors(&mixed, &["k is BF16", "F16"]);
    }

    #[test]
    fn shapes() {
        let refuse_shapes = |q: &[usize], k: &[usize], v: &[usize], reasons: &[&str]| {
            refuse_tensors(
                &[
                    ("q", Dtype::F16, q),
                    ("k", Dtype::F16, k),
                    ("v", Dtype::F16, v),
                ],
                reasons,
            );
        };
        let shape = [1, 2, 3, 8];
        refuse_shapes(
            &shape,
            &[2, 3, 8],
            &shape,
            &["k has shape [2, 3, 8]", "[batch, heads"],
        );
        refuse_shapes(
            &shape,
            &shape,
            &[1, 2, 4, 8],
            &["v has shape [1, 2, 4, 8]", "[1, 2, 3, 8]"],
        );
        for other in [[2, 2, 3, 8], [1, 2, 3, 16]] {
            refuse_shapes(&shape, &other, &other, &["k has shape", "[1, 2, 3, 8]"]);
        }
        refuse_shapes(&[1, 3, 3, 8], &shape, &shape, &["heads is 3", "kv_heads"]);
        refuse_shapes(&[1, 2, 3, 4], &[1, 2, 3, 4], &[1, 2, 3, 4], &["dim is 4"]);
        refuse_shapes(&[1, 2, 0, 8], &shape, &shape, &["seqlen_q is 0"]);
    }

    #[test]
    fn outputs() {
        let folder = folder();
        let refuse_output = |path: &Path, reason: &str| {
            refuse(
                &format!("--output {}", path.display()),
                &["--output", reason],
            );
        };
        refuse_output(&folder.path().join("missing/o"), "cannot write");
        refuse_output(folder.path(), "is a folder");
        assert_eq!(file_names(&folder), [""; 0]);
    }

    #[test]
    fn a_refused_run_leaves_the_output_alone() {
        let folder = folder();
        let path = folder.path().join("o.safetensors");
        let line = format!("--output {} --kernel forward_f16_d64", path.display());
        refuse(&line, &["not on the CPU"]);
        assert_eq!(file_names(&folder), [""; 0]);
        fs::write(&path, "precious").expect("a writable folder");
        refuse(&line, &["not on the CPU"]);
        assert_eq!(fs::read(&path).expect("the file just written"), b"precious");
        assert_eq!(file_names(&folder), [OsStr::new("o.safetensors")]);
    }
}
