//! `attention gemm`.

use super::{gemm_on_cpu, mistyped, outcome, outcomes, refused, run_line};
use serde_json::Value;

/// Runs on the CPU, where it must succeed silently; returns standard output.
fn succeed(line: &str) -> String {
    let finished = gemm_on_cpu(line);
    assert_eq!(
        (finished.status, finished.stderr.as_str()),
        (Some(0), ""),
        "{line}"
    );
    finished.stdout
}

#[test]
fn the_cpu_multiplies() {
    let text = succeed("--m 81 --n 70 --k 33");
    for word in ["m 81, n 70, k 33", "accumulation in f32", "cpu", "pass"] {
        assert!(text.contains(word), "{word} is missing in\n{text}");
    }
}

#[test]
fn a_line_of_json_for_each_kernel() {
    let text = succeed("--json --m 300 --n 7 --k 65 --dtype bf16 --check full");
    let outcome = outcome(&text);
    let expected = [("m", 300), ("n", 7), ("k", 65)];
    assert!(expected.iter().all(|(name, size)| outcome[name] == *size));
    assert_eq!(
        (&outcome["kernel"], &outcome["dtype"]),
        (&"cpu".into(), &"bf16".into())
    );
    assert_eq!(outcome["passed"], true);
    let tflops = outcome["tflops"].as_f64().expect("a number");
    let seconds = outcome["median_ms"].as_f64().expect("a number") / 1e3;
    assert!((tflops * seconds * 1e12 / (2.0 * 300.0 * 7.0 * 65.0) - 1.0).abs() < 1e-9);
}

#[test]
fn sizes_of_zero_are_no_error() {
    for sizes in [
        "--m 0 --n 9 --k 9",
        "--m 9 --n 0 --k 9",
        "--m 9 --n 9 --k 0",
        "--m 0 --n 0 --k 0",
    ] {
        succeed(sizes);
    }
}

#[test]
fn the_emulator_runs_every_family() {
    if !ferroattn::internals::ptx::COMPILED {
        return;
    }
    let half = ["gemm_f16_f16_", "gemm_simple_f16_f16"];
    let single = [
        "gemm_hopper_f16_f32_",
        "gemm_f16_f32_",
        "gemm_simple_f16_f32",
    ];
    for (device, acc, expected) in [
        ("emulator", "f16", &half[..]),
        ("emulator", "f32", &single[1..]),
        ("emulator:sm_90", "f16", &half),
        ("emulator:sm_90", "f32", &single),
    ] {
        let line =
            format!("gemm --device {device} --json --m 70 --n 130 --k 37 --acc {acc} --counters");
        let finished = run_line(&line);
        assert_eq!(finished.status, Some(0), "{}", finished.stderr);
        let outcomes = outcomes(&finished.stdout);
        assert_eq!(outcomes.len(), expected.len(), "{line}");
        for (outcome, expected) in outcomes.iter().zip(expected) {
            let kernel = outcome["kernel"].as_str().expect("a name");
            assert!(kernel.starts_with(expected), "{kernel}");
            assert_eq!(
                (&outcome["passed"], &outcome["acc"]),
                (&true.into(), &acc.into())
            );
            assert_eq!(
                outcome["counters"]
                    .as_array()
                    .and_then(|launches| launches.last())
                    .map(|product| (&product["kernel"], &product["bank_conflicts"])),
                Some((&outcome["kernel"], &Value::Array(Vec::new())))
            );
        }
    }
}

#[test]
fn every_number_of_stages_exists() {
    if !ferroattn::internals::ptx::COMPILED {
        return;
    }
    for stages in ["3", "4", "5"] {
        let line = "gemm --device emulator --json --m 16 --n 16 --k 200 --kernel gemm-multistage";
        let line = format!("{line} --stages {stages}");
        let finished = run_line(&line);
        assert_eq!(finished.status, Some(0), "{}", finished.stderr);
        let outcome = outcome(&finished.stdout);
        let kernel = outcome["kernel"].as_str().expect("a name");
        assert!(kernel.ends_with(&format!("x{stages}")), "{kernel}");
    }
}

#[test]
fn what_would_work_is_said() {
    if !ferroattn::internals::ptx::COMPILED {
        return;
    }
    let large = "kernel gemm_f16_f32_256x128x64x3 needs 147456 bytes";
    for (line, reasons) in [
        (
            "--kernel gemm_f16_f32_256x128x64x3",
            [large, "the device has 101376; gemm_f16_f32_"],
        ),
        (
            "--kernel gemm_bf16_f32_256x128x32x3",
            ["is not for f16", "it takes bf16 with"],
        ),
        (
            "--kernel gemm_f16_f16_256x128x32x3",
            [
                "accumulation in f32",
                "it takes f16 with accumulation in f16",
            ],
        ),
        (
            "--kernel gemm_simple_f16_f16 --dtype bf16",
            ["is not for bf16", "it takes f16 with"],
        ),
    ] {
        let line = format!("gemm --device emulator:sm_86 {line}");
        let finished = run_line(&line);
        refused(&line, &finished, &reasons);
    }
}

#[test]
fn what_is_wrong_is_said_in_a_line() {
    let refused = |line: &str, reasons: &[&str]| refused(line, &gemm_on_cpu(line), reasons);
    let mistyped = |line: &str, reasons: &[&str]| mistyped(line, &gemm_on_cpu(line), reasons);
    mistyped("--k 268435457", &["'268435457'", "from 0 to 268435456"]);
    mistyped("--m 3000000000", &["'3000000000'", "from 0 to 2147482624"]);
    refused(
        "--m 2000000000 --n 2000000000",
        &["m, n and k are too large", "free"],
    );
    refused("--dtype bf16 --acc f16", &["f16 is for f16 inputs"]);
    refused("--kernel gemm-multistage", &["type --device emulator"]);
    refused(
        "--kernel gemm-simple --dtype f32",
        &[
            "gemm-simple is not for f32",
            "takes bf16 with accumulation in f32, f16 with",
        ],
    );
    refused(
        "--kernel gemm-multistgae",
        &["did you mean gemm-multistage"],
    );
    refused("--kernel gemm-simple --stages 3", &["has no stages"]);
    for kernel in ["auto", "all", "cpu"] {
        let with = |option| format!("--kernel {kernel} {option}");
        let stages = "--stages is for gemm-multistage; type --device emulator";
        refused(&with("--stages 3"), &[stages]);
        let sums = "--acc f16 is not for the CPU; type --device emulator";
        refused(&with("--acc f16"), &[sums]);
    }
    for option in ["m", "n", "k", "warmup", "iters", "seed"] {
        for wrong in ["-1", "x", "1.5", "18446744073709551616"] {
            let value = format!("'{wrong}' for '--{option} <");
            let allowed = "it must be a whole number from ";
            mistyped(&format!("--{option} {wrong}"), &[&value, allowed]);
        }
    }
    for wrong in ["-1", "2", "9"] {
        let reasons = [&format!("'{wrong}'"), "from 3 to 8"];
        mistyped(&format!("--stages {wrong}"), &reasons);
    }
    mistyped("--iters 0", &["--iters", "from 1 to"]);
    refused("--counters", &["--device emulator"]);
    mistyped("--seqlen 5", &["--seqlen"]);
    mistyped("--acc f64", &["f16", "f32"]);
}
