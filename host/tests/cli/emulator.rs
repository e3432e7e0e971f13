//! Runs on the emulator. Without a compiler at build time there is nothing to emulate, and the
//! command must say so.

use super::*;
use kernels::table::{Dtype, KERNELS};

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
    // All from head dim 64 on, those for other devices too: an A100 has the shared memory.
    let serve = KERNELS.iter().filter(|kernel| {
        kernel.dtype == Dtype::Bf16 && kernel.head_dim >= 64 && kernel.family.serves(true)
    });
    assert_eq!(kernels.len(), serve.count());
    for outcome in &outcomes {
        assert_eq!(outcome["device"], "emulator");
        assert_eq!(outcome["passed"], true);
        assert!(outcome.get("counters").is_none());
    }
}

#[test]
fn splits_are_made_and_told() {
    let line = "--json --heads 4 --kv-heads 1 --seqlen-kv 300 --check full";
    for (options, kernel, splits) in [
        ("--seqlen 3 --splits 3", "decode_f16_d64", 3),
        ("--seqlen 3 --splits 100 --causal", "decode_f16_d64", 5),
        (
            "--seqlen 3 --splits 2 --kernel forward_f16_d128",
            "forward_f16_d128",
            2,
        ),
        ("--seqlen 3 --splits 0", "decode_f16_d64", 1),
        ("--seqlen 50 --splits 2", "packed_f16_d64", 2),
        (
            "--seqlen 3 --splits 2 --kernel packed_f16_d128",
            "packed_f16_d128",
            2,
        ),
    ] {
        let Some(finished) = run_on_emulator(&format!("{line} {options}")) else {
            return;
        };
        let outcome: Value = serde_json::from_str(&finished.stdout).expect("JSON");
        assert_eq!(outcome["kernel"], kernel, "{options}");
        assert_eq!(outcome["splits"], splits, "{options}");
        assert_eq!(outcome["passed"], true, "{options}");
    }
}

/// The class of the device decides the kernel; one that does not fit is refused, with one that does.
#[test]
fn devices_of_every_class_are_emulated() {
    if !attention::ptx::COMPILED {
        return;
    }
    let run_on = |class: &str, options: &str| {
        let shape = "--heads 1 --seqlen 70 --dim 256 --json --check full";
        let line = format!("--device emulator:{class} {shape} {options}");
        let finished = run(&line.split_whitespace().collect::<Vec<_>>());
        (line, finished)
    };
    for (class, kernel) in [
        ("sm_80", "forward_f16_d256_128x32"),
        ("sm_86", "forward_f16_d256_128x16"),
        ("sm_90", "forward_f16_d256"),
        ("sm_100", "forward_f16_d256_128x16"),
    ] {
        let (line, finished) = run_on(class, "");
        assert_eq!(finished.status, Some(0), "{line}: {}", finished.stderr);
        let outcome: Value = serde_json::from_str(&finished.stdout).expect("JSON");
        assert_eq!(outcome["kernel"], kernel);
        assert_eq!(outcome["passed"], true);
    }
    let (line, finished) = run_on("sm_86", "--kernel forward_f16_d256_128x32");
    let reasons = ["131072", "101376", "forward_f16_d256_128x16 would fit"];
    refused(&line, &finished, &reasons);
    let (line, finished) = run_on("sm_75", "");
    refused(&line, &finished, &["emulator:sm_80"]);
}

#[test]
fn combine_kernels_are_not_for_choice() {
    let line = "--device emulator --seqlen 64 --kernel combine_f16";
    let finished = run(&line.split_whitespace().collect::<Vec<_>>());
    if attention::ptx::COMPILED {
        refused(line, &finished, &["combine_f16", "splits"]);
    }
}

#[test]
fn counters_are_printed_on_request() {
    let line = "--heads 1 --seqlen 64 --dim 64 --kernel forward_f16_d64 --counters";
    let Some(finished) = run_on_emulator(line) else {
        return;
    };
    for what in ["warp-instructions: ", "mma: 256 (1048576 FLOP)", "ldmatrix"] {
        assert!(finished.stdout.contains(what), "{}", finished.stdout);
    }
    let finished = run_on_emulator(&format!("{line} --json")).expect("compiled");
    let outcome: Value = serde_json::from_str(&finished.stdout).expect("JSON");
    let counters = &outcome["counters"];
    assert_eq!(counters["mma"], 256);
    assert_eq!(counters["bank_conflicts"], serde_json::json!([]));
    assert!(counters["accesses"][0]["wavefronts"].is_u64());
}

#[test]
fn only_the_emulator_counts() {
    refuse("--counters", &["--counters", "--device emulator"]);
}
