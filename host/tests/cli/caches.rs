//! Caches: pages, appended keys, shared prefixes; batch invariant calls and splits of so many keys.

use super::modifiers::outputs;
use super::*;

/// The outcomes of calls that pass their checks on the CPU and on emulated GPUs of two classes, behind their devices.
fn passed(options: &str) -> [(&str, Value); 3] {
    ["cpu", "emulator", "emulator:sm_90"].map(|device| {
        let sizes = "--heads 4 --kv-heads 2 --dim 24 --iters 2 --warmup 0";
        let line = format!("--json --device {device} --check full {sizes} {options}");
        let finished = run_line(&line);
        assert_eq!(finished.status, Some(0), "{line}: {}", finished.stderr);
        let outcome = outcome(&finished.stdout);
        assert_eq!(outcome["passed"], true, "{line}");
        (device, outcome)
    })
}

/// Each call writes the appended keys, which are NaN before.
#[test]
fn pages_and_appended_keys() {
    for options in [
        "--seqlen 8 --seqlen-kv 96 --page 16 --causal",
        "--seqlen 3 --seqlen-kv 96 --append 3 --causal",
        "--batch 2 --seqlen 1 --seqlen-kv 96 --page 8 --append 2 --lengths 90,2 --sinks",
        "--batch 2 --seqlen 70 --seqlen-kv 70 --page 2 --append 70 --window 9,0",
    ] {
        passed(options);
    }
}

#[test]
fn prefixes_alone_and_with_other_options() {
    for options in [
        "--batch 3 --seqlen 1 --seqlen-kv 96 --prefix 70",
        "--batch 3 --seqlen 5 --seqlen-kv 96 --prefix 70 --causal --sinks --dim-v 40",
        "--batch 3 --seqlen 5 --seqlen-kv 96 --prefix 70 --lengths 96,74,80 --causal --softcap 3",
        "--batch 2 --seqlen 2 --seqlen-kv 90 --prefix 70 --lengths 70,81",
        "--batch 2 --seqlen 2 --seqlen-kv 70 --prefix 69 --lengths 69,69",
        "--batch 2 --seqlen 40 --seqlen-kv 70 --prefix 30 --causal",
        "--batch 2 --seqlen 3 --seqlen-kv 96 --prefix 48 --page 16 --causal",
        "--batch 2 --seqlen 1 --seqlen-kv 100 --prefix 52 --page 8 --append 2 --lengths 54,93",
        "--batch 3 --seqlen 3 --seqlen-kv 97 --prefix 33 --page 16 --lengths 36,97,50 --causal --sinks",
        "--batch 2 --seqlen 2 --seqlen-kv 67 --prefix 3 --page 64",
        "--batch 2 --seqlen 2 --seqlen-kv 70 --prefix 69 --page 1 --lengths 70,69",
    ] {
        for (_, outcome) in passed(options) {
            assert!(outcome["prefix"].is_u64(), "{options}");
        }
    }
}

/// Scores are 0, so o is the mean of values: of the first entry's up to the prefix's end, and of an entry's own.
#[test]
fn a_prefix_is_that_of_the_first_entry() {
    let folder = folder();
    let zeros = vec![0.0_f32; 2 * 4 * 8];
    let v: Vec<f32> = (0..64).map(|i| (i / 8) as f32).collect();
    let (q_shape, kv_shape) = ([2, 1, 1, 8], [2, 1, 4, 8]);
    let tensors: [FileTensor; 3] = [
        (
            "q",
            Dtype::F32,
            &q_shape,
            bytemuck::cast_slice(&zeros[..16]),
        ),
        ("k", Dtype::F32, &kv_shape, bytemuck::cast_slice(&zeros)),
        ("v", Dtype::F32, &kv_shape, bytemuck::cast_slice(&v)),
    ];
    write(&folder, &tensors);
    for (line, expected) in [
        ("--prefix 3", [1.5, 2.5]),
        ("--prefix 2 --lengths 2,3", [0.5, 7.0 / 3.0]),
        ("--prefix 3 --lengths 3,3", [1.0, 1.0]),
    ] {
        let [o] = outputs(&folder, line, ["o"]);
        expect_close(&[o[0], o[8]], &expected);
    }
}

#[test]
fn batch_invariant_calls_and_splits_of_so_many_keys() {
    for (options, splits) in [
        ("--seqlen 3 --seqlen-kv 300 --batch-invariant --causal", 1),
        ("--seqlen 3 --seqlen-kv 300 --split-keys 100", 3),
        (
            "--seqlen 3 --seqlen-kv 300 --batch-invariant --split-keys 128 --sinks",
            3,
        ),
        ("--seqlen 90 --packed 50,0,40 --batch-invariant --causal", 1),
        (
            "--batch 2 --seqlen 1 --seqlen-kv 96 --page 8 --lengths 90,2 --batch-invariant",
            1,
        ),
    ] {
        for (device, outcome) in passed(options) {
            let splits = if device == "cpu" { 1 } else { splits };
            assert_eq!(outcome["splits"], splits, "{device} {options}");
            let invariant = options.contains("invariant");
            assert_eq!(outcome["batch_invariant"], invariant, "{device} {options}");
        }
    }
}

#[test]
fn bad_values_are_refused() {
    for (line, reason) in [
        (
            "--page 12 --seqlen 48",
            "--page is 12; it must be a power of 2",
        ),
        (
            "--page 16 --seqlen 40",
            "seqlen_kv is 40; with --page it must be a multiple of 16",
        ),
        (
            "--append 5 --seqlen 40 --lengths 4",
            "--append is 5; it must be at most the keys of an entry of the batch, which are 4",
        ),
        (
            "--prefix 40 --seqlen 40",
            "--prefix is 40; it must be below seqlen_kv, which is 40",
        ),
        (
            "--prefix 40 --seqlen 5 --seqlen-kv 43 --causal",
            "seqlen_kv is 43; with --prefix 40, --causal and seqlen 5 it must be at least 44",
        ),
        (
            "--batch 2 --prefix 8 --seqlen 2 --seqlen-kv 43 --lengths 8,7",
            "--lengths has 7; with --prefix 8 and seqlen 2 it must be at least 8",
        ),
        (
            "--prefix 8 --packed 40 --seqlen 40",
            "--prefix takes no --packed",
        ),
        (
            "--prefix 8 --page 16 --seqlen 1 --seqlen-kv 48",
            "seqlen_kv without the prefix is 40; with --page it must be a multiple of 16",
        ),
        (
            "--prefix 8 --append 5 --seqlen 1 --seqlen-kv 12",
            "--append is 5; it must be at most the keys of an entry of the batch, which are 4",
        ),
        (
            "--prefix 8 --seqlen 64 --pass both",
            "--prefix is for the forward pass alone",
        ),
        (
            "--prefix 8 --seqlen 64 --window 9,0",
            "--prefix takes no --window",
        ),
        ("--prefix 8 --seqlen 64 --mask", "--prefix takes no --mask"),
        (
            "--prefix 8 --seqlen 64 --fp8",
            "fp8 cannot be combined with prefix",
        ),
        (
            "--prefix 8 --seqlen 64 --dtype fp8",
            "fp8 cannot be combined with prefix",
        ),
        (
            "--append 5 --packed 40 --seqlen 40",
            "--append takes no --packed",
        ),
        (
            "--page 16 --seqlen 64 --pass backward",
            "there are no gradients of a call with pages",
        ),
        (
            "--append 5 --seqlen 64 --pass both",
            "--append is for the forward pass alone",
        ),
        (
            "--batch-invariant --packed 30,34 --seqlen 64 --bias",
            "bias cannot be combined with packed sequences that are batch_invariant",
        ),
        (
            "--batch-invariant --packed 30,34 --seqlen 64 --split-keys 32",
            "split_keys cannot be combined with packed sequences that are batch_invariant",
        ),
        (
            "--split-keys 32 --seqlen 64 --pass backward",
            "--split-keys is for the forward pass; type --pass both",
        ),
    ] {
        refuse(line, &[reason]);
    }
}
