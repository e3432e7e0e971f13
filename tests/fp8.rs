//! Attention in FP8: against the exact result of rounded inputs.

pub mod e4m3;
pub mod options;
pub mod output;
mod rounded;

use crate::repeats::repeat;
use crate::special_values;
use ferroattn::{Class, Device, Dtype, Fp8, Problem, Rounded, bf16, f16};
use ndarray::{Array1, Array2, Array4, Axis, s};
use proptest::prelude::*;
use tests::strategy::{cases, check_some, few};
use tests::{Case, Layout, Outcome, PASSED, Test};

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let mut everywhere = vec![
        Test::new("any", |device| {
            check_some(device, few(device, 10), cases().prop_map(in_fp8))
        }),
        Test::new("lengths", lengths),
        Test::new("heads", heads),
        Test::new("steep", |device| {
            variants(&Case::default())
                .iter()
                .try_for_each(|case| steep(device, case))?;
            PASSED
        }),
        Test::new("far", |device| {
            variants(&Case::default())
                .iter()
                .try_for_each(|case| far(device, case))?;
            PASSED
        }),
        Test::new("hidden", |device| {
            let case = Case {
                causal: true,
                ..in_fp8(Case::default())
            };
            hidden(device, &case)?;
            PASSED
        }),
        Test::new("flat", |device| {
            [64, 128, 256]
                .into_iter()
                .try_for_each(|dim| flat(device, dim))?;
            PASSED
        }),
        Test::new("largest_sums", largest_sums),
        Test::new("constant", constant),
        Test::new("outliers", |device| outliers(device, in_fp8)),
        Test::new("no_more_than_rounding", no_more_than_rounding),
        Test::new("rotated", |device| {
            check_some(
                device,
                few(device, 10),
                cases().prop_map(in_fp8).prop_map(rotated),
            )
        }),
        Test::new("rotated_outliers", |device| outliers(device, rotated)),
        Test::new("repeats", |device| {
            repeat::<f16>(
                device,
                &in_fp8(Case {
                    dim: 128,
                    ..Case::default()
                }),
            )
        }),
    ];
    // An infinite key is NaN in e4m3.
    let special = special_values::all().into_iter();
    let special = special.filter(|(name, _)| name != "every_score_minus_infinity");
    everywhere.extend(special.map(|(name, special)| {
        Test::new(name, move |device| special(device, &variants_on(device)))
    }));
    everywhere.extend(e4m3::tests());
    everywhere.extend(options::tests());
    everywhere.extend(output::tests());
    let of_workspaces = [
        Test::new("rounded_f16", rounded::rounded::<f16>),
        Test::new("rounded_bf16", rounded::rounded::<bf16>),
    ];
    let emulated = everywhere.iter().chain(&of_workspaces);
    let emulated = emulated.filter_map(|test| test.emulated_as(Class::Sm90));
    let mut tests: Vec<_> = emulated.collect();
    tests.push(Test::emulator(
        "e4m3_one_level_loses_more",
        e4m3::one_level_loses_more,
    ));
    tests.extend(everywhere.into_iter().map(Test::not_emulated));
    tests.extend(of_workspaces.into_iter().map(Test::on_gpus));
    let long = Test::new(
        "e4m3_loses_little_of_any_length",
        e4m3::loses_little_of_any_length,
    );
    tests.push(long.on_gpus());
    tests.push(Test::cpu("in_f32", |device| {
        let in_f32 = cases().prop_map(|case| Case {
            dtype: Dtype::F32,
            ..in_fp8(case)
        });
        check_some(device, 20, in_f32)
    }));
    tests
}

/// The case in FP8, by the best kernel.
pub fn in_fp8(case: Case) -> Case {
    Case {
        kernel: None,
        ..case.in_fp8()
    }
}

/// The case in FP8, with q and k rotated.
fn rotated(mut case: Case) -> Case {
    case.modifiers.hadamard = true;
    case
}

/// Both dtypes and masks, and all head dims.
fn variants(case: &Case) -> Vec<Case> {
    let variants = case.with_each([
        (Dtype::F16, false, 64, 0),
        (Dtype::Bf16, true, 128, 0),
        (Dtype::F16, true, 256, 0),
    ]);
    variants.map(in_fp8).to_vec()
}

/// All variants, or on the CPU, which has one loop for all head dims, those of the smaller ones.
fn variants_on(device: &Device) -> impl Fn(&Case) -> Vec<Case> {
    let count = if device.is_cpu() { 2 } else { 3 };
    move |case| variants(case).into_iter().take(count).collect()
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

/// Grouped heads, several entries, head dims that are padded, a negative scale, and q in layouts that no tensor map describes.
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
            q: [
                Layout::Bnhd,
                Layout::Reversed,
                Layout::Shifted,
                Layout::OneRow,
            ][i],
            ..Case::default()
        };
        in_fp8(case).check(device)?;
    }
    PASSED
}

/// Scores that rise and fall from block to block, for some rows by far: maxima follow, and O is scaled.
pub fn steep(device: &Device, case: &Case) -> Result<(), libtest_mimic::Failed> {
    let case = Case {
        seqlen_kv: 700,
        ..case.clone()
    };
    let mut inputs = case.inputs();
    for (key, mut keys) in inputs.k.axis_iter_mut(Axis(2)).enumerate() {
        let factor = [3.0, 0.2, 8.0, 1.0, 0.01, 4.0][key / 128];
        keys *= factor;
    }
    for (row, mut queries) in inputs.q.axis_iter_mut(Axis(2)).enumerate() {
        queries *= [1.0, 0.001, 6.0][row % 3];
    }
    case.run(device, &inputs).map(drop)
}

/// [Steep](steep) scores of which many rows' are so far from 0 that pairs of f16 do not hold them, beside rows near 0.
pub fn far(device: &Device, case: &Case) -> Result<(), libtest_mimic::Failed> {
    let scale = Some(3.0);
    steep(
        device,
        &Case {
            scale,
            ..case.clone()
        },
    )
}

/// Keys that all count alike, with large values of one sign and then of the other: sums that f16 does not hold, unless probabilities become
/// smaller.
pub fn flat(device: &Device, dim: usize) -> Result<(), libtest_mimic::Failed> {
    let case = in_fp8(Case {
        seqlen_q: 70,
        seqlen_kv: 9600,
        dim,
        ..Case::default()
    });
    let mut inputs = case.inputs();
    inputs.q.slice_mut(s![.., .., ..40, ..]).fill(0.0);
    inputs.k *= 0.1;
    // Below 2, and their mean about 0: they keep their size.
    inputs.v.mapv_inplace(|v| 1.8 + 0.04 * v.clamp(-3.0, 3.0));
    inputs
        .v
        .slice_mut(s![.., .., 4800.., ..])
        .mapv_inplace(|v| -v);
    case.run(device, &inputs).map(drop)
}

/// The largest sums that references leave: probabilities of 4.27, which e4m3 rounds up to 4.5, in as many blocks as that takes, and 54.4 in the
/// last block, beside values that are rounded up to 2. Keys of no weight take the mean out of these.
fn largest_sums(device: &Device) -> Outcome {
    for (dim, blocks) in [(64, 45), (128, 42), (128, 45), (256, 45)] {
        let case = in_fp8(Case {
            seqlen_q: 64,
            seqlen_kv: 128 * (2 * blocks + 2),
            dim,
            scale: Some(std::f32::consts::LN_2),
            ..Case::default()
        });
        let mut inputs = case.inputs();
        let (flat, last) = (128 * (blocks + 2), case.seqlen_kv - 1);
        inputs.q.fill(0.0);
        inputs.q.slice_mut(s![.., .., .., ..2]).fill(1.0);
        inputs.k.fill(0.0);
        // Scores of two parts, for e4m3 has no number between.
        for (keys, parts) in [
            (0..128, [2.75, 1.0 / 64.0]),
            (128..flat, [-60.0, 0.0]),
            (flat..last, [-0.875, -1.0 / 32.0]),
        ] {
            for (part, score) in parts.into_iter().enumerate() {
                let of_keys = s![.., .., keys.clone(), part];
                inputs.k.slice_mut(of_keys).fill(score);
            }
        }
        inputs.v.fill(1.99);
        inputs.v.slice_mut(s![.., .., 128..flat, ..]).fill(-1.99);
        case.run(device, &inputs)?;
    }
    PASSED
}

/// A column of values that are all one large number, whose mean f32 does not hold once it is divided by the scale of what is left.
fn constant(device: &Device) -> Outcome {
    for seqlen_kv in [1, 300] {
        let case = in_fp8(Case {
            dtype: Dtype::Bf16,
            seqlen_kv,
            ..Case::default()
        });
        let mut inputs = case.inputs();
        inputs.v.slice_mut(s![.., .., .., 1]).fill(1e30);
        case.run(device, &inputs)?;
    }
    PASSED
}

/// Values that some rows do not see are infinite, NaN and huge; so are keys.
pub fn hidden(device: &Device, case: &Case) -> Result<(), libtest_mimic::Failed> {
    let last = case.seqlen_kv - 1;
    for (key, value) in [
        (last, f32::NAN),
        (last - 70, f32::INFINITY),
        (last - 130, f32::NEG_INFINITY),
        (last - 3, 60000.0),
        // In the tiles of 16 keys whose exponentials are polynomials.
        (50, f32::NAN),
        (115, f32::NAN),
    ] {
        let mut inputs = case.inputs();
        inputs.v[[0, 0, key, 5]] = value;
        case.run(device, &inputs)?;
        let mut inputs = case.inputs();
        inputs.k[[0, 0, key, 7]] = value;
        case.run(device, &inputs)?;
    }
    Ok(())
}

/// One number in a thousand a hundred times as large, and rows and blocks of all sizes, zeros among them.
fn outliers(device: &Device, of: fn(Case) -> Case) -> Outcome {
    for case in variants(&Case::default()).into_iter().map(of) {
        let mut inputs = case.inputs();
        for tensor in [&mut inputs.q, &mut inputs.k, &mut inputs.v] {
            let numbers = tensor.iter_mut().enumerate();
            numbers
                .filter(|(i, _)| i % 997 == 3)
                .for_each(|(_, x)| *x *= 100.0);
        }
        case.run(device, &inputs)?;
        let mut inputs = case.inputs();
        for (row, mut queries) in inputs.q.axis_iter_mut(Axis(2)).enumerate() {
            queries *= [0.0, 1e-6, 1.0, 1e3][row % 4];
        }
        inputs.v.slice_mut(s![.., .., .., 3]).fill(7.0);
        inputs
            .v
            .slice_mut(s![.., .., .., 4])
            .mapv_inplace(|x| 1e-5 * x);
        case.run(device, &inputs)?;
    }
    PASSED
}

/// The error of o in norm is that of rounded probabilities: at most 1.1 times as large, also where values have a mean.
fn no_more_than_rounding(device: &Device) -> Outcome {
    for mean in [0.0, 1.0] {
        let case = in_fp8(Case {
            seqlen_q: 64,
            seqlen_kv: 1024,
            dim: 128,
            ..Case::default()
        });
        let mut inputs = case.inputs();
        inputs.v += mean;
        let found = case.run(device, &inputs)?;
        let problem = case.problem()?;
        let [q, k, v] = [&inputs.q, &inputs.k, &inputs.v].map(|x| x.mapv(f16::from_f32));
        let rounded = Rounded::new(Fp8::new(), &problem, q.view(), k.view(), v.view());
        let [exact, ideal] = [false, true].map(|rounds| in_f64(&problem, &rounded, rounds));
        let error = |o: &Array4<f64>| (o - &exact).mapv(|x| x * x).sum().sqrt();
        let found = error(&found.o.mapv(f64::from));
        // o is rounded to f16, too.
        let ideal = error(&ideal.mapv(|x| f64::from(f16::from_f64(x).to_f32())));
        if found > 1.1 * ideal {
            return Err(format!("the error is {found}, of rounded probabilities {ideal}").into());
        }
    }
    PASSED
}

/// o of the first head of rounded inputs, with probabilities as they are or rounded to three bits behind the point.
fn in_f64(problem: &Problem, rounded: &Rounded, rounds: bool) -> Array4<f64> {
    let Rounded { q, k, v, means, .. } = rounded.clone();
    let [q, k, v] = [q, k, v].map(|x| x.index_axis_move(Axis(0), 0).index_axis_move(Axis(0), 0));
    let [q, k, v] = [q, k, v].map(|x| x.mapv(f64::from));
    let scores = q.dot(&k.t()) * f64::from(problem.scale);
    let means = means.slice(s![0, 0, ..]).mapv(f64::from);
    let centred: Array2<f64> = &v - &means;
    let mut o = Array4::zeros(problem.o_shape());
    for (row, scores) in scores.outer_iter().enumerate() {
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let p = scores.mapv(|score| 16.0 * (score - most).exp());
        let rounded = p.mapv(|p| match rounds {
            true => {
                let step = f64::powi(2.0, (p.log2().floor() as i32).max(-6) - 3);
                (p / step).round_ties_even() * step
            }
            false => p,
        });
        let sums: Array1<f64> = centred.t().dot(&rounded) / p.sum();
        o.slice_mut(s![0, 0, row, ..]).assign(&(sums + &means));
    }
    o
}
