//! Runs that succeed.

use super::*;
use kernels::catalog::KERNELS;
use ladder::Rung;

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
        "device": "CPU", "kernel": "cpu", "pass": "forward", "splits": 1, "dtype": "bf16", "o_dtype": "bf16",
        "batch": 2, "heads": 4, "kv_heads": 2, "seqlen_q": 65, "seqlen_kv": 129, "dim": 40, "dim_v": 40, "causal": true,
        "window": {"left": null, "right": null}, "softcap": null, "alibi": false, "sinks": false,
        "bias": null, "mask": null, "sequences": null, "page": null, "prefix": null, "append": null,
        "fp8": false, "fp8_scales": null, "hadamard": false, "batch_invariant": false, "split_keys": null,
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
    assert_eq!(object.as_object().map(|object| object.len()), Some(36));
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
        "--seqlen 64 --splits 1",
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
    let finished = run_line("--seqlen 64 --json");
    assert_eq!(finished.status, Some(0), "{}", finished.stderr);
    let device = &outcome(&finished.stdout)["device"];
    let said = format!("device: {} (", device.as_str().expect("a name"));
    assert!(finished.stderr.starts_with(&said), "{}", finished.stderr);
    assert_eq!(finished.stderr.lines().count(), 1);
}

#[test]
fn the_last_lines_say_what_is_missing_for_a_gpu() {
    for line in ["--seqlen 64", "gemm --m 64 --n 64 --k 64"] {
        let finished = run_line(line);
        assert_eq!(finished.status, Some(0), "{}", finished.stderr);
        let mut lines = finished.stderr.lines();
        let device = lines.next().expect("the device");
        let notes: Vec<_> = lines.collect();
        assert!(notes.iter().all(|note| note.starts_with("note: ")));
        assert_eq!(device.starts_with("device: CPU"), !notes.is_empty());
        let is_built = notes.iter().all(|note| !note.contains("cargo xtask setup"));
        assert_eq!(
            is_built,
            ferroattn::internals::ptx::COMPILED || notes.is_empty()
        );
    }
    // Who names the CPU misses nothing.
    succeed("--seqlen 64");
}

#[test]
fn kernels_are_listed() {
    let finished = run_line("--list-kernels");
    assert_eq!((finished.status, finished.stderr.as_str()), (Some(0), ""));
    let rows: Vec<Vec<&str>> = finished
        .stdout
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    for kernel in KERNELS.iter() {
        let row = rows.iter().find(|row| row.contains(&kernel.name));
        let row = row.unwrap_or_else(|| panic!("no {}", kernel.name));
        let dtype = kernel.dtype().map_or("any", |dtype| dtype.name());
        assert!(row.contains(&dtype) && row.contains(&kernel.target.name));
    }
    for name in ["cpu", "gemm-simple", "gemm-multistage"] {
        assert!(rows.iter().any(|row| row.contains(&name)), "{name}");
    }
    for rung in Rung::ALL {
        let row = rows.iter().find(|row| row.contains(&rung.name()));
        let row = row.unwrap_or_else(|| panic!("no {}", rung.name()));
        let line = row.join(" ");
        assert!(line.contains(rung.lesson()), "{line}");
        assert!(line.contains(&rung.max_dim().to_string()), "{line}");
    }
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

/// Every dtype that a file may have, causal and not, against means computed by hand.
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

/// Digits that f16 would round away are in the result.
#[test]
fn the_cpu_computes_in_f32() {
    const MORE: f32 = 1e-4;
    let folder = folder();
    let input = write_even_weights(&folder, Dtype::F32, |x| x + MORE);
    let output = folder.path().join("result.safetensors");
    let objects = json(&format!(
        "--dtype f32 --check full --input {} --output {}",
        input.display(),
        output.display()
    ));
    assert_eq!(objects[0]["dtype"], "f32");
    assert_eq!(objects[0]["passed"], true);

    let bytes = fs::read(output).expect("an output file");
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let o = file.tensor("o").expect("o");
    assert_eq!((o.dtype(), o.shape()), (Dtype::F32, &[1, 2, 3, 8][..]));
    for o in bytemuck::pod_collect_to_vec::<u8, f32>(o.data()) {
        assert!((o - 1.5 - MORE).abs() < 1e-6, "{o}");
    }
}
