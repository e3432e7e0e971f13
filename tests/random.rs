//! Random cases against the reference.

use ferroattn::Dtype;
use proptest::prelude::*;
use tests::strategy::{cases, check_random, seqlens};
use tests::{Case, Layout, Test};

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    vec![
        Test::new("any", |device| check_random(device, cases())),
        Test::cpu("f32", |device| {
            let in_f32 = |case| Case {
                dtype: Dtype::F32,
                ..case
            };
            check_random(device, cases().prop_map(in_f32))
        }),
        Test::new("causal_unequal_lengths", |device| {
            let lengths = (cases(), seqlens(), seqlens());
            check_random(
                device,
                lengths.prop_map(|(case, seqlen_q, seqlen_kv)| Case {
                    causal: true,
                    seqlen_q,
                    seqlen_kv,
                    ..case
                }),
            )
        }),
        Test::new("one_query", |device| {
            check_random(
                device,
                cases().prop_map(|case| Case {
                    seqlen_q: 1,
                    ..case
                }),
            )
        }),
        Test::new("aligned", |device| {
            let plain = |case| Case {
                q: Layout::Bnhd,
                k: Layout::Bnhd,
                v: Layout::Bnhd,
                o: Layout::Bnhd,
                ..case
            };
            check_random(device, cases().prop_map(plain))
        }),
    ]
}
