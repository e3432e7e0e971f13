//! Every test that runs alike on every device; with `FERROATTN_CASE` set to a case as a failed test
//! printed it, that case alone.

mod alignment;
mod append;
mod backward;
mod backward_rows;
mod bulk_copy;
mod caches;
mod classes;
mod counters;
mod csr;
mod decoder;
mod definition;
mod e4m3_cache;
mod empty;
mod emulated;
mod errors;
mod far_scores;
mod fp8;
mod gemm;
mod head_dims;
mod hopper_packed;
mod invariance;
mod kernels;
#[cfg(feature = "ladder")]
mod ladder;
mod large_offsets;
mod latent;
mod lengths;
mod maxima;
mod merge;
mod mutants;
mod options;
mod other_devices;
mod packed_queries;
mod pages;
mod prefix;
mod random;
mod real_data;
mod repeats;
mod sequences;
mod special_values;
mod splits;
mod streams;
mod views;
mod wide;

use std::process::ExitCode;
use tests::{BackwardCase, Case, Test, harness};

fn main() -> ExitCode {
    if let Ok(case) = std::env::var("FERROATTN_CASE") {
        // A backward case holds a forward case; no field of a forward case is required.
        let test = match serde_json::from_str::<BackwardCase>(&case) {
            Ok(case) => Test::new("case", move |device| case.check(device)),
            Err(_) => {
                let case = serde_json::from_str::<Case>(&case);
                let case = case.expect("a case as a failed test printed it");
                Test::new("case", move |device| case.check(device))
            }
        };
        return harness::main([("printed", vec![test])]);
    }
    harness::main([
        ("alignment", alignment::tests()),
        ("append", append::tests()),
        ("backward", backward::tests()),
        ("backward_rows", backward_rows::tests()),
        ("bulk_copy", bulk_copy::tests()),
        ("caches", caches::tests()),
        ("classes", classes::tests()),
        ("counters", counters::tests()),
        ("csr", csr::tests()),
        ("decoder", decoder::tests()),
        ("definition", definition::tests()),
        ("emulated", emulated::tests()),
        ("empty", empty::tests()),
        ("errors", errors::tests()),
        ("far_scores", far_scores::tests()),
        ("e4m3_cache", e4m3_cache::tests()),
        ("fp8", fp8::tests()),
        ("gemm", gemm::tests()),
        ("head_dims", head_dims::tests()),
        ("hopper_packed", hopper_packed::tests()),
        ("invariance", invariance::tests()),
        ("kernels", kernels::tests()),
        #[cfg(feature = "ladder")]
        ("ladder", ladder::tests()),
        ("large_offsets", large_offsets::tests()),
        ("latent", latent::tests()),
        ("lengths", lengths::tests()),
        ("maxima", maxima::tests()),
        ("merge", merge::tests()),
        ("mutants", mutants::tests()),
        ("options", options::tests()),
        ("other_devices", other_devices::tests()),
        ("packed_queries", packed_queries::tests()),
        ("pages", pages::tests()),
        ("prefix", prefix::tests()),
        ("random", random::tests()),
        ("real_data", real_data::tests()),
        ("repeats", repeats::tests()),
        ("sequences", sequences::tests()),
        ("special_values", special_values::tests()),
        ("splits", splits::tests()),
        ("streams", streams::tests()),
        ("views", views::tests()),
        ("wide", wide::tests()),
    ])
}
