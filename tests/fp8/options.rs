//! Windows, bounds of scores, sinks and sequences in FP8, of inputs of 16 bits and of e4m3.

use super::{e4m3, in_fp8};
use ferroattn::{Attention, Device, Dtype, Fp8, Sequences, Tensor, Window, f16};
use libtest_mimic::Failed;
use ndarray::{Array4, s};
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
        Test::new("tiny_softcap", tiny_softcap),
        Test::new("narrow_windows", windows),
        Test::new("wide_windows", wide_windows),
        Test::new("special_sinks", special_sinks),
        Test::new("unseen_rows", unseen_rows),
        Test::new("padding_changes_nothing", padding_changes_nothing),
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
            dim_v: None,
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
    for (i, window) in [(0, 0), (3, 0), (130, 5), (1, 200)].into_iter().enumerate() {
        for seqlens in [(300, 40), (200, 700)] {
            in_window(device, i, seqlens, window)?;
        }
    }
    PASSED
}

/// Windows of several whole blocks of keys between two edges, at each head dim.
fn wide_windows(device: &Device) -> Outcome {
    for i in 0..3 {
        in_window(device, i, (100, 1000), (600, 5))?;
    }
    PASSED
}

/// Runs a case with a window, on 16 bits and on e4m3.
fn in_window(
    device: &Device,
    i: usize,
    (seqlen_q, seqlen_kv): (usize, usize),
    (left, right): (usize, usize),
) -> Outcome {
    let case = in_fp8(Case {
        seqlen_q,
        seqlen_kv,
        dim: [64, 128, 256][i % 3],
        modifiers: Modifiers {
            window: Window {
                left: Some(left),
                right: Some(right),
            },
            sinks: i.is_multiple_of(2),
            ..Modifiers::default()
        },
        ..Case::default()
    });
    case.check(device)?;
    e4m3::check(device, &case, false)?;
    PASSED
}

/// Sinks of any size: of the largest one nothing is left of a row, of the lowest ones it stays. Some rows see no key.
fn special_sinks(device: &Device) -> Outcome {
    let sinks = [f32::NEG_INFINITY, f32::MAX, f32::MIN];
    let case = Case {
        heads: sinks.len(),
        kv_heads: 1,
        seqlen_q: 70,
        seqlen_kv: 60,
        ..Case::default()
    };
    let inputs = case.inputs();
    let upload = |x: &Array4<f32>| {
        let numbers: Vec<f16> = x.iter().map(|&x| f16::from_f32(x)).collect();
        Tensor::new(device, x.dim().into(), &numbers)
    };
    let (q, k, v) = (upload(&inputs.q)?, upload(&inputs.k)?, upload(&inputs.v)?);
    let of_heads = Tensor::new(device, [sinks.len()], &sinks)?;
    let call = Attention::new().window(20, 0);
    let with_sinks = call.sinks(&of_heads);
    let [plain, plain_lse] = results(&call.clone().fp8(Fp8::new()), [&q, &k, &v])?;
    let [o, lse] = results(&with_sinks.fp8(Fp8::new()), [&q, &k, &v])?;
    let rows = o
        .chunks(64)
        .zip(plain.chunks(64))
        .zip(lse.iter().zip(&plain_lse));
    for (i, ((o, plain), (&lse, &plain_lse))) in rows.enumerate() {
        let sink = sinks[i / case.seqlen_q];
        let sees_none = plain_lse == f32::NEG_INFINITY;
        let is_right = match sink {
            f32::NEG_INFINITY => o == plain && lse == plain_lse,
            f32::MIN if !sees_none => o == plain && lse == plain_lse,
            f32::MIN => o == plain && lse < -1e38,
            _ => o.iter().all(|&x| x == 0.0) && lse > 1e38,
        };
        if !is_right {
            return Err(format!("row {i}, sink {sink}: lse {lse}, {plain_lse} without").into());
        }
    }
    PASSED
}

/// o and lse of a call.
fn results(call: &Attention, [q, k, v]: [&Tensor<f16>; 3]) -> ferroattn::Result<[Vec<f32>; 2]> {
    let (o, lse) = call.forward(q, k, v)?;
    let o = o.to_vec()?.into_iter().map(f16::to_f32).collect();
    Ok([o, lse.to_vec()?])
}

/// A bound far below all products, and keys of 0: their scores stay 0.
fn tiny_softcap(device: &Device) -> Outcome {
    let case = in_fp8(Case {
        dtype: Dtype::Bf16,
        modifiers: Modifiers {
            softcap: Some(1e-13),
            ..Modifiers::default()
        },
        ..Case::default()
    });
    let mut inputs = case.inputs();
    for tensor in [&mut inputs.q, &mut inputs.k] {
        *tensor *= 1e15;
    }
    inputs.k.slice_mut(s![.., .., 3, ..]).fill(0.0);
    case.run(device, &inputs)?;
    PASSED
}

/// Two padded entries, whose first one begins with key 30 and ends at 180, and the keys of no sequence.
pub fn padded() -> (Case, Vec<[usize; 2]>) {
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

/// A padded call has the bits of the call without padding, whose values have a mean.
fn padding_changes_nothing(device: &Device) -> Outcome {
    let case = Case {
        seqlen_q: 70,
        seqlen_kv: 256,
        ..Case::default()
    };
    let mut inputs = case.inputs();
    inputs.v += 1.0;
    let upload = |x: &Array4<f32>, keys: usize| {
        let (batch, heads, rows, dim) = x.dim();
        let mut padded = Array4::from_elem((batch, heads, keys, dim), -60000.0);
        padded.slice_mut(s![.., .., ..rows, ..]).assign(x);
        let numbers: Vec<f16> = padded.iter().map(|&x| f16::from_f32(x)).collect();
        Tensor::new(device, [batch, heads, keys, dim], &numbers)
    };
    let q = upload(&inputs.q, 70)?;
    let of = |keys| Ok::<_, ferroattn::Error>([upload(&inputs.k, keys)?, upload(&inputs.v, keys)?]);
    let ([k, v], [padded_k, padded_v]) = (of(256)?, of(700)?);
    let call = Attention::new().fp8(Fp8::new());
    let plain = results(&call, [&q, &k, &v])?;
    let [of_q, of_kv] = [70, 256].map(|length| Tensor::new(device, [1], &[length]));
    let (of_q, of_kv) = (of_q?, of_kv?);
    let padded = results(&call.padded(&of_q, &of_kv), [&q, &padded_k, &padded_v])?;
    match plain == padded {
        true => PASSED,
        false => Err("other bits".into()),
    }
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
