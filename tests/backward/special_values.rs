//! Inputs that break a careless gradient: large scores, rows that see no key, NaN and infinity.

use ferroattn::{Device, Dtype};
use ndarray::{Array4, s};
use tests::backward_case::Saved;
use tests::{BackwardCase, BackwardInputs, Case, Outcome, PASSED, Test};

pub fn tests() -> Vec<Test> {
    let mut tests = vec![
        Test::backward("scores_of_1024", scores_of_1024),
        Test::backward("scores_of_minus_1024", scores_of_minus_1024),
        Test::backward("scores_that_grow", scores_that_grow),
        Test::backward("negative_scale", negative_scale),
        Test::backward("large_d_o", large_d_o),
        Test::backward("rows_without_keys", rows_without_keys),
        Test::backward("hidden_values_have_no_part", hidden_values_have_no_part),
        Test::backward("every_score_minus_infinity", every_score_minus_infinity),
    ];
    let values = [
        ("nan", f32::NAN),
        ("infinity", f32::INFINITY),
        ("minus_infinity", f32::NEG_INFINITY),
    ];
    for (name, value) in values {
        for (tensor, name_of_tensor) in TENSORS {
            let name = format!("{name}_in_{name_of_tensor}");
            tests.push(Test::backward(name, move |device| {
                spoilt(device, tensor, value)
            }));
        }
    }
    tests
}

/// Both dtypes and masks, and a head dim with its own kernel and a padded one.
fn variants(case: &Case) -> Vec<BackwardCase> {
    let variants = [
        (Dtype::F16, false, 64),
        (Dtype::F16, true, 104),
        (Dtype::Bf16, true, 64),
        (Dtype::Bf16, false, 200),
    ];
    let variant = |(dtype, causal, dim)| {
        BackwardCase::from(Case {
            dtype,
            causal,
            dim,
            ..case.clone()
        })
    };
    variants.map(variant).into()
}

/// The case with keys and queries that have these scores, and gradients of its seed.
fn with_scores(
    case: &BackwardCase,
    score: impl Fn(usize) -> f32,
) -> (BackwardCase, BackwardInputs) {
    let (forward, inputs) = case.forward.with_scores(1, |_| 0, |_, j| score(j));
    let case = BackwardCase {
        forward,
        ..case.clone()
    };
    let inputs = case.inputs_with(inputs);
    (case, inputs)
}

/// `exp(1024)` overflows even in `f64`.
fn scores_of_1024(device: &Device) -> Outcome {
    for case in variants(&Case::default()) {
        let (case, inputs) = with_scores(&case, |j| if j % 3 == 0 { 1024.0 } else { -1024.0 });
        case.run(device, &inputs)?;
    }
    PASSED
}

/// `exp(-1024)` is 0 even in `f64`.
fn scores_of_minus_1024(device: &Device) -> Outcome {
    for case in variants(&Case::default()) {
        let (case, inputs) = with_scores(&case, |_| -1024.0);
        case.run(device, &inputs)?;
    }
    PASSED
}

fn scores_that_grow(device: &Device) -> Outcome {
    for case in variants(&Case {
        seqlen_kv: 300,
        ..Case::default()
    }) {
        for step in [0.0625, 16.0] {
            let (case, inputs) = with_scores(&case, |j| step * (j / 16) as f32);
            case.run(device, &inputs)?;
        }
    }
    PASSED
}

fn negative_scale(device: &Device) -> Outcome {
    for case in variants(&Case {
        scale: Some(-0.5),
        ..Case::default()
    }) {
        case.check(device)?;
    }
    PASSED
}

/// Gradients of size 1000, whose products have size 10,000.
fn large_d_o(device: &Device) -> Outcome {
    for case in variants(&Case::default()) {
        let mut inputs = case.inputs();
        inputs.d_o *= 100.0;
        case.run(device, &inputs)?;
    }
    PASSED
}

/// Their dq is 0, exactly, and their lse of -inf reaches no other gradient.
fn rows_without_keys(device: &Device) -> Outcome {
    for (seqlen_q, seqlen_kv) in [(150, 1), (300, 70), (129, 128)] {
        for case in variants(&Case {
            seqlen_q,
            seqlen_kv,
            ..Case::default()
        }) {
            let case = BackwardCase {
                d_lse: true,
                ..case
            };
            let found = case.run(device, &case.inputs())?;
            let blind = blind_rows(&case);
            assert!(
                found
                    .dq
                    .slice(s![.., .., ..blind, ..])
                    .iter()
                    .all(|&dq| dq == 0.0)
            );
        }
    }
    PASSED
}

fn blind_rows(case: &BackwardCase) -> usize {
    match case.forward.causal {
        true => case.forward.seqlen_q - case.forward.seqlen_kv,
        false => 0,
    }
}

/// Whatever rows hold that see no key, and keys that no row sees yet, other gradients are bit for bit the same: not
/// even 0 * NaN reaches them.
fn hidden_values_have_no_part(device: &Device) -> Outcome {
    for case in variants(&Case {
        heads: 2,
        kv_heads: 1,
        seqlen_q: 300,
        seqlen_kv: 70,
        ..Case::default()
    }) {
        let case = BackwardCase {
            d_lse: true,
            ..case
        };
        let right = case.run(device, &case.inputs())?;
        let blind = blind_rows(&case);
        for value in [f32::NAN, f32::INFINITY] {
            let mut inputs = case.inputs();
            for tensor in [&mut inputs.forward.q, &mut inputs.d_o] {
                tensor.slice_mut(s![.., .., ..blind, ..]).fill(value);
            }
            inputs.d_lse.slice_mut(s![.., .., ..blind]).fill(value);
            assert_eq!(case.run(device, &inputs)?, right, "{case}");
        }
        // The last key is seen by the last row alone, if there is a mask.
        let mut inputs = case.inputs();
        let last = case.forward.seqlen_kv - 1;
        inputs
            .forward
            .k
            .slice_mut(s![.., .., last, ..])
            .fill(f32::NAN);
        inputs
            .forward
            .v
            .slice_mut(s![.., .., last, ..])
            .fill(f32::NAN);
        let found = case.run(device, &inputs)?;
        if case.forward.causal {
            let others = s![.., .., ..case.forward.seqlen_q - 1, ..];
            assert_eq!(found.dq.slice(others), right.dq.slice(others));
        }
    }
    PASSED
}

/// A row whose visible keys all weigh 0 counts as a row that sees no key.
fn every_score_minus_infinity(device: &Device) -> Outcome {
    for case in variants(&Case {
        seqlen_kv: 70,
        ..Case::default()
    }) {
        let (case, inputs) = with_scores(&case, |_| f32::NEG_INFINITY);
        let found = case.run(device, &inputs)?;
        let all = found.dq.iter().chain(&found.dk).chain(&found.dv);
        assert!({ all }.all(|&x| x == 0.0), "{case}");
    }
    PASSED
}

/// A tensor that the backward pass reads.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Tensor {
    Q,
    K,
    V,
    DO,
    DLse,
    O,
    Lse,
}

const TENSORS: [(Tensor, &str); 7] = [
    (Tensor::Q, "q"),
    (Tensor::K, "k"),
    (Tensor::V, "v"),
    (Tensor::DO, "d_o"),
    (Tensor::DLse, "d_lse"),
    (Tensor::O, "o"),
    (Tensor::Lse, "lse"),
];

/// One element of one row is not finite, at the ends of blocks and inside them. Which gradients are not finite then
/// follows from the definition.
fn spoilt(device: &Device, tensor: Tensor, value: f32) -> Outcome {
    let variants = variants(&Case {
        heads: 2,
        kv_heads: 2,
        ..Case::default()
    });
    for (number, case) in variants.into_iter().enumerate() {
        let case = BackwardCase {
            d_lse: true,
            ..case
        };
        let last = (case.forward.seqlen_kv - 1, case.forward.dim - 1);
        let places = [(0, 0), (15, 5), (64, 63), (100, 33), last];
        // On the emulator another place for each variant.
        let first = if device.is_emulator() { number } else { 0 };
        let step = if device.is_emulator() { 3 } else { 1 };
        for (row, element) in places.into_iter().skip(first).step_by(step) {
            spoilt_at(device, &case, tensor, value, [row, element])?;
        }
    }
    PASSED
}

fn spoilt_at(
    device: &Device,
    case: &BackwardCase,
    tensor: Tensor,
    value: f32,
    [row, element]: [usize; 2],
) -> Outcome {
    let mut inputs = case.inputs();
    let at = [0, 1, row, element];
    match tensor {
        Tensor::Q => inputs.forward.q[at] = value,
        Tensor::K => inputs.forward.k[at] = value,
        Tensor::V => inputs.forward.v[at] = value,
        Tensor::DO => inputs.d_o[at] = value,
        Tensor::DLse => inputs.d_lse[[0, 1, row]] = value,
        Tensor::O | Tensor::Lse => (),
    }
    // The reference finds its own o and lse.
    let mut is_given = matches!(tensor, Tensor::O | Tensor::Lse);
    let (found, report) = case.run_with(device, &inputs, |saved: &mut Saved| match tensor {
        Tensor::O => saved.o[at] = value,
        Tensor::Lse => saved.lse[[0, 1, row]] = value,
        // A row without weight adds 0 * infinity to dk, or nothing.
        Tensor::Q => is_given = saved.lse[[0, 1, row]] == f32::NEG_INFINITY,
        _ => (),
    })?;
    if !is_given && !report.passed() {
        return Err(report.into());
    }

    let causal = case.forward.causal;
    let sees = |i: usize, j: usize| !causal || j <= i;
    // Rows whose dS is not finite.
    let spoils_row = |i: usize| match tensor {
        Tensor::K | Tensor::V => sees(i, row),
        _ => i == row,
    };
    let spoils_key = |j: usize| (0..case.forward.seqlen_q).any(|i| spoils_row(i) && sees(i, j));
    let spoils_p = matches!(tensor, Tensor::Q | Tensor::K | Tensor::Lse);
    let dv_of =
        |j: usize, d: usize| spoils_key(j) && (spoils_p || tensor == Tensor::DO && d == element);
    // An infinite q or k may give a score of -inf, and an infinite lse a P of 0: a weight of 0.
    let may_be_finite = spoils_p && !value.is_nan();
    let expect = |name: &str, found: &Array4<f32>, reached: &dyn Fn(usize, usize) -> bool| {
        for ((_, h, i, d), x) in found.indexed_iter() {
            let reached = h == 1 && reached(i, d);
            let right = match may_be_finite {
                true => x.is_finite() || reached,
                false => x.is_finite() != reached,
            };
            assert!(
                right,
                "{case}: {name}{:?} is {x}, with {tensor:?} {at:?}",
                (h, i, d)
            );
        }
    };
    expect("dq", &found.dq, &|i, _| spoils_row(i));
    expect("dk", &found.dk, &|j, _| spoils_key(j));
    expect("dv", &found.dv, &dv_of);
    PASSED
}
