//! Tensors whose rows do not start at multiples of 16 bytes, one by one and all together.
//!
//! A GPU's kernel reads a copy of such an input. Each input is also misaligned alone: a copy of the wrong
//! tensor, or to a wrong place, must show although its neighbours are copied too.

use ferroattn::{Device, Dtype};
use tests::{Case, Layout, Outcome, PASSED, Test};

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let tensors: [(&str, &[usize]); 8] = [
        ("q", &[0]),
        ("k", &[1]),
        ("v", &[2]),
        ("o", &[3]),
        ("q_and_k", &[0, 1]),
        ("k_and_v", &[1, 2]),
        ("inputs", &[0, 1, 2]),
        ("all", &[0, 1, 2, 3]),
    ];
    let tests = tensors.into_iter().enumerate();
    let tests = tests
        .map(|(number, (name, odd))| Test::new(name, move |device| check(device, odd, number)));
    tests.chain([Test::new("broadcasts", broadcasts)]).collect()
}

/// Families of kernels, and splits.
const SCHEDULES: [(&str, u32); 6] = [
    ("forward", 1),
    ("forward", 3),
    ("packed", 1),
    ("packed", 3),
    ("decode", 1),
    ("decode", 2),
];

/// Several batches and heads of ragged lengths, by a forward, a packed and a decode kernel, with and without
/// splits. A pack kernel copies tiles of 64 rows.
fn variants() -> impl Iterator<Item = Case> {
    let lengths = [(70, 150), (129, 64), (1, 65), (5, 129)];
    let variants = lengths.into_iter().enumerate().flat_map(|(i, lengths)| {
        let dtype = [Dtype::F16, Dtype::Bf16][i % 2];
        SCHEDULES.map(|(family, splits)| (lengths, dtype, family, splits))
    });
    variants.map(|((seqlen_q, seqlen_kv), dtype, family, splits)| {
        let causal = splits > 1;
        let mask = if causal && family == "forward" {
            "_causal"
        } else {
            ""
        };
        Case {
            dtype,
            batch: 2,
            heads: 4,
            kv_heads: 2,
            seqlen_q,
            seqlen_kv,
            // Five 16-byte chunks a row: a warp's share of a copy ends inside a row.
            dim: 40,
            causal,
            kernel: Some(format!("{family}_{}_d64{mask}", dtype.name())),
            splits,
            ..Case::default()
        }
    })
}

/// Misaligns the tensors `odd` of q, k, v and o, in every odd layout; the others are aligned. On the emulator another layout
/// for each variant: each schedule comes with four lengths, and with each layout in some of the tests.
fn check(device: &Device, odd: &[usize], test: usize) -> Outcome {
    for (variant, case) in variants().enumerate() {
        let length = variant / SCHEDULES.len();
        let layouts = match device.is_emulator() {
            true => Layout::ODD[(test + variant + length) % Layout::ODD.len()..]
                .iter()
                .take(1),
            false => Layout::ODD.iter().take(Layout::ODD.len()),
        };
        for &layout in layouts {
            let layout = |tensor| match odd.contains(&tensor) {
                true => layout,
                false => Layout::Bnhd,
            };
            Case {
                q: layout(0),
                k: layout(1),
                v: layout(2),
                o: layout(3),
                ..case.clone()
            }
            .check(device)?;
        }
    }
    PASSED
}

/// Misaligned inputs whose rows or heads share memory (strides of zero).
fn broadcasts(device: &Device) -> Outcome {
    for case in variants() {
        for (q, k, v) in [
            (Layout::OddBroadcast, Layout::Bhnd, Layout::OddBroadcast),
            (Layout::OneRow, Layout::OddBroadcast, Layout::OddRows),
            (Layout::Shifted, Layout::OneRow, Layout::OneRow),
        ] {
            Case {
                q,
                k,
                v,
                ..case.clone()
            }
            .check(device)?;
        }
    }
    PASSED
}
