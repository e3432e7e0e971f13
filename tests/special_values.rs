//! Inputs that break a careless softmax: large scores, rows that see no key, NaN and infinity.

use ferroattn::{Device, Dtype};
use ndarray::s;
use tests::{Case, Layout, Outcome, PASSED, Test};

/// The kernels, dtypes and masks that a case runs with.
pub type Variants<'a> = &'a dyn Fn(&Case) -> Vec<Case>;

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let tests = all().into_iter();
    tests
        .map(|(name, test)| Test::new(name, move |device| test(device, &variants)))
        .collect()
}

type OnVariants = Box<dyn Fn(&Device, Variants) -> Outcome + Send + Sync>;
type Check = fn(&Device, Variants) -> Outcome;

/// The tests by name, for any variants.
pub fn all() -> Vec<(String, OnVariants)> {
    let tests: [(&str, Check); 7] = [
        ("scores_of_1024", scores_of_1024),
        ("scores_of_minus_1024", scores_of_minus_1024),
        ("scores_that_grow", scores_that_grow),
        ("rows_without_keys", rows_without_keys),
        ("rows_without_keys_beside_nan", rows_without_keys_beside_nan),
        ("negative_scale", negative_scale),
        ("every_score_minus_infinity", every_score_minus_infinity),
    ];
    let tests = tests.map(|(name, test)| (name.to_owned(), Box::new(test) as OnVariants));
    let values = [
        ("nan", f32::NAN),
        ("infinity", f32::INFINITY),
        ("minus_infinity", f32::NEG_INFINITY),
    ];
    let spoilt = values.into_iter().flat_map(|(name, value)| {
        ['q', 'k', 'v'].map(|tensor| {
            let test =
                move |device: &Device, variants: Variants| spoilt(device, variants, tensor, value);
            (format!("{name}_in_{tensor}"), Box::new(test) as OnVariants)
        })
    });
    tests.into_iter().chain(spoilt).collect()
}

/// Both dtypes, both masks, a head dim with its own kernel and a padded one, one split and several, and the
/// packed and the decode kernel.
pub fn variants(case: &Case) -> Vec<Case> {
    let dtypes = [Dtype::F16, Dtype::Bf16].into_iter();
    let masks = dtypes.flat_map(|dtype| [(dtype, false), (dtype, true)]);
    let variants = masks.flat_map(|(dtype, causal)| {
        let named = |family| Some(format!("{family}_{}_d64", dtype.name()));
        let schedules = [
            (64, None, 1),
            (104, None, 1),
            (104, None, 3),
            (64, named("packed"), 1),
            (64, named("decode"), 2),
        ];
        schedules.map(|(dim, kernel, splits)| Case {
            dtype,
            causal,
            dim,
            kernel,
            splits,
            ..case.clone()
        })
    });
    variants.collect()
}

/// `exp(1024)` overflows even in `f64`.
fn scores_of_1024(device: &Device, variants: Variants) -> Outcome {
    for case in variants(&Case::default()) {
        let (case, inputs) =
            case.with_scores(1, |_| 0, |_, j| if j % 3 == 0 { 1024.0 } else { -1024.0 });
        case.run(device, &inputs)?;
    }
    PASSED
}

/// `exp(-1024)` is 0 even in `f64`: a softmax without the maximum divides 0 by 0.
fn scores_of_minus_1024(device: &Device, variants: Variants) -> Outcome {
    for case in variants(&Case::default()) {
        let (case, inputs) = case.with_scores(1, |_| 0, |_, _| -1024.0);
        case.run(device, &inputs)?;
    }
    PASSED
}

/// The maximum changes in every block, by so much that earlier keys vanish, or by so little that they must
/// not.
fn scores_that_grow(device: &Device, variants: Variants) -> Outcome {
    for case in variants(&Case {
        seqlen_kv: 300,
        ..Case::default()
    }) {
        for step in [0.0625, 1.0, 16.0] {
            let (case, inputs) = case.with_scores(1, |_| 0, |_, j| step * (j / 16) as f32);
            case.run(device, &inputs)?;
        }
    }
    PASSED
}

fn rows_without_keys(device: &Device, variants: Variants) -> Outcome {
    for (seqlen_q, seqlen_kv) in [(150, 1), (300, 70), (129, 128)] {
        for case in variants(&Case {
            seqlen_q,
            seqlen_kv,
            ..Case::default()
        }) {
            case.check(device)?;
        }
    }
    PASSED
}

/// A NaN that a row does not see must not reach it, not even multiplied by zero.
fn rows_without_keys_beside_nan(device: &Device, variants: Variants) -> Outcome {
    for case in variants(&Case {
        seqlen_q: 300,
        seqlen_kv: 70,
        ..Case::default()
    }) {
        let mut inputs = case.inputs();
        inputs.k.fill(f32::NAN);
        inputs.v.fill(f32::NAN);
        let result = case.run(device, &inputs)?;
        let blind = match case.causal {
            true => case.seqlen_q - case.seqlen_kv,
            false => 0,
        };
        assert!(
            result
                .o
                .slice(s![.., .., ..blind, ..])
                .iter()
                .all(|&o| o == 0.0)
        );
        assert!(
            result
                .o
                .slice(s![.., .., blind.., ..])
                .iter()
                .all(|o| o.is_nan())
        );
        assert!(
            result
                .lse
                .slice(s![.., .., ..blind])
                .iter()
                .all(|&lse| lse == f32::NEG_INFINITY)
        );
    }
    PASSED
}

fn negative_scale(device: &Device, variants: Variants) -> Outcome {
    for case in variants(&Case {
        scale: Some(-0.5),
        ..Case::default()
    }) {
        case.check(device)?;
    }
    PASSED
}

/// One element of one row is not finite, at the ends of tiles and inside them: rows that see it follow the
/// reference, all others are as without it.
fn spoilt(device: &Device, variants: Variants, tensor: char, value: f32) -> Outcome {
    let variants = variants(&Case {
        heads: 2,
        kv_heads: 2,
        v: Layout::Bnhd,
        ..Case::default()
    });
    // On the emulator other places for each variant: variants of a main loop differ in dtype, mask and splits alone.
    let step = match device.is_emulator() {
        true if variants.len() < 10 => 2,
        true => 5,
        false => 1,
    };
    for (number, case) in variants.into_iter().enumerate() {
        let last = (case.seqlen_kv - 1, case.dim - 1);
        let inner = [(0, 0), (15, 5), (64, 63), (100, 33)].into_iter();
        let places = inner.filter(|(row, _)| *row < last.0).chain([last]);
        let first = number + number / 5;
        let places = places
            .enumerate()
            .filter(|(place, _)| (first + place).is_multiple_of(step));
        for (_, (row, element)) in places {
            let mut inputs = case.inputs();
            let spoilt = match tensor {
                'q' => &mut inputs.q,
                'k' => &mut inputs.k,
                _ => &mut inputs.v,
            };
            spoilt[[0, 1, row, element]] = value;
            let result = case.run(device, &inputs)?;

            // The reference's result, in words.
            let sees_it = |i| {
                if tensor == 'q' {
                    i == row
                } else {
                    !case.causal || i >= row
                }
            };
            for ((_, h, i, d), o) in result.o.indexed_iter() {
                let reached = h == 1 && sees_it(i) && (tensor != 'v' || d == element);
                // An infinite q or k may give a score of -inf, which is a weight of 0.
                if tensor == 'v' || value.is_nan() {
                    assert_eq!(!o.is_finite(), reached, "{case} at {:?}", (h, i, d));
                } else {
                    assert!(o.is_finite() || reached, "{case} at {:?}", (h, i, d));
                }
            }
        }
    }
    PASSED
}

/// A row whose visible keys all weigh 0 counts as a row that sees no key.
fn every_score_minus_infinity(device: &Device, variants: Variants) -> Outcome {
    for case in variants(&Case {
        seqlen_kv: 70,
        ..Case::default()
    }) {
        let (case, inputs) = case.with_scores(1, |_| 0, |_, _| f32::NEG_INFINITY);
        let result = case.run(device, &inputs)?;
        assert!(result.o.iter().all(|&o| o == 0.0));
        assert!(result.lse.iter().all(|&lse| lse == f32::NEG_INFINITY));
    }
    PASSED
}
