//! Splits of the keys: any number of them gives the same attention.

use ferroattn::Device;
use ndarray::{Axis, s};
use tests::strategy::{cases, check_random, few_queries, scheduled};
use tests::{Case, Outcome, PASSED, Test};

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    vec![
        Test::new("any", |device| {
            check_random(device, scheduled(device, cases()))
        }),
        Test::new("few_queries", |device| {
            check_random(device, few_queries(cases()))
        }),
        Test::new("few_queries_any", |device| {
            check_random(device, scheduled(device, few_queries(cases())))
        }),
        Test::new("splits_without_keys", splits_without_keys),
        Test::new("nan_in_a_split_not_seen", nan_in_a_split_not_seen),
        Test::new("one_key_in_the_last_split", one_key_in_the_last_split),
        Test::new("splits_weigh_by_their_scores", splits_weigh_by_their_scores),
        Test::new("equal_huge_scores", equal_huge_scores),
        Test::new("rows_of_many_parts", rows_of_many_parts),
    ]
}

/// The case with its forward, packed and decode kernel.
fn by_each(case: &Case) -> [Case; 3] {
    let name = |family: &str, suffix| Some(format!("{family}_f16_d{}{suffix}", case.dim));
    let suffix = if case.causal { "_causal" } else { "" };
    [
        name("forward", suffix),
        name("packed", ""),
        name("decode", ""),
    ]
    .map(|kernel| Case {
        kernel,
        ..case.clone()
    })
}

/// Under the causal mask the first rows see no key of the last splits and, where queries outnumber keys, no
/// key at all.
fn splits_without_keys(device: &Device) -> Outcome {
    for (seqlen_q, seqlen_kv) in [(400, 400), (300, 140), (10, 400), (200, 65)] {
        for splits in [2, 3, 7] {
            for case in by_each(&Case {
                heads: 2,
                kv_heads: 1,
                seqlen_q,
                seqlen_kv,
                causal: true,
                splits,
                ..Case::default()
            }) {
                case.check(device)?;
            }
        }
    }
    PASSED
}

/// Rows that see no key of the last split must not change with it, although other rows of their tile see it.
fn nan_in_a_split_not_seen(device: &Device) -> Outcome {
    for case in by_each(&Case {
        seqlen_q: 200,
        seqlen_kv: 200,
        causal: true,
        splits: 4,
        ..Case::default()
    }) {
        for value in [f32::NAN, f32::INFINITY] {
            let mut inputs = case.inputs();
            inputs.k.slice_mut(s![.., .., 195.., ..]).fill(value);
            inputs.v.slice_mut(s![.., .., 195.., ..]).fill(value);
            let result = case.run(device, &inputs)?;
            let of = |rows: std::ops::Range<usize>| {
                result
                    .o
                    .slice(s![.., .., rows, ..])
                    .iter()
                    .copied()
                    .collect::<Vec<f32>>()
            };
            assert!(of(0..195).iter().all(|o| o.is_finite()), "{case}");
            assert!(of(195..200).iter().all(|o| !o.is_finite()), "{case}");
        }
    }
    PASSED
}

fn one_key_in_the_last_split(device: &Device) -> Outcome {
    for case in by_each(&Case {
        seqlen_q: 5,
        seqlen_kv: 64 * 4 + 1,
        splits: u32::MAX,
        ..Case::default()
    }) {
        let mut inputs = case.inputs();
        // This key outweighs all others.
        inputs.q.fill(1.0);
        inputs.k.slice_mut(s![.., .., 256, ..]).fill(4.0);
        inputs.v.slice_mut(s![.., .., 256, ..]).fill(100.0);
        case.run(device, &inputs)?;
    }
    PASSED
}

/// A split weighs as much as its keys. Here splits have equally many keys, but each weighs twice as much as
/// the split before, and has its own value.
fn splits_weigh_by_their_scores(device: &Device) -> Outcome {
    for case in by_each(&Case {
        seqlen_q: 3,
        seqlen_kv: 512,
        splits: 8,
        scale: Some(1.0),
        ..Case::default()
    }) {
        let mut inputs = case.inputs();
        inputs.q.fill(0.0);
        inputs.q.slice_mut(s![.., .., .., 0]).fill(1.0);
        for (j, mut key) in inputs.k.axis_iter_mut(Axis(2)).enumerate() {
            key.slice_mut(s![.., .., 0])
                .fill((j / 64) as f32 * 2_f32.ln());
        }
        for (j, mut value) in inputs.v.axis_iter_mut(Axis(2)).enumerate() {
            value.fill((j / 64) as f32);
        }
        let result = case.run(device, &inputs)?;
        // The weights are 1, 2, 4 ... 128, the values 0, 1, 2 ... 7.
        let expected = (0..8).map(|i| f64::from(i << i)).sum::<f64>() / 255.0;
        for &o in &result.o {
            assert!(
                (f64::from(o) - expected).abs() < 0.01,
                "{case}: {o}, not {expected}"
            );
        }
    }
    PASSED
}

/// Scores so large that their log-sum-exp in one f32 loses the digits that count the keys: all keys must
/// still weigh the same.
fn equal_huge_scores(device: &Device) -> Outcome {
    for score in [60_000.0, -60_000.0] {
        for case in by_each(&Case {
            seqlen_q: 3,
            // Splits of different lengths.
            seqlen_kv: 64 * 4 + 17,
            splits: 5,
            scale: Some(1.0),
            ..Case::default()
        }) {
            let mut inputs = case.inputs();
            inputs.q.fill(0.0);
            inputs.q.slice_mut(s![.., .., .., 0]).fill(64.0);
            inputs.k.slice_mut(s![.., .., .., 0]).fill(score / 64.0);
            for (j, mut value) in inputs.v.axis_iter_mut(Axis(2)).enumerate() {
                value.fill((j % 2) as f32 + (j / 64) as f32);
            }
            let result = case.run(device, &inputs)?;
            let mean = inputs.v.slice(s![0, 0, .., 0]).mean().expect("keys");
            for &o in &result.o {
                assert!((o - mean).abs() <= 2e-3, "{case}: {o}, not {mean}");
            }
        }
    }
    PASSED
}

/// So many rows of several parts of 128 columns that a warp combines a whole row, up to 512 columns at a time.
fn rows_of_many_parts(device: &Device) -> Outcome {
    for (seqlen_q, dim) in [(1100, 400), (600, 1000)] {
        for splits in [2, 5] {
            let case = Case {
                seqlen_q,
                seqlen_kv: 330,
                dim,
                splits,
                ..Case::default()
            };
            case.check(device)?;
        }
    }
    PASSED
}
