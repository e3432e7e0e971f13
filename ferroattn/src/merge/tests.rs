use super::{
    RawMerge, RawMergeBackward, RawPart, merge, merge_backward, merge_backward_plan,
    merge_backward_raw, merge_into, merge_plan, merge_raw,
};
use crate::attention::Attention;
use crate::backward::BackwardInputs;
use crate::device::Class;
use crate::device::{Device, Facts};
use crate::error::Error;
use crate::plan::CPU;
use crate::tensor::{Dtype, Element, RawTensor, Tensor};
use half::{bf16, f16};
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;

const INF: f32 = f32::INFINITY;

fn tensor<T: bytemuck::Pod, const R: usize>(shape: [usize; R], data: &[T]) -> Tensor<T, R> {
    Tensor::new(&Device::cpu(), shape, data).expect("as many as the shape has")
}

fn vec<T: bytemuck::Pod, const R: usize>(tensor: &Tensor<T, R>) -> Vec<T> {
    tensor.to_vec().expect("memory")
}

fn random(len: usize, seed: u64) -> Vec<f32> {
    let mut rng = StdRng::seed_from_u64(seed);
    (0..len).map(|_| rng.sample(StandardNormal)).collect()
}

/// o and lse of a row by their definition.
fn defined(o: [&[f64]; 2], lse: [f64; 2]) -> (Vec<f64>, f64) {
    let max = lse[0].max(lse[1]);
    if max == f64::NEG_INFINITY {
        return (vec![0.0; o[0].len()], max);
    }
    let [a, b] = lse.map(|lse| (lse - max).exp());
    let sum = |(x, y): (&f64, &f64)| {
        let of = |weight: f64, x: f64| if weight == 0.0 { 0.0 } else { weight * x };
        (of(a, *x) + of(b, *y)) / (a + b)
    };
    let merged = o[0].iter().zip(o[1]).map(sum).collect();
    (merged, max + (a + b).ln())
}

fn wide<T: Element>(numbers: &[T]) -> Vec<f64> {
    numbers.iter().map(|x| f64::from(x.to_f32())).collect()
}

/// Merges random parts of these lse, a row for each pair, and compares with the definition.
fn check<T: Element>(lse: &[[f32; 2]], dim: usize, seed: u64, epsilon: f64) {
    let shape = [1, 1, lse.len(), dim];
    let o = [seed, seed + 1].map(|seed| {
        let numbers = random(lse.len() * dim, seed);
        numbers.into_iter().map(T::from_f32).collect::<Vec<_>>()
    });
    let sides = [0, 1].map(|side| lse.iter().map(|lse| lse[side]).collect::<Vec<_>>());
    let [o1, o2] = o.each_ref().map(|o| tensor(shape, o));
    let [lse1, lse2] = sides.map(|side| tensor([1, 1, lse.len()], &side));
    let (merged, merged_lse) = merge((&o1, &lse1), (&o2, &lse2)).expect("valid");
    let (merged, merged_lse) = (wide(&vec(&merged)), vec(&merged_lse));
    let [o1, o2] = o.map(|o| wide(&o));
    for (row, lse) in lse.iter().enumerate() {
        let columns = row * dim..(row + 1) * dim;
        let parts = [&o1[columns.clone()], &o2[columns.clone()]];
        let (expected, expected_lse) = defined(parts, lse.map(f64::from));
        for (found, expected) in merged[columns].iter().zip(expected) {
            let tolerance = epsilon * (1.0 + expected.abs());
            assert!(
                (found - expected).abs() <= tolerance,
                "{found} for {expected} of {lse:?}"
            );
        }
        let found = f64::from(merged_lse[row]);
        let tolerance = 1e-6 * (1.0 + expected_lse.abs());
        assert!(
            found == expected_lse || (found - expected_lse).abs() <= tolerance,
            "{lse:?}"
        );
    }
}

/// Equal lse, far apart, where the lesser weight is just there and just gone, at the ends of the range, and of no keys.
const LSE: [[f32; 2]; 12] = [
    [0.0, 0.0],
    [3.5, 3.5],
    [-4.0, -2.5],
    [1e30, -1e30],
    [-1e30, 1e30],
    [1e30, 1e30],
    [f32::MAX, f32::MIN],
    [80.0, 0.0],
    [0.0, 110.0],
    [-INF, 2.0],
    [-1e30, -INF],
    [-INF, -INF],
];

proptest! {
    #[test]
    fn merged_parts_are_as_defined(dim in 1..=128_usize, gaps in any::<[i8; 5]>(), seed in any::<u32>()) {
        let mut lse = LSE.to_vec();
        lse.extend(gaps.map(|gap| [f32::from(gap) / 3.0, f32::from(gap) / 7.0]));
        let (dim, seed) = (8 * dim, u64::from(seed));
        check::<f32>(&lse, dim, seed, 1e-6);
        check::<f16>(&lse, dim, seed, 1e-3);
        check::<bf16>(&lse, dim, seed, 8e-3);
    }
}

/// A merge of one row of eight equal elements: o, lse, and the gradients of both parts for d_o of ones and d_lse.
fn one_row(o: [f32; 2], lse: [f32; 2], d_o: f32, d_lse: f32) -> ([f32; 2], [[f32; 2]; 2]) {
    let [o1, o2] = o.map(|x| tensor([1, 1, 1, 8], &[x; 8]));
    let [lse1, lse2] = lse.map(|x| tensor([1, 1, 1], &[x]));
    let (o, lse) = merge((&o1, &lse1), (&o2, &lse2)).expect("valid");
    let (d_o, d_lse) = (tensor([1, 1, 1, 8], &[d_o; 8]), tensor([1, 1, 1], &[d_lse]));
    let gradients = merge_backward((&o1, &lse1), (&o2, &lse2), &d_o, Some(d_lse.view()));
    let first = |o: &Tensor<f32>, lse: &Tensor<f32, 3>| [vec(o)[7], vec(lse)[0]];
    let gradients = gradients.expect("valid");
    (
        first(&o, &lse),
        gradients.each_ref().map(|(o, lse)| first(o, lse)),
    )
}

#[test]
fn a_part_without_keys_has_no_part() {
    let nan = f32::NAN;
    for dead in [nan, INF, 7.0] {
        let found = one_row([2.0, dead], [0.5, -INF], 3.0, 4.0);
        assert_eq!(found, ([2.0, 0.5], [[3.0, 4.0], [0.0, 0.0]]), "{dead}");
        let found = one_row([dead, 2.0], [-INF, 0.5], 3.0, 4.0);
        assert_eq!(found, ([2.0, 0.5], [[0.0, 0.0], [3.0, 4.0]]), "{dead}");
        let found = one_row([dead, nan], [-INF, -INF], nan, nan);
        assert_eq!(found, ([0.0, -INF], [[0.0; 2]; 2]), "{dead}");
    }
    // Of a live part alone, a gradient of NaN arrives.
    let (_, [live, dead]) = one_row([2.0, nan], [0.5, -INF], nan, 1.0);
    assert!(
        live.iter().all(|x| x.is_nan()) && dead == [0.0; 2],
        "{live:?}, {dead:?}"
    );
}

#[test]
fn infinities_and_nan_in_lse() {
    assert_eq!(one_row([2.0, 5.0], [INF, 1.0], 1.0, 0.0).0, [2.0, INF]);
    assert_eq!(one_row([2.0, 5.0], [-INF, INF], 1.0, 0.0).0, [5.0, INF]);
    let ([o, lse], _) = one_row([2.0, 5.0], [INF, INF], 1.0, 0.0);
    assert!(o.is_nan() && lse == INF, "{o}, {lse}");
    for other in [0.0, -INF, INF, f32::NAN] {
        for lse in [[f32::NAN, other], [other, f32::NAN]] {
            let (merged, gradients) = one_row([2.0, 5.0], lse, 1.0, 1.0);
            assert!(merged.iter().all(|x| x.is_nan()), "{lse:?}: {merged:?}");
            for (lse, gradient) in lse.iter().zip(gradients) {
                let is_right = |x: &f32| if *lse == -INF { *x == 0.0 } else { x.is_nan() };
                assert!(gradient.iter().all(is_right), "{lse}: {gradient:?}");
            }
        }
    }
}

/// Differences of `sum(d_o * o) + sum(d_lse * lse)` by the definition, of each element of both parts.
#[test]
fn gradients_are_differences() {
    const STEP: f64 = 1e-5;
    for (case, pair) in [
        [0.3, -0.9],
        [2.0, 2.0],
        [-7.0, 1.0],
        [-INF, 0.5],
        [30.0, 0.0],
    ]
    .into_iter()
    .enumerate()
    {
        let dim = 24;
        let [a, b, d] = [0, 1, 2].map(|part| random(dim, 10 * case as u64 + part));
        let [o1, o2, d_o] = [&a, &b, &d].map(|row| tensor([1, 1, 1, dim], row));
        let [lse1, lse2, d_lse] = [pair[0], pair[1], 0.7].map(|x| tensor([1, 1, 1], &[x]));
        let parts = ((&o1, &lse1), (&o2, &lse2));
        for d_lse in [None, Some(d_lse.view())] {
            let factor = if d_lse.is_some() {
                f64::from(0.7_f32)
            } else {
                0.0
            };
            let found = merge_backward(parts.0, parts.1, &d_o, d_lse).expect("valid");
            let loss = |o: [&[f64]; 2], lse| {
                let (o, lse) = defined(o, lse);
                let of_lse = if factor == 0.0 { 0.0 } else { factor * lse };
                o.iter()
                    .zip(&d)
                    .map(|(o, d)| o * f64::from(*d))
                    .sum::<f64>()
                    + of_lse
            };
            for (part, (d_o, d_lse)) in found.iter().enumerate() {
                let moved = |element: Option<usize>, by: f64| {
                    let (mut o, mut lse) = ([wide(&a), wide(&b)], pair.map(f64::from));
                    match element {
                        Some(element) => o[part][element] += by,
                        None => lse[part] += by,
                    }
                    loss(o.each_ref().map(Vec::as_slice), lse)
                };
                let slope = |element| (moved(element, STEP) - moved(element, -STEP)) / (2.0 * STEP);
                let elements = vec(d_o).into_iter().enumerate();
                let elements = elements.map(|(i, found)| (Some(i), found));
                for (element, found) in elements.chain([(None, vec(d_lse)[0])]) {
                    let expected = slope(element);
                    let error = (f64::from(found) - expected).abs();
                    assert!(
                        error < 1e-5,
                        "{pair:?}, {part}, {element:?}: {found}, {expected}"
                    );
                }
            }
        }
    }
}

/// The gradients of attention to all keys from those of its two halves, of a loss of o and lse.
#[test]
fn attention_to_halves_is_attention_to_all() {
    let shape = [2, 3, 10, 16];
    let [q, k, v, d_o] = [1, 2, 3, 4].map(|seed| tensor(shape, &random(960, seed)));
    let d_lse = tensor([2, 3, 10], &random(60, 5));
    let half = |tensor: &Tensor<f32>, half: usize| {
        let part = tensor.view().narrow(2, 4 * half, 4 + 2 * half);
        part.and_then(|part| part.try_clone()).expect("inside")
    };
    let attention = Attention::new();
    let parts = [0, 1].map(|i| {
        let result = attention.forward(&q, &half(&k, i), &half(&v, i));
        result.expect("valid")
    });
    let [first, second] = parts.each_ref().map(|(o, lse)| (o, lse));
    let (o, lse) = merge(first, second).expect("valid");
    let (all_o, all_lse) = attention.forward(&q, &k, &v).expect("valid");
    let near = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5);
    assert!(near(&vec(&o), &vec(&all_o)) && near(&vec(&lse), &vec(&all_lse)));
    let inputs = BackwardInputs::new(&q, &k, &v, &all_o, &all_lse, &d_o).d_lse(&d_lse);
    let all = attention.backward_all(&inputs).expect("valid");
    let gradients = merge_backward(first, second, &d_o, Some(d_lse.view())).expect("valid");
    let mut dq = vec![0.0; 960];
    for (i, ((o, lse), (d_o, d_lse))) in parts.iter().zip(&gradients).enumerate() {
        let (k, v) = (half(&k, i), half(&v, i));
        let inputs = BackwardInputs::new(&q, &k, &v, o, lse, d_o).d_lse(d_lse);
        let part = attention.backward_all(&inputs).expect("valid");
        dq.iter_mut()
            .zip(vec(&part.dq))
            .for_each(|(sum, dq)| *sum += dq);
        assert!(near(&vec(&part.dk), &vec(&half(&all.dk, i))));
        assert!(near(&vec(&part.dv), &vec(&half(&all.dv, i))));
    }
    assert!(near(&dq, &vec(&all.dq)));
}

/// Strides of inputs and outputs that are not row-major.
#[test]
fn parts_may_lie_anyhow() {
    let shape = [2, 3, 5, 8];
    let [a, b] = [1, 2].map(|seed| tensor(shape, &random(240, seed)));
    let lse = tensor([2, 3, 5], &random(30, 3));
    let (expected, _) = merge((&a, &lse), (&b, &lse)).expect("valid");
    let turned = |tensor: &Tensor<f32>| {
        let packed = tensor
            .view()
            .transpose(1, 2)
            .and_then(|view| view.try_clone());
        packed
            .and_then(|packed| packed.transpose(1, 2))
            .expect("axes")
    };
    let buffer = tensor([1000], &[0.0_f32; 1000]).into_buffer();
    let mut o = Tensor::from_buffer(buffer, 500, shape, [150, 50, -9, 1]).expect("inside");
    let mut merged = tensor([2, 3, 5], &[0.0; 30]);
    merge_into((&turned(&a), &lse), (&b, &lse), (&mut o, &mut merged)).expect("valid");
    assert_eq!(o.to_vec(), expected.to_vec());
}

#[test]
fn nothing_is_merged_at_once() {
    for shape in [[0, 2, 3, 8], [2, 0, 3, 8], [2, 3, 0, 8]] {
        let (o, lse) = (
            tensor::<f16, 4>(shape, &[]),
            tensor::<f32, 3>([shape[0], shape[1], shape[2]], &[]),
        );
        let (merged, _) = merge((&o, &lse), (&o, &lse)).expect("nothing to do");
        assert_eq!(merged.shape(), shape);
        merge_backward((&o, &lse), (&o, &lse), &o, None).expect("nothing to do");
        let facts = Facts::emulated(Class::Sm80);
        let plan = merge_plan(Some(&facts), Dtype::F16, &RawMerge::row_major(shape));
        assert!(plan.expect("a kernel").steps.is_empty());
        let args = RawMergeBackward::row_major(shape);
        let plan = merge_backward_plan(Some(&facts), Dtype::F16, &args);
        assert!(plan.expect("a kernel").steps.is_empty());
    }
}

#[test]
fn plans_are_one_launch() {
    let facts = Facts::emulated(Class::Sm90);
    let shape = [3, 5, 7, 72];
    let args = RawMerge::row_major(shape);
    let plan = |facts, dtype, args: &RawMerge| merge_plan(facts, dtype, args);
    let planned = plan(Some(&facts), Dtype::Bf16, &args).expect("a kernel");
    assert_eq!((planned.kernel, planned.steps[0].blocks), ("merge_bf16", 4));
    let backward = RawMergeBackward::row_major(shape);
    let planned = merge_backward_plan(Some(&facts), Dtype::F16, &backward).expect("a kernel");
    assert_eq!(
        (planned.kernel, planned.steps.len()),
        ("merge_backward_f16", 1)
    );
    let on_cpu = plan(None, Dtype::F32, &args).expect("the CPU's");
    assert_eq!((on_cpu.kernel, on_cpu.steps.len()), (CPU, 0));
    let refused = plan(Some(&facts), Dtype::F32, &args).map(drop);
    assert_eq!(refused, Err(Error::NoKernels(Dtype::F32)));
    for dim in [0, 1025, 1032, usize::MAX - 7] {
        let refused = plan(None, Dtype::F16, &RawMerge::row_major([1, 1, 1, dim])).map(drop);
        assert_eq!(refused, Err(Error::ValueDim(dim)));
    }
    for shape in [[1 << 16, 1 << 15, 1, 8], [1, 1, 1 << 32, 8]] {
        let refused = plan(Some(&facts), Dtype::F16, &RawMerge::row_major(shape)).map(drop);
        assert!(matches!(refused, Err(Error::TooLong { .. })), "{refused:?}");
    }
    let huge = RawMerge::row_major([usize::MAX, 2, 1, 8]);
    let refused = plan(Some(&facts), Dtype::F16, &huge).map(drop);
    assert_eq!(refused, Err(Error::Overflow("o1")));
}

/// The tensors of a gradient with these names in messages, and whether they are written.
type Parts = [(
    fn(&mut RawMergeBackward) -> &mut RawPart,
    [&'static str; 2],
    bool,
); 4];
const PARTS: Parts = [
    (|args| &mut args.first, ["o1", "lse1"], false),
    (|args| &mut args.second, ["o2", "lse2"], false),
    (|args| &mut args.d_first, ["d_o1", "d_lse1"], true),
    (|args| &mut args.d_second, ["d_o2", "d_lse2"], true),
];

const SHAPE: [usize; 4] = [1, 2, 3, 8];

fn refused(spoil: impl FnOnce(&mut RawMergeBackward)) -> Error {
    let mut args = RawMergeBackward::row_major(SHAPE);
    args.d_lse = Some(args.first.lse);
    spoil(&mut args);
    // SAFETY: the call is refused before it uses any memory.
    let done =
        unsafe { merge_backward_raw(&Device::cpu(), Dtype::F16, &args, std::ptr::null_mut()) };
    done.expect_err("refused")
}

/// Expects an error for a tensor of four axes whose `place` in the arguments each change spoils.
fn o_is_checked(name: &str, is_written: bool, spoilt: impl Fn(&dyn Fn(&mut RawTensor)) -> Error) {
    let stride = spoilt(&|o| o.strides[3] = 2).to_string();
    assert!(
        stride.starts_with(&format!("{name} has stride 2 in dim")),
        "{stride}"
    );
    let far = spoilt(&|o| o.strides[2] = isize::MAX / 2);
    assert!(
        matches!(far, Error::Overflow(argument) if argument == name),
        "{far}"
    );
    if name != "o1" {
        let shape = spoilt(&|o| o.shape[0] = 5).to_string();
        assert!(
            shape.starts_with(&format!("{name} has shape [5, 2, 3, 8]")),
            "{shape}"
        );
    }
    if is_written {
        let overlap = spoilt(&|o| o.strides[2] = 7).to_string();
        assert!(
            overlap.starts_with(&format!("{name} has overlapping strides")),
            "{overlap}"
        );
    }
}

fn lse_is_checked(name: &str, spoilt: impl Fn(&dyn Fn(&mut RawTensor<3>)) -> Error) {
    let shape = spoilt(&|lse| lse.shape[2] = 4).to_string();
    assert!(
        shape.starts_with(&format!("{name} has shape [1, 2, 4]")),
        "{shape}"
    );
    let gaps = spoilt(&|lse| lse.strides[1] = 4);
    assert!(
        matches!(gaps, Error::NotContiguous(argument) if argument == name),
        "{gaps}"
    );
}

#[test]
fn arguments_are_named() {
    for (part, [o, lse], is_written) in PARTS {
        o_is_checked(o, is_written, |change| {
            refused(|args| change(&mut part(args).o))
        });
        lse_is_checked(lse, |change| refused(|args| change(&mut part(args).lse)));
    }
    o_is_checked("d_o", false, |change| refused(|args| change(&mut args.d_o)));
    lse_is_checked("d_lse", |change| {
        refused(|args| change(args.d_lse.as_mut().expect("given")))
    });
    let merged = |change: &dyn Fn(&mut RawPart)| {
        let mut args = RawMerge::row_major(SHAPE);
        change(&mut args.merged);
        // SAFETY: the call is refused before it uses any memory.
        let done = unsafe { merge_raw(&Device::cpu(), Dtype::F16, &args, std::ptr::null_mut()) };
        done.expect_err("refused")
    };
    o_is_checked("o", true, |change| merged(&|part| change(&mut part.o)));
    lse_is_checked("lse", |change| merged(&|part| change(&mut part.lse)));
}
