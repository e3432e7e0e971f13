//! Huge numbers leave no room for results that are wrong beside them.

use super::definition::{Definition, Sum};
use super::passes::Passes;
use super::samples::{Bias, Sample, Slopes};
use super::window::Window;
use crate::device::Device;
use crate::forward::Problem;
use crate::random;
use crate::tensor::{Dtype, Element, Tensor};
use half::{bf16, f16};

/// A problem of 70 queries and keys, without options.
const PLAIN: Problem = Problem {
    batch: 1,
    heads: 2,
    kv_heads: 1,
    seqlen_q: 70,
    seqlen_kv: 70,
    dim: 16,
    dim_v: 16,
    causal: false,
    scale: 0.25,
    window: Window::NONE,
    softcap: None,
};

/// A bias of `f32::MIN` on the keys of a row for which `hides` is true, on top of ordinary numbers.
fn biased(hides: fn(usize, usize) -> bool) -> Sample {
    let bias = (0..70 * 70).map(|pair| match hides(pair / 70, pair % 70) {
        true => f32::MIN,
        false => (pair * 7 % 31) as f32 / 9.0 - 1.5,
    });
    let bias: Vec<f32> = bias.collect();
    let bias = Tensor::new(&Device::cpu(), [1, 1, 70, 70], &bias).expect("valid");
    Sample {
        bias: Some(Bias::F32(bias)),
        ..PLAIN.into()
    }
}

/// Samples with a huge number, and whether dq and dk are more than the roundings of scores.
fn huge() -> Vec<(&'static str, Sample, bool)> {
    let slopes = |slope: f32| {
        let slopes = Tensor::new(&Device::cpu(), [2], &[slope, slope / 3.0]).expect("valid");
        Sample {
            alibi: Some(Slopes::Heads(slopes)),
            ..PLAIN.into()
        }
    };
    let scaled = |scale| Sample::from(Problem { scale, ..PLAIN });
    let capped = |softcap| {
        Sample::from(Problem {
            softcap: Some(softcap),
            ..PLAIN
        })
    };
    vec![
        (
            "a bias on all keys of a row",
            biased(|row, _| row == 5),
            true,
        ),
        ("a bias on all keys of all rows", biased(|_, _| true), true),
        (
            "a bias on some keys",
            biased(|row, key| row % 3 == 0 && key % 2 == 0),
            true,
        ),
        ("slopes", slopes(1e30), true),
        ("slopes below 0", slopes(-1e30), true),
        ("a scale", scaled(1e30), false),
        ("a scale below 0", scaled(-1e20), false),
        ("a softcap", capped(1e30), true),
    ]
}

/// The passes with gradients by their definition, in place of what the CPU finds from a rounded lse.
fn by_definition<T: Element>(passes: Passes<T>) -> Passes<T> {
    let exact = Definition::new(&passes);
    let rounded = |sums: &[Sum]| {
        sums.iter()
            .map(|sum| T::from_f32(sum.value as f32))
            .collect()
    };
    let d_bias = passes.d_bias.as_ref().map(|(shape, _)| {
        let d_bias = exact.d_bias.iter().map(|sum| sum.value as f32);
        (*shape, d_bias.collect())
    });
    Passes {
        dq: rounded(&exact.dq),
        dk: rounded(&exact.dk),
        dv: rounded(&exact.dv),
        d_bias,
        ..passes
    }
}

/// A huge number leaves no room for results that are wrong by a percent, in f16 by four, and in bf16 by thirty.
fn wrong_by_a_percent<T: Element>(what: &str, passes: &Passes<T>, has_dq: bool) {
    let factor = match T::DTYPE {
        Dtype::F32 => 1.01,
        Dtype::F16 => 1.04,
        Dtype::Bf16 => 1.3,
    };
    let wrong =
        |x: &[T]| -> Vec<T> { x.iter().map(|x| T::from_f32(x.to_f32() * factor)).collect() };
    let name = T::DTYPE.name();
    let report = passes.forward();
    assert!(report.passed(), "{what} in {name}: {report}");
    let o = Passes {
        o: wrong(&passes.o),
        ..passes.clone()
    }
    .forward();
    assert!(!o.o.passed() && o.lse.passed(), "{what} in {name}: {o}");
    let lse = passes.lse.iter().map(|lse| lse * 1.01).collect();
    let lse = Passes {
        lse,
        ..passes.clone()
    }
    .forward();
    assert!(
        lse.o.passed() && !lse.lse.passed(),
        "{what} in {name}: {lse}"
    );

    let passes = &by_definition(passes.clone());
    let expected = passes.expected_gradients();
    let report = expected.compare(&passes.as_backward());
    assert!(
        report.passed() || !has_dq && report.dv.passed(),
        "{what} in {name}: {report}"
    );
    let spoilt = Passes {
        dq: wrong(&passes.dq),
        dk: wrong(&passes.dk),
        dv: wrong(&passes.dv),
        ..passes.clone()
    };
    let report = expected.compare(&spoilt.as_backward());
    let found = [report.dq, report.dk, report.dv].map(|found| found.passed());
    assert!(
        !found[2] && !(has_dq && (found[0] || found[1])),
        "{what} in {name}: {report}"
    );
}

#[test]
fn huge_numbers_leave_no_room() {
    for (what, sample, has_dq) in huge() {
        wrong_by_a_percent(what, &Passes::<f32>::new(&sample), has_dq);
        wrong_by_a_percent(what, &Passes::<f16>::new(&sample), has_dq);
        wrong_by_a_percent(what, &Passes::<bf16>::new(&sample), has_dq);
    }
}

/// Huge values of one column, and of one key that hardly counts, leave no room for the others.
#[test]
fn huge_values_leave_no_room() {
    let plain = Sample::from(PLAIN);
    let first = Sample {
        bias: biased(|_, key| key > 0).bias,
        ..PLAIN.into()
    };
    for (sample, size) in [(&plain, 30_000.0), (&plain, 1e-3), (&first, 30_000.0)] {
        let [q, k, mut v] = random::inputs::<f16>(&sample.problem, 1);
        let is_huge = |place: &usize| match sample.bias {
            None => place % 16 == 3,
            // Of keys that are not seen beside the first.
            Some(_) => *place >= 16 * 20,
        };
        for place in (0..v.len()).filter(is_huge) {
            v[place] = f16::from_f32(size);
        }
        let passes = Passes::of(sample, [q, k, v]);
        let report = passes.forward();
        assert!(report.passed(), "{report}");
        for column in 0..16 {
            let mut spoilt = passes.clone();
            spoilt
                .o
                .iter_mut()
                .skip(column)
                .step_by(16)
                .for_each(|o| *o *= f16::from_f32(1.01));
            let report = spoilt.forward();
            assert!(
                !report.o.passed() && report.o.worst[3] == column,
                "{column}: {report}"
            );
        }
    }
}
