//! Runs on the emulator. A program that was built without a kernel compiler must say that it has no
//! kernels.

use super::*;
use kernels::catalog::select::is_wide;
use kernels::catalog::{Dtype, KERNELS};
use ladder::Rung;

fn run_on_emulator(line: &str) -> Option<Finished> {
    let device = if line.contains("--device") {
        ""
    } else {
        "--device emulator"
    };
    let line = format!("{device} {line}");
    let finished = run_line(&line);
    if ferroattn::internals::ptx::COMPILED {
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
    let outcomes = outcomes(&finished.stdout);
    let kernels: Vec<_> = outcomes.iter().map(|o| &o["kernel"]).collect();
    assert_eq!(kernels[0], "forward_bf16_d64_causal");
    // All from head dim 64 on, also kernels for other devices: an A100 has the shared memory.
    let serve = KERNELS.iter().filter(|kernel| {
        kernel.forward().is_some_and(|forward| {
            let serves = forward.kind.mask.serves(true) && !is_wide(forward.dim);
            let serves = serves && !kernel.takes_maps() && !forward.reads_e4m3();
            forward.dtype == Dtype::Bf16 && forward.dim >= 64 && serves
        })
    });
    assert_eq!(kernels.len(), serve.count());
    for outcome in &outcomes {
        assert_eq!(outcome["device"], "emulator");
        assert_eq!(outcome["passed"], true);
        assert!(outcome.get("counters").is_none());
    }
}

/// The objects of a `--json` run of kernels of the ladder.
fn ladder(line: &str) -> Option<Vec<Value>> {
    let line = format!("--json --heads 1 --seqlen 40 --seqlen-kv 70 --check full {line}");
    let finished = run_on_emulator(&line)?;
    let outcomes = outcomes(&finished.stdout);
    for outcome in &outcomes {
        assert_eq!(outcome["passed"], true, "{line}: {outcome}");
    }
    Some(outcomes)
}

/// Names of the kernels of the ladder that `filter` takes.
fn rungs(filter: fn(Rung) -> bool) -> Vec<&'static str> {
    let rungs = Rung::ALL.iter().filter(|&&rung| filter(rung));
    rungs.map(|rung| rung.name()).collect()
}

/// `--kernel ladder` runs all kernels that serve; with an option, all that have it.
#[test]
fn the_ladder_is_all_that_serve() {
    for (line, expected) in [
        ("", rungs(|rung| !rung.is_for_hopper())),
        (
            "--device emulator:sm_90 --dtype bf16 --causal",
            rungs(|_| true),
        ),
        ("--dim 264", rungs(|rung| rung.max_dim() > 256)),
        ("--stages 1", rungs(Rung::has_options)),
        ("--swizzle none", rungs(Rung::has_options)),
        ("--acc f16", rungs(Rung::has_options)),
        ("--o-store shuffle --splits 2", rungs(Rung::has_options)),
    ] {
        let Some(outcomes) = ladder(&format!("--kernel ladder {line}")) else {
            return;
        };
        // The options follow the name.
        let name = |outcome: &Value| {
            let kernel = outcome["kernel"].as_str().expect("a name");
            kernel.split(':').next().expect("one part").to_owned()
        };
        let kernels: Vec<_> = outcomes.iter().map(name).collect();
        assert_eq!(kernels, expected, "{line}");
    }
}

/// The scores of `naive` are part of the memory that is needed, though no input or output has their size.
#[test]
fn workspaces_beyond_the_memory_are_refused() {
    if !ferroattn::internals::ptx::COMPILED {
        return;
    }
    for seqlen in ["2000000", "2147482624"] {
        let line = format!("--device emulator --kernel naive --heads 1 --dim 8 --seqlen {seqlen}");
        let finished = run_line(&line);
        let reasons = ["seqlen and dim are too large", "memory on emulator", "free"];
        refused(&line, &finished, &reasons);
    }
}

#[test]
fn kernels_of_the_ladder_take_options() {
    for (line, kernel) in [
        ("--kernel naive", "naive"),
        ("--kernel fa1 --splits 2", "fa1"),
        (
            "--kernel split-kv --stages 1 --swizzle none",
            "split-kv:stages=1:swizzle=none",
        ),
        (
            "--kernel split-q --stages 3 --swizzle pad",
            "split-q:stages=3:swizzle=pad",
        ),
        (
            "--kernel shared-kv --acc f16 --o-store direct",
            "shared-kv:acc=f16:o-store=direct",
        ),
        (
            "--kernel shared-qkv --stages 2 --swizzle q --acc f32 --o-store shared --splits 2",
            "shared-qkv:stages=2:swizzle=q:acc=f32:o-store=shared",
        ),
        (
            "--kernel tiled-qk --swizzle qk --o-store shuffle --causal --dim 512",
            "tiled-qk:swizzle=qk:o-store=shuffle",
        ),
        (
            "--kernel tiled-qk --stages 1 --dim 264",
            "tiled-qk:stages=1",
        ),
    ] {
        let Some(outcomes) = ladder(line) else {
            return;
        };
        assert_eq!(outcomes.len(), 1, "{line}");
        assert_eq!(outcomes[0]["kernel"], kernel);
        // Those without options do not split.
        let splits = if kernel.starts_with("shared-qkv") {
            2
        } else {
            1
        };
        assert_eq!(outcomes[0]["splits"], splits, "{line}");
    }
}

#[test]
fn kernels_of_the_ladder_refuse_what_they_do_not_have() {
    if !ferroattn::internals::ptx::COMPILED {
        return;
    }
    let names = "split-kv, split-q, shared-kv, shared-qkv, tiled-qk, tiled-qkv";
    let options = &format!("these have: {names}");
    let wide = "naive, tiled-qk, tiled-qkv serve up to 1024";
    for (line, reasons) in [
        (
            "--kernel naive --stages 3",
            ["kernel naive has no option stages", options],
        ),
        (
            "--kernel fa1 --swizzle pad",
            ["kernel fa1 has no option swizzle", options],
        ),
        (
            "--kernel naive --acc f16",
            ["kernel naive has no option acc", options],
        ),
        (
            "--kernel fa1 --o-store direct",
            ["kernel fa1 has no option o-store", options],
        ),
        (
            "--kernel auto --stages 2",
            ["--kernel auto takes no --stages", names],
        ),
        (
            "--kernel all --acc f16",
            ["--kernel all takes no --acc", names],
        ),
        (
            "--kernel shared-kv --acc f16 --dtype bf16",
            ["f16 for dtype f16 only", "acc f32"],
        ),
        (
            "--kernel ladder --acc f16 --dtype bf16",
            ["f16 for dtype f16 only", "acc f32"],
        ),
        (
            "--kernel split-q --dim 264",
            ["split-q serves dim up to 256, not 264", wide],
        ),
        (
            "--kernel fa1 --dim 1024",
            ["fa1 serves dim up to 256, not 1024", wide],
        ),
        (
            "--kernel forward_f16_d256 --dim 264",
            ["forward_f16_d256", "up to 256, not 264"],
        ),
        (
            "--kernel tiled-qkx",
            ["there is no kernel \"tiled-qkx\"", "tiled-qkv"],
        ),
        (
            "--kernel ladder --output o.safetensors",
            ["--output takes the result of one kernel", "runs 8"],
        ),
        (
            "--kernel split-q --stages 3 --dim 256 --device emulator:sm_86",
            ["split-q needs", "would fit"],
        ),
        (
            "--kernel tma --device emulator:sm_86",
            ["tma is for compute capability 9.0", "has 8.6"],
        ),
    ] {
        let device = if line.contains("--device") {
            ""
        } else {
            "--device emulator"
        };
        let line = format!("{device} --heads 1 --seqlen 64 {line}");
        let finished = run_line(&line);
        refused(&line, &finished, &reasons);
    }
}

#[test]
fn splits_are_made_and_told() {
    let line = "--json --heads 4 --kv-heads 1 --seqlen-kv 300 --check full";
    for (options, kernel, splits) in [
        ("--seqlen 3 --splits 3", "decode_f16_d64", 3),
        ("--seqlen 3 --splits 100 --causal", "decode_f16_d64", 7),
        (
            "--seqlen 3 --splits 2 --kernel forward_f16_d128",
            "forward_f16_d128",
            2,
        ),
        ("--seqlen 3 --splits 0", "decode_f16_d64", 3),
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
        let outcome = outcome(&finished.stdout);
        assert_eq!(outcome["kernel"], kernel, "{options}");
        assert_eq!(outcome["splits"], splits, "{options}");
        assert_eq!(outcome["passed"], true, "{options}");
    }
    for (option, name) in [
        ("--batch-invariant", "batch_invariant"),
        ("--split-keys 64", "split_keys"),
    ] {
        let line = format!("--device emulator --seqlen 3 --splits 2 {option}");
        let reason = format!("splits cannot be combined with {name}");
        refused(&line, &run_line(&line), &[&reason]);
    }
}

/// A bias and a mask of random numbers, and a bias under a softcap.
#[test]
fn biases_and_masks_reach_the_kernels() {
    let sizes = "--heads 2 --kv-heads 1 --seqlen 70 --seqlen-kv 90 --bias --mask --pass both";
    let Some(finished) = run_on_emulator(&format!("{sizes} --json --check full")) else {
        return;
    };
    let outcomes = outcomes(&finished.stdout);
    let kernels: Vec<_> = outcomes.iter().map(|o| &o["kernel"]).collect();
    assert_eq!(kernels, ["optional_f16_d64", "backward_optional_f16_d64"]);
    for outcome in &outcomes {
        assert_eq!(outcome["passed"], true, "{outcome}");
        assert_eq!(
            (&outcome["bias"], &outcome["mask"]),
            (&"f16".into(), &"bytes".into())
        );
    }
    let finished = run_on_emulator(&format!("{sizes} --softcap 3 --check full"));
    let table = finished.expect("kernels").stdout;
    assert_eq!(table.matches("pass ").count(), 2 + 1, "{table}");
}

#[test]
fn values_have_a_head_dim_of_their_own_on_kernels() {
    let line = "--heads 1 --seqlen 70 --dim-v 128 --pass both --json --check full";
    let Some(finished) = run_on_emulator(line) else {
        return;
    };
    let outcomes = outcomes(&finished.stdout);
    let kernels: Vec<_> = outcomes.iter().map(|o| &o["kernel"]).collect();
    let backward = "backward_optional_f16_d128_64x32";
    assert_eq!(kernels, ["optional_f16_d128", backward]);
    for outcome in &outcomes {
        assert_eq!(outcome["passed"], true, "{outcome}");
    }
}

/// The class of the device decides the kernel. A kernel that does not fit is refused, and one that fits
/// is named.
#[test]
fn devices_of_every_class_are_emulated() {
    if !ferroattn::internals::ptx::COMPILED {
        return;
    }
    let run_on = |class: &str, options: &str| {
        let shape = "--heads 1 --seqlen 70 --dim 256 --json --check full";
        let line = format!("--device emulator:{class} {shape} {options}");
        let finished = run_line(&line);
        (line, finished)
    };
    for (class, kernel) in [
        ("sm_80", "forward_f16_d256_128x32"),
        ("sm_86", "forward_f16_d256_128x16"),
        ("sm_90", "hopper_f16_d256"),
        ("sm_100", "forward_f16_d256_128x16"),
    ] {
        let (line, finished) = run_on(class, "");
        assert_eq!(finished.status, Some(0), "{line}: {}", finished.stderr);
        let outcome = outcome(&finished.stdout);
        assert_eq!(outcome["kernel"], kernel);
        assert_eq!(outcome["passed"], true);
    }
    let (line, finished) = run_on("sm_86", "--kernel forward_f16_d256_128x32");
    let reasons = ["131072", "101376", "forward_f16_d256_128x16 would fit"];
    refused(&line, &finished, &reasons);
    let (line, finished) = run_on("sm_75", "");
    mistyped(&line, &finished, &["emulator:sm_80"]);
}

#[test]
fn combine_kernels_are_not_for_choice() {
    let line = "--device emulator --seqlen 64 --kernel combine_f16";
    let finished = run_line(line);
    if ferroattn::internals::ptx::COMPILED {
        refused(line, &finished, &["combine_f16", "splits"]);
    }
}

#[test]
fn counters_are_printed_on_request() {
    let line = "--heads 1 --seqlen 64 --dim 64 --kernel forward_f16_d64 --counters";
    let Some(finished) = run_on_emulator(line) else {
        return;
    };
    for what in [
        "warp-instructions: ",
        "mma: 256 (1048576 FLOP)",
        "for each mma: instructions ",
        ", ldmatrix 0.",
        ", shared_wavefronts ",
    ] {
        assert!(finished.stdout.contains(what), "{}", finished.stdout);
    }
    // Times of the emulator say nothing about the kernel.
    assert!(!finished.stdout.contains("FLOP/s"), "{}", finished.stdout);
    let finished = run_on_emulator(&format!("{line} --json")).expect("compiled");
    let outcome = outcome(&finished.stdout);
    let counters = &outcome["counters"][0];
    assert_eq!(counters["kernel"], "forward_f16_d64");
    assert_eq!(counters["mma"], 256);
    let executed = counters["instructions"].as_object().expect("kinds");
    let executed: u64 = executed.values().filter_map(Value::as_u64).sum();
    assert_eq!(counters["per_mma"]["instructions"], executed as f64 / 256.0);
    assert_eq!(outcome["tflops"], Value::Null);
    assert_eq!(counters["bank_conflicts"], serde_json::json!([]));
    assert!(counters["accesses"][0]["wavefronts"].is_u64());
}

/// Each launch has its own name; earlier calls are not counted.
#[test]
fn every_launch_of_a_call_is_counted() {
    for (options, expected) in [
        (
            "--kernel split-q --splits 2",
            &["split_q_f16_d64", "combine_f16"][..],
        ),
        (
            "--kernel split-q --splits 1 --iters 2",
            &["split_q_f16_d64"],
        ),
        ("--kernel fa1", &["fa1_f16_d64", "combine_f16"]),
        ("--kernel naive", &["naive_f16"; 3]),
    ] {
        let line = format!("--heads 1 --seqlen 100 --seqlen-kv 300 --counters {options}");
        let Some(finished) = run_on_emulator(&format!("{line} --json")) else {
            return;
        };
        let outcome = outcome(&finished.stdout);
        let launches = outcome["counters"].as_array().expect("launches");
        let kernels = launches
            .iter()
            .map(|l| l["kernel"].as_str().expect("a name"));
        let kernels: Vec<_> = kernels.collect();
        assert_eq!(kernels, expected, "{options}");
        // The naive kernel does without tensor cores.
        let multiplies = launches[0]["mma"].as_u64() > Some(0);
        assert_eq!(multiplies, kernels[0] != "naive_f16", "{options}");
        let table = run_on_emulator(&line).expect("compiled").stdout;
        for (i, kernel) in expected.iter().enumerate() {
            let heading = format!(", launch {} of {}: {kernel}", i + 1, expected.len());
            assert!(table.contains(&heading), "{heading} is not in: {table}");
        }
    }
}

/// Equal findings are one line of the table; in JSON each PTX line stands for itself.
#[test]
fn equal_bank_conflicts_are_told_once() {
    let line = "--heads 1 --seqlen 64 --dim 64 --kernel split-q --swizzle none --counters";
    let Some(finished) = run_on_emulator(line) else {
        return;
    };
    let told = finished.stdout.lines();
    let told: Vec<_> = told
        .filter(|line| line.starts_with("bank conflicts: "))
        .collect();
    let finished = run_on_emulator(&format!("{line} --json")).expect("compiled");
    let outcome = outcome(&finished.stdout);
    let places = outcome["counters"][0]["bank_conflicts"]
        .as_array()
        .map(Vec::len);
    let places = places.expect("conflicts without a swizzle");
    assert!(
        !told.is_empty() && told.len() * 4 <= places,
        "{places} {told:?}"
    );
    assert!(
        told.iter()
            .any(|line| line.contains(" instructions, PTX lines ")),
        "{told:?}"
    );
}

#[test]
fn only_the_emulator_counts() {
    refuse("--counters", &["--counters", "--device emulator"]);
}
