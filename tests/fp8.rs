//! Attention in FP8: against the exact result of rounded inputs.

use ferroattn::{Class, Device, Dtype};
use proptest::prelude::*;
use tests::strategy::{cases, check_some, few};
use tests::{Case, Modifiers, Outcome, PASSED, Test};

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let of_kernels = vec![
        Test::new("any", |device| {
            check_some(device, few(device, 10), cases().prop_map(in_fp8))
        }),
        Test::new("lengths", lengths),
        Test::new("heads", heads),
    ];
    let emulated = of_kernels
        .iter()
        .filter_map(|test| test.emulated_as(Class::Sm90));
    let mut tests: Vec<_> = emulated.collect();
    tests.extend(of_kernels.into_iter().map(Test::on_gpus));
    tests
}

/// The case in FP8.
fn in_fp8(case: Case) -> Case {
    Case {
        modifiers: Modifiers {
            fp8: true,
            ..Modifiers::default()
        },
        kernel: None,
        splits: 0,
        ..case
    }
}

/// Lengths around tiles of queries and blocks of keys, and around groups of 16 keys.
fn lengths(device: &Device) -> Outcome {
    for (i, (seqlen_q, seqlen_kv)) in [
        (1, 1),
        (63, 15),
        (64, 16),
        (65, 17),
        (192, 127),
        (193, 128),
        (191, 129),
        (200, 300),
        (3, 520),
    ]
    .into_iter()
    .enumerate()
    {
        for causal in [false, true] {
            let case = Case {
                dtype: [Dtype::F16, Dtype::Bf16][i % 2],
                seqlen_q,
                seqlen_kv,
                dim: [64, 128, 256][i % 3],
                causal,
                ..Case::default()
            };
            in_fp8(case).check(device)?;
        }
    }
    PASSED
}

/// Grouped heads, several entries, head dims that are padded, and a negative scale.
fn heads(device: &Device) -> Outcome {
    for (i, (batch, heads, kv_heads, dim)) in
        [(2, 4, 2, 40), (1, 6, 1, 72), (3, 2, 2, 136), (2, 3, 3, 9)]
            .into_iter()
            .enumerate()
    {
        let case = Case {
            dtype: [Dtype::F16, Dtype::Bf16][i % 2],
            batch,
            heads,
            kv_heads,
            seqlen_q: 100,
            seqlen_kv: 140,
            dim,
            causal: i % 2 == 0,
            scale: (i % 2 == 1).then_some(-0.2),
            ..Case::default()
        };
        in_fp8(case).check(device)?;
    }
    PASSED
}
