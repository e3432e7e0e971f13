//! FP8: q, k and v that the call rounds, or that are e4m3 before.

use super::*;

const SIZES: &str = "--heads 4 --kv-heads 2 --seqlen 70 --seqlen-kv 150 --dim 72 --iters 1";

/// The outcome of a checked call on a device.
fn checked(device: &str, options: &str) -> Value {
    let line = format!("--json --device {device} --check full --warmup 0 {SIZES} {options}");
    let finished = run_line(&line);
    assert_eq!(finished.status, Some(0), "{line}: {}", finished.stderr);
    let outcome = outcome(&finished.stdout);
    assert_eq!(outcome["passed"], true, "{line}");
    let is_rotated = options.contains("--hadamard");
    assert_eq!(outcome["hadamard"], is_rotated, "{line}");
    outcome
}

#[test]
fn calls_that_round_are_compared_with_rounded_inputs() {
    for rotated in ["", "--hadamard"] {
        for (device, kernel) in [("cpu", "cpu"), ("emulator:sm_90", "fp8_bf16_d128_causal")] {
            let options = format!("--fp8 {rotated} --dtype bf16 --causal");
            let outcome = checked(device, &options);
            assert_eq!(outcome["fp8"], true, "{options}");
            assert_eq!(outcome["fp8_scales"], Value::Null, "{options}");
            assert_eq!(outcome["kernel"], kernel, "{options}");
        }
    }
}

#[test]
fn calls_on_e4m3_are_compared_with_e4m3() {
    let scales = serde_json::json!([0.5, -1.0, 2.0]);
    for (options, o, scales, kernel) in [
        ("", "f16", Value::Null, "fp8_two_levels_f16_d128"),
        (
            "--o-dtype f32 --softcap 20",
            "f32",
            Value::Null,
            "fp8_two_levels_optional_f16_d128",
        ),
        (
            "--o-dtype bf16 --causal --hadamard --fp8-scales 0.5,-1,2",
            "bf16",
            scales,
            "fp8_two_levels_bf16_d128_causal",
        ),
    ] {
        for (device, kernel) in [("cpu", "cpu"), ("emulator:sm_90", kernel)] {
            let outcome = checked(device, &format!("--dtype fp8 {options}"));
            let types = (&outcome["dtype"], &outcome["o_dtype"]);
            assert_eq!(types, (&"fp8".into(), &o.into()), "{options}");
            assert_eq!(outcome["fp8_scales"], scales, "{options}");
            assert_eq!(outcome["kernel"], kernel, "{options}");
        }
    }
}

/// Key 1 weighs 2^(4 * 0.5), the others 1; v has 1.03 where e4m3 has 1.
#[test]
fn scales_multiply_rounded_numbers() {
    let folder = folder();
    let ones = [1.0_f32; 8];
    let rows = |rows: [f32; 4]| rows.map(|number| [number; 8]).concat();
    let (k, v) = (rows([0.0, 1.0, 0.0, 0.0]), rows([0.0, 1.03, 2.0, 3.0]));
    let kv = [1, 1, 4, 8];
    let tensors: [FileTensor; 3] = [
        ("q", Dtype::F32, &[1, 1, 1, 8], bytemuck::cast_slice(&ones)),
        ("k", Dtype::F32, &kv, bytemuck::cast_slice(&k)),
        ("v", Dtype::F32, &kv, bytemuck::cast_slice(&v)),
    ];
    write(&folder, &tensors);
    let scale = 2.0_f32.ln() / 8.0;
    for hadamard in ["", "--hadamard"] {
        let line =
            format!("--dtype fp8 --o-dtype f32 --fp8-scales 4,0.5,3 --scale {scale} {hadamard}");
        let [o, lse] = written(&folder, &line, ["o", "lse"]);
        expect_close(&o, &[3.0 * 9.0 / 7.0; 8]);
        expect_close(&lse, &[7.0_f32.ln()]);
    }
}

#[test]
fn they_are_shown() {
    let line = "--seqlen 64 --dtype fp8 --causal --fp8-scales 0.5,-1,2 --hadamard";
    let table = succeed(line);
    let title = ", fp8 with o in f16, causal, scales 0.5,-1,2, rotated\n";
    assert!(table.contains(title), "{table}");
    let table = succeed("--seqlen 64 --fp8 --hadamard");
    assert!(table.contains(", f16, in FP8, rotated\n"), "{table}");
}

#[test]
fn they_go_with_windows_sinks_and_lengths() {
    let options = "--window 5,0 --softcap 3 --sinks --lengths 5";
    for inputs in ["--fp8", "--dtype fp8"] {
        for device in ["cpu", "emulator:sm_90"] {
            let outcome = checked(device, &format!("{inputs} {options}"));
            assert_eq!(outcome["softcap"], 3.0, "{inputs}");
        }
    }
}

#[test]
fn options_that_do_not_go_together_are_refused() {
    for (line, reason) in [
        ("--fp8-scales 1,1,1", "--fp8-scales needs --dtype fp8"),
        ("--fp8-scales 1,1,1 --fp8", "--fp8-scales needs --dtype fp8"),
        ("--o-dtype bf16", "--o-dtype needs --dtype fp8"),
        ("--hadamard", "--hadamard needs --fp8 or --dtype fp8"),
        ("--dtype fp8 --fp8", "--dtype fp8 takes no --fp8, which"),
        ("--dtype fp8 --append 1", "--dtype fp8 takes no --append"),
        (
            "--dtype fp8 --splits 2",
            "--splits is 2, but the CPU does not split the keys",
        ),
        (
            "--dtype fp8 --kernel naive",
            "--kernel naive takes no --dtype fp8; the ladder has plain",
        ),
    ] {
        refuse(line, &[reason]);
    }
    for inputs in ["--fp8", "--dtype fp8"] {
        for (option, name) in [
            ("--alibi", "alibi"),
            ("--bias", "bias"),
            ("--mask", "mask"),
            ("--batch-invariant", "batch_invariant"),
            ("--split-keys 64", "split_keys"),
        ] {
            let reason = format!("fp8 cannot be combined with {name}");
            refuse(&format!("{SIZES} {inputs} {option}"), &[&reason]);
        }
        for pass in ["backward", "both"] {
            let reason = "there are no gradients of a call with fp8";
            refuse(&format!("{SIZES} {inputs} --pass {pass}"), &[reason]);
        }
        let line = format!("--device emulator {SIZES} {inputs}");
        refused(&line, &run_line(&line), &["no kernel serves this problem"]);
    }
    for wrong in ["1,2", "1,2,3,4", "1,x,1", "NaN,1,1"] {
        let value = format!("'{wrong}' for '--fp8-scales <Q,K,V>'");
        let line = format!("--dtype fp8 --fp8-scales {wrong}");
        mistype(&line, &[&value, "three finite numbers"]);
    }
    mistype("--o-dtype fp8", &["--o-dtype", "f16, bf16, f32"]);
}
