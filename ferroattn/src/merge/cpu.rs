//! Merges and their gradients on the CPU, in `f32`, a task for some rows.

use super::{RawMerge, RawMergeBackward, RawPart};
use crate::error::Result;
use crate::tensor::{Dtype, Element};
use half::{bf16, f16};
use ndarray::{ArrayView1, ArrayView3, ArrayView4, ArrayViewMut4};
use rayon::prelude::*;

/// Merges the parts of a call whose arguments are checked.
///
/// # Safety
/// The conditions of [`merge_raw`](crate::merge_raw) on the CPU.
pub unsafe fn merge_raw(dtype: Dtype, args: &RawMerge) -> Result<()> {
    let compute = match dtype {
        Dtype::F16 => merge_of::<f16>,
        Dtype::Bf16 => merge_of::<bf16>,
        Dtype::F32 => merge_of::<f32>,
    };
    // SAFETY: the caller's word.
    unsafe { compute(args) };
    Ok(())
}

/// # Safety
/// The conditions of [`merge_raw`], with `T` the element type.
unsafe fn merge_of<T: Element>(args: &RawMerge) {
    // SAFETY: the caller vouches for the memory, and that nothing writes the parts.
    let parts = [args.first, args.second].map(|part| unsafe { HostPart::<T>::new(&part) });
    // SAFETY: the caller vouches for the memory, and that nothing else touches it. The call found a place for every
    // element.
    let (o, mut lse) = unsafe { (args.merged.o.view_mut(), args.merged.lse.view_mut()) };
    merge(&parts, o, lse.as_slice_mut().expect("contiguous"));
}

/// Computes the gradients of a call whose arguments are checked.
///
/// # Safety
/// The conditions of [`merge_backward_raw`](crate::merge_backward_raw) on the CPU.
pub unsafe fn merge_backward_raw(dtype: Dtype, args: &RawMergeBackward) -> Result<()> {
    let compute = match dtype {
        Dtype::F16 => backward_of::<f16>,
        Dtype::Bf16 => backward_of::<bf16>,
        Dtype::F32 => backward_of::<f32>,
    };
    // SAFETY: the caller's word.
    unsafe { compute(args) };
    Ok(())
}

/// # Safety
/// The conditions of [`merge_backward_raw`], with `T` the element type.
unsafe fn backward_of<T: Element>(args: &RawMergeBackward) {
    // SAFETY: the caller vouches for the memory, and that nothing writes the inputs.
    let parts = [args.first, args.second].map(|part| unsafe { HostPart::<T>::new(&part) });
    // SAFETY: as above.
    let d_o = unsafe { args.d_o.view() };
    // SAFETY: as above.
    let d_lse = args.d_lse.map(|d_lse| unsafe { d_lse.view() });
    let d_lse = d_lse
        .as_ref()
        .map(|d_lse| d_lse.as_slice().expect("contiguous"));
    // SAFETY: the caller vouches for the memory, and that nothing else touches it. The call found a place for
    // every element.
    let mut d_parts = [args.d_first, args.d_second]
        .map(|part| unsafe { (part.o.view_mut(), part.lse.view_mut()) });
    let d_parts = d_parts.each_mut().map(|(o, lse)| {
        let lse = lse.as_slice_mut().expect("contiguous");
        (o.view_mut(), lse)
    });
    backward(&parts, d_o, d_lse, d_parts);
}

/// A part in host memory, to read.
struct HostPart<'a, T> {
    o: ArrayView4<'a, T>,
    lse: ArrayView3<'a, f32>,
}

impl<T> HostPart<'_, T> {
    /// The part at its addresses.
    ///
    /// # Safety
    /// Every element lies in readable memory, aligned, and nothing writes it while the part lives.
    unsafe fn new(part: &RawPart) -> Self {
        // SAFETY: the caller's word.
        let (o, lse) = unsafe { (part.o.view(), part.lse.view()) };
        HostPart { o, lse }
    }
}

/// The parts by rows.
struct Rows<'a, T> {
    o: [Vec<ArrayView1<'a, T>>; 2],
    lse: [Vec<f32>; 2],
    dim: usize,
}

impl<'a, T: Element> Rows<'a, T> {
    fn of(parts: &'a [HostPart<T>; 2]) -> Self {
        Rows {
            o: parts
                .each_ref()
                .map(|part| part.o.rows().into_iter().collect()),
            lse: parts
                .each_ref()
                .map(|part| part.lse.iter().copied().collect()),
            dim: parts[0].o.dim().3,
        }
    }

    /// The weights of a row, and o of its parts in `f32`: zeros of one that does not count.
    fn widen(&self, row: usize, wide: &mut [Vec<f32>; 2]) -> Weights {
        let weights = Weights::of(self.lse.each_ref().map(|lse| lse[row]));
        for (part, wide) in wide.iter_mut().enumerate() {
            match weights.counts[part] {
                true => T::to_f32_slice(elements(&self.o[part][row]), wide),
                false => wide.fill(0.0),
            }
        }
        weights
    }

    /// Memory for rows in `f32`.
    fn wide<const N: usize>(&self) -> [Vec<f32>; N] {
        [(); N].map(|()| vec![0.0; self.dim])
    }
}

/// How much the parts of a row weigh.
struct Weights {
    /// Whether a part has an lse above -inf.
    counts: [bool; 2],
    weights: [f32; 2],
    lse: f32,
}

impl Weights {
    fn of([first, second]: [f32; 2]) -> Self {
        let gap = first - second;
        let ratio = (-gap.abs()).exp();
        let (larger, smaller) = (1.0 / (1.0 + ratio), ratio / (1.0 + ratio));
        let [a, b] = if gap < 0.0 {
            [smaller, larger]
        } else {
            [larger, smaller]
        };
        let counts = [first, second].map(|lse| lse != f32::NEG_INFINITY);
        Weights {
            counts,
            weights: [
                if counts[0] { a } else { 0.0 },
                if counts[1] { b } else { 0.0 },
            ],
            // The gap of NaN, and of equal infinities, is NaN; their sum is what they are.
            lse: match gap.is_nan() {
                true => first + second,
                false => first.max(second) + ratio.ln_1p(),
            },
        }
    }
}

/// Merges the parts on all threads of the current rayon pool.
///
/// # Panics
/// If the shapes do not fit each other.
fn merge<T: Element>(parts: &[HostPart<T>; 2], mut o: ArrayViewMut4<T>, lse: &mut [f32]) {
    let parts = Rows::of(parts);
    let mut o: Vec<_> = o.rows_mut().into_iter().collect();
    let rows = o.par_iter_mut().zip(lse).enumerate();
    rows.for_each_init(
        || parts.wide(),
        |wide, (row, (o, lse))| {
            let weights = parts.widen(row, wide);
            *lse = weights.lse;
            let ([first, second], [a, b]) = (weights.weights, wide);
            for (a, b) in a.iter_mut().zip(b) {
                *a = first * *a + second * *b;
            }
            T::from_f32_slice(a, o.as_slice_mut().expect("unit stride in dim"));
        },
    );
}

/// Computes the gradients of o and lse of the parts on all threads of the current rayon pool.
///
/// # Panics
/// If the shapes do not fit each other.
fn backward<T: Element>(
    parts: &[HostPart<T>; 2],
    d_o: ArrayView4<T>,
    d_lse: Option<&[f32]>,
    [first, second]: [(ArrayViewMut4<T>, &mut [f32]); 2],
) {
    let parts = Rows::of(parts);
    let d_o: Vec<_> = d_o.rows().into_iter().collect();
    let ((mut first_o, first_lse), (mut second_o, second_lse)) = (first, second);
    let [mut first_o, mut second_o] =
        [&mut first_o, &mut second_o].map(|o| Vec::from_iter(o.rows_mut()));
    let first = first_o.par_iter_mut().zip(first_lse);
    let second = second_o.par_iter_mut().zip(second_lse);
    first.zip(second).enumerate().for_each_init(
        || (parts.wide(), parts.wide()),
        |(wide, [gradient, weighted]), (row, (first, second))| {
            let weights = parts.widen(row, wide);
            T::to_f32_slice(elements(&d_o[row]), gradient);
            let [a, b] = wide;
            let products = gradient.iter().zip(a.iter().zip(b));
            let dot: f32 = products.map(|(d, (a, b))| d * (*a - *b)).sum();
            let d_lse = d_lse.map_or(0.0, |d_lse| d_lse[row]);
            // `o_1 - o` is `w_2 (o_1 - o_2)`, and `o_2 - o` is `w_1 (o_2 - o_1)`.
            let [a, b] = weights.weights;
            let d_lses = [a * (d_lse + b * dot), b * (d_lse - a * dot)];
            for (part, (to, to_lse)) in [first, second].into_iter().enumerate() {
                // A product would keep a NaN in the gradient of a part that does not count.
                let counts = weights.counts[part];
                for (to, from) in weighted.iter_mut().zip(gradient.iter()) {
                    *to = if counts {
                        weights.weights[part] * from
                    } else {
                        0.0
                    };
                }
                *to_lse = if counts { d_lses[part] } else { 0.0 };
                T::from_f32_slice(weighted, to.as_slice_mut().expect("unit stride in dim"));
            }
        },
    );
}

/// The elements of a row.
fn elements<'a, T>(row: &'a ArrayView1<T>) -> &'a [T] {
    row.as_slice().expect("unit stride in dim")
}
