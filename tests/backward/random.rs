//! Random cases against the reference.

use ferroattn::{Device, Dtype};
use proptest::prelude::*;
use tests::strategy::{backward_of, cases, check_each, seqlens};
use tests::{BackwardCase, Case, Outcome, Test};

pub fn tests() -> Vec<Test> {
    vec![
        Test::backward("any", |device| check_random(device, backward_of(cases()))),
        Test::cpu("f32", |device| {
            let in_f32 = |case| Case {
                dtype: Dtype::F32,
                ..case
            };
            check_random(device, backward_of(cases().prop_map(in_f32)))
        }),
        Test::cpu("wide", |device| {
            let wide =
                (cases(), 33..=128_usize, 1..=70_usize).prop_map(|(case, slices, keys)| Case {
                    dim: 8 * slices,
                    seqlen_kv: keys,
                    ..case
                });
            check_random(device, backward_of(wide))
        }),
        Test::backward("causal_unequal_lengths", |device| {
            let unequal = (cases(), seqlens(), seqlens());
            let unequal = unequal.prop_map(|(case, seqlen_q, seqlen_kv)| Case {
                causal: true,
                seqlen_q,
                seqlen_kv,
                ..case
            });
            check_random(device, backward_of(unequal))
        }),
        Test::backward("few_rows", |device| {
            let few = (cases(), 1..=20_usize, 1..=20_usize);
            let few = few.prop_map(|(case, seqlen_q, seqlen_kv)| Case {
                seqlen_q,
                seqlen_kv,
                ..case
            });
            check_random(device, backward_of(few))
        }),
    ]
}

/// Checks as many cases as take some seconds.
fn check_random(device: &Device, cases: impl Strategy<Value = BackwardCase>) -> Outcome {
    let count = match (device.is_emulator(), device.is_cpu()) {
        (true, _) => 14,
        (_, true) => 20,
        _ => 64,
    };
    check_each(count, cases, |case| case.check(device))
}
