//! Latent attention: one key of 576 elements for all heads, whose first 512 are the value, in memory too.

use crate::maxima::walks;
use crate::special_values;
use ferroattn::{Class, Device, Dtype, Sequences};
use ndarray::s;
use proptest::prelude::*;
use tests::modifiers::Pages;
use tests::strategy::{cases, check_some, few, few_queries, paged, sequenced};
use tests::{Case, Inputs, Layout, Modifiers, Outcome, PASSED, Test};

/// The tests of this file: those of the kernel alone run where it is, others also where values in keys are like any.
pub fn tests() -> Vec<Test> {
    let mut of_kernel = vec![
        Test::new("any", |device| check(device, few_queries(cases()))),
        Test::new("any_of_sequences", |device| {
            check(device, sequenced(few_queries(cases())))
        }),
        Test::new("any_of_pages", |device| {
            check(device, paged(sequenced(few_queries(cases()))))
        }),
        Test::new("walks", |device| {
            let cases = few_queries(cases()).prop_map(Case::latent);
            walks(device, few(device, 12), cases)
        }),
        Test::new("heads", heads),
        Test::new("growing", growing),
        Test::new("queries_without_numbers", queries_without_numbers),
    ];
    // The others count on values that are not in keys.
    let special = special_values::all().into_iter();
    let special =
        special.filter(|(name, _)| !name.contains("_in_") && name != "every_score_minus_infinity");
    of_kernel.extend(
        special.map(|(name, special)| Test::new(name, move |device| special(device, &variants))),
    );
    let emulated = of_kernel
        .iter()
        .filter_map(|test| test.emulated_as(Class::Sm90));
    let mut tests: Vec<_> = emulated.collect();
    tests.extend(of_kernel.into_iter().map(Test::on_gpus));
    tests.extend(Test::and_on_hopper(vec![
        Test::new("lengths", lengths),
        Test::new("pages", pages),
        Test::new("uneven", uneven),
        Test::new("values_behind_the_mask", values_behind_the_mask),
    ]));
    tests
}

fn check(device: &Device, cases: impl Strategy<Value = Case>) -> Outcome {
    check_some(device, few(device, 10), cases.prop_map(Case::latent))
}

/// Both dtypes and masks, with splits and without.
fn variants(case: &Case) -> Vec<Case> {
    let case = Case {
        heads: 2,
        seqlen_q: case.seqlen_q.div_ceil(2),
        ..case.clone()
    };
    let variants = case.with_each([
        (Dtype::F16, false, 576, 1),
        (Dtype::Bf16, true, 576, 2),
        (Dtype::F16, true, 576, 1),
    ]);
    variants.map(Case::latent).to_vec()
}

/// 16 and 128 heads of one query and of several, and numbers that fill no tile; a row between two tiles.
fn heads(device: &Device) -> Outcome {
    for (i, (heads, seqlen_q, seqlen_kv)) in [
        (16, 1, 200),
        (16, 4, 193),
        (128, 1, 129),
        (1, 1, 65),
        (5, 3, 300),
        (13, 5, 64),
        (48, 3, 70),
        (16, 9, 4),
    ]
    .into_iter()
    .enumerate()
    {
        for (causal, splits) in [(true, 1), (false, 2), (true, 3)] {
            let case = Case {
                dtype: [Dtype::F16, Dtype::Bf16][i % 2],
                batch: 2,
                heads,
                seqlen_q,
                seqlen_kv,
                causal,
                scale: (i % 4 == 1).then_some(-0.05),
                splits,
                ..Case::default()
            };
            case.latent().check(device)?;
        }
    }
    PASSED
}

/// Lengths around the stages and their pairs, of one query and of four.
fn lengths(device: &Device) -> Outcome {
    for (seqlen_q, splits) in [(1, 0), (4, 0), (4, 1), (4, 2)] {
        let kv = vec![0, 1, 3, 31, 32, 33, 63, 64, 65, 96, 97, 160];
        let case = Case {
            batch: kv.len(),
            heads: 16,
            seqlen_q,
            seqlen_kv: 160,
            causal: true,
            modifiers: Modifiers {
                sequences: Some(Sequences::Padded {
                    q: (0..kv.len()).map(|i| 1 + (i % seqlen_q) as i32).collect(),
                    kv,
                }),
                ..Modifiers::default()
            },
            splits,
            ..Case::default()
        };
        case.latent().check(device)?;
    }
    PASSED
}

/// A case of pages with so many keys each, in any order; numbers behind the last key are any.
pub fn case_of_pages(keys: usize, seqlen_q: usize) -> Case {
    let most = 320_usize.div_ceil(keys);
    let lengths = [3 * most * keys / 4 + 1, most * keys / 3];
    let number = |entry: usize, index: usize| match index * keys < lengths[entry] {
        true => ((index * 2 + entry) * 7 % (2 * most)) as i32,
        false => [-1, i32::MAX][index % 2],
    };
    let of = (0..2).flat_map(|entry| (0..most).map(move |index| number(entry, index)));
    Case {
        batch: 2,
        heads: 16,
        seqlen_q,
        seqlen_kv: most * keys,
        causal: true,
        modifiers: Modifiers {
            sequences: Some(Sequences::Padded {
                q: vec![seqlen_q as i32, 1],
                kv: lengths.map(|length| length as i32).into(),
            }),
            pages: Some(Pages {
                count: 2 * most,
                keys,
                of: of.collect(),
            }),
            ..Modifiers::default()
        },
        ..Case::default()
    }
    .latent()
}

/// Pages of each size: of less than 8 keys another kernel takes them. Rows that no query sees are NaN.
fn pages(device: &Device) -> Outcome {
    for log2 in 0..8 {
        for seqlen_q in [1, 4] {
            let case = Case {
                dtype: [Dtype::F16, Dtype::Bf16][log2 % 2],
                k: [Layout::Bhnd, Layout::Bnhd][log2 % 2],
                ..case_of_pages(1 << log2, seqlen_q)
            };
            case.check(device)?;
        }
    }
    PASSED
}

/// Many entries, of which the longest has most of the keys: blocks take units.
fn uneven(device: &Device) -> Outcome {
    uneven_case().check(device)
}

/// Maxima that grow in blocks of both warpgroups.
fn growing(device: &Device) -> Outcome {
    for splits in [1, 2] {
        let case = Case {
            heads: 16,
            seqlen_q: 4,
            seqlen_kv: 400,
            causal: true,
            splits,
            ..Case::default()
        };
        let (case, inputs) = rising(&case.latent());
        case.run(device, &inputs)?;
    }
    PASSED
}

/// Nine entries, of which one has no key, and one more than all others.
pub fn uneven_case() -> Case {
    let kv = vec![1400, 0, 3, 64, 200, 129, 511, 17, 70];
    Case {
        batch: kv.len(),
        heads: 20,
        seqlen_q: 4,
        seqlen_kv: 1500,
        causal: true,
        modifiers: Modifiers {
            sequences: Some(Sequences::Padded {
                q: vec![4, 4, 2, 1, 0, 4, 3, 4, 4],
                kv,
            }),
            ..Modifiers::default()
        },
        ..Case::default()
    }
    .latent()
}

/// A key that the last query alone sees, with an infinity or a NaN, in each half of the values and behind them.
fn values_behind_the_mask(device: &Device) -> Outcome {
    for (column, value) in [
        (0, f32::NAN),
        (255, f32::INFINITY),
        (256, f32::NEG_INFINITY),
        (511, f32::NAN),
        (575, f32::NAN),
    ] {
        for (seqlen_kv, splits) in [(40, 1), (64, 1), (65, 1), (97, 2), (200, 1)] {
            let (case, inputs) = hidden_infinity(seqlen_kv, splits, (column, value));
            case.run(device, &inputs)
                .map_err(|failed| format!("{case}: {}", failed.message().unwrap_or_default()))?;
        }
    }
    PASSED
}

/// A case whose last key, which the last query alone sees, has such a value in a column.
pub fn hidden_infinity(
    seqlen_kv: usize,
    splits: u32,
    (column, value): (usize, f32),
) -> (Case, Inputs) {
    let case = Case {
        heads: 16,
        seqlen_q: 4,
        seqlen_kv,
        causal: true,
        splits,
        ..Case::default()
    }
    .latent();
    let mut inputs = case.inputs();
    let place = s![.., .., seqlen_kv - 1, column];
    inputs.k.slice_mut(place).fill(value);
    (case, inputs)
}

/// The case with scores that grow from block to block, so that maxima change in each of the first 8, of every third query only.
pub fn rising(case: &Case) -> (Case, Inputs) {
    let grows = |kind, key: usize| match kind {
        0 => ((key / 32).min(7) * 16) as f32,
        _ => 0.0,
    };
    case.with_scores(2, |query| usize::from(query % 3 > 0), grows)
}

/// A query with a NaN or an infinity, which reaches its own row alone.
fn queries_without_numbers(device: &Device) -> Outcome {
    for value in [f32::NAN, f32::INFINITY] {
        let case = Case {
            heads: 16,
            seqlen_q: 4,
            seqlen_kv: 150,
            causal: true,
            ..Case::default()
        }
        .latent();
        let mut inputs = case.inputs();
        inputs.q[[0, 5, 2, 570]] = value;
        let found = case.run(device, &inputs)?;
        for ((_, head, query, column), o) in found.o.indexed_iter() {
            let is_spoilt = (head, query) == (5, 2);
            assert_eq!(o.is_nan(), is_spoilt, "{head}, {query}, {column}");
        }
    }
    PASSED
}
