//! Windows, bounds of scores, sinks and sequences in FP8, of inputs of 16 bits and of e4m3.

use super::{e4m3, in_fp8};
use ferroattn::{Device, Dtype, Sequences, Window};
use libtest_mimic::Failed;
use ndarray::s;
use proptest::prelude::*;
use tests::strategy::{cases, check_each, check_some, few, modified, sequenced};
use tests::{Case, Modifiers, Outcome, PASSED, Test};

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    vec![
        Test::new("options", |device| {
            check_some(device, few(device, 25), any())
        }),
        Test::new("options_of_e4m3", |device| {
            check_each(few(device, 15), any(), |case| {
                e4m3::check(device, &case, case.modifiers.hadamard)?;
                PASSED
            })
        }),
        Test::new("softcaps_of_any_size", softcaps),
        Test::new("narrow_windows", windows),
        Test::new("unseen_rows", unseen_rows),
        Test::new("values_before_a_window", values_before_a_window),
    ]
}

/// Random cases with at least one option, or with sequences.
fn any() -> impl Strategy<Value = Case> {
    let cases = prop_oneof![
        modified(cases()),
        sequenced(cases()),
        sequenced(modified(cases())),
    ];
    (cases, proptest::bool::weighted(0.3)).prop_map(|(mut case, hadamard)| {
        case.modifiers.hadamard = hadamard;
        let mut case = in_fp8(case);
        // An option of another kind was the only one.
        let modifiers = &mut case.modifiers;
        let has_none = Modifiers {
            fp8: false,
            hadamard: false,
            ..modifiers.clone()
        };
        modifiers.sinks |= has_none.are_off();
        case
    })
}

/// Softcaps far below the scores, and so far above them that there might be none.
fn softcaps(device: &Device) -> Outcome {
    for (i, softcap) in [1e-40, 1e-10, 0.01, 30.0, 1e3, 1e6, 1e20, 3e38]
        .into_iter()
        .enumerate()
    {
        let case = Case {
            dtype: [Dtype::F16, Dtype::Bf16][i % 2],
            dim: [64, 128, 256][i % 3],
            scale: Some(0.5),
            modifiers: Modifiers {
                softcap: Some(softcap),
                ..Modifiers::default()
            },
            ..Case::default()
        };
        in_fp8(case.clone()).check(device)?;
        e4m3::check(device, &in_fp8(case), false)?;
    }
    PASSED
}

/// Windows narrower than a block of keys, more rows than keys, and rows that see none, with sinks and without.
fn windows(device: &Device) -> Outcome {
    for (i, (left, right)) in [(0, 0), (3, 0), (130, 5), (1, 200)].into_iter().enumerate() {
        for (seqlen_q, seqlen_kv) in [(300, 40), (200, 700)] {
            let case = in_fp8(Case {
                seqlen_q,
                seqlen_kv,
                dim: [64, 128, 256][i % 3],
                modifiers: Modifiers {
                    window: Window {
                        left: Some(left),
                        right: Some(right),
                    },
                    sinks: i % 2 == 0,
                    ..Modifiers::default()
                },
                ..Case::default()
            });
            case.check(device)?;
            e4m3::check(device, &case, false)?;
        }
    }
    PASSED
}

/// Two padded entries, whose first one begins with key 30 and ends at 180, and the keys of no sequence.
fn padded() -> (Case, Vec<[usize; 2]>) {
    let case = in_fp8(Case {
        batch: 2,
        heads: 2,
        kv_heads: 2,
        seqlen_q: 150,
        seqlen_kv: 300,
        dim: 128,
        causal: true,
        modifiers: Modifiers {
            sequences: Some(Sequences::Padded {
                q: vec![150, 40],
                kv: vec![180, 260],
            }),
            first_keys: Some(vec![30, 0]),
            ..Modifiers::default()
        },
        ..Case::default()
    });
    let of_first = (0..30).chain(180..300).map(|key| [0, key]);
    (
        case,
        of_first.chain((260..300).map(|key| [1, key])).collect(),
    )
}

/// Keys that no query sees change nothing: NaN and the largest numbers count for no scale and no mean.
pub fn unseen_rows(device: &Device) -> Outcome {
    let (case, unseen) = padded();
    let mut inputs = case.inputs();
    for (i, &[entry, key]) in unseen.iter().enumerate() {
        let number = [f32::NAN, 60000.0, f32::NEG_INFINITY][i % 3];
        for tensor in [&mut inputs.k, &mut inputs.v] {
            tensor.slice_mut(s![entry, .., key, ..]).fill(number);
        }
    }
    case.run(device, &inputs)?;
    e4m3::check_unseen(device, &case, &unseen)?;
    PASSED
}

/// Values that are not finite, before and in windows of rows, at both ends of blocks of keys and of groups of 16.
fn values_before_a_window(device: &Device) -> Outcome {
    for (dtype, dim) in [(Dtype::F16, 64), (Dtype::Bf16, 128), (Dtype::F16, 256)] {
        let case = in_fp8(Case {
            dtype,
            seqlen_q: 200,
            seqlen_kv: 500,
            dim,
            modifiers: Modifiers {
                window: Window {
                    left: Some(140),
                    right: Some(20),
                },
                ..Modifiers::default()
            },
            ..Case::default()
        });
        spoilt(device, &case)?;
    }
    PASSED
}

/// Runs a case with values that are not finite at some keys.
pub fn spoilt(device: &Device, case: &Case) -> Result<(), Failed> {
    let mut inputs = case.inputs();
    let keys = [0, 127, 128, 143, 250, 255, 256, 281, 383, 499];
    for (i, key) in keys
        .into_iter()
        .filter(|&key| key < case.seqlen_kv)
        .enumerate()
    {
        let number = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][i % 3];
        inputs.v[[0, 0, key, 7 * i % case.dim]] = number;
    }
    case.run(device, &inputs).map(drop)
}
