//! q, k and v, rounded as kernels round them.

use super::e4m3::nearest;
use crate::forward::Problem;
use crate::tensor::Element;
use kernels::abi::FP8_BLOCK;
use kernels::layout::fp8::{
    KEYS_LOG2, ROUND_THREADS, VALUES_LOG2, inverse_of, parts_of, queries_log2, row_lanes, scale_of,
};
use ndarray::{Array4, ArrayView2, ArrayView4, ArrayViewMut2, Axis, s};
use rayon::prelude::*;

/// Rounded inputs of a call, in f32.
#[derive(Clone, Debug)]
pub struct Rounded {
    /// Queries, `[batch, heads, seqlen_q, dim]`.
    pub q: Array4<f32>,
    /// Keys, `[batch, kv_heads, seqlen_kv, dim]`.
    pub k: Array4<f32>,
    /// Values, `[batch, kv_heads, seqlen_kv, dim_v]`.
    pub v: Array4<f32>,
}

impl Rounded {
    /// The inputs of a problem, rounded to e4m3 with the scales of kernels, bit for bit. Infinities and NaN are NaN.
    pub fn new<T: Element>(
        p: &Problem,
        q: ArrayView4<T>,
        k: ArrayView4<T>,
        v: ArrayView4<T>,
    ) -> Self {
        let dim = p.dim as u32;
        Rounded {
            q: each_head(q, |rows| round_rows(rows, 1, queries_log2(dim))),
            k: each_head(k, |rows| round_rows(rows, FP8_BLOCK as usize, KEYS_LOG2)),
            v: each_head(v, round_values),
        }
    }
}

/// The tensor in f32, whose heads `round` rounds.
fn each_head<T: Element>(
    tensor: ArrayView4<T>,
    round: impl Fn(ArrayViewMut2<f32>) + Sync,
) -> Array4<f32> {
    let mut wide = tensor.mapv(T::to_f32);
    let entries = wide.outer_iter_mut().par_bridge();
    entries.for_each(|mut heads| heads.outer_iter_mut().for_each(&round));
    wide
}

/// Rounds rows, of which so many share a scale.
fn round_rows(mut rows: ArrayViewMut2<f32>, shared: usize, most_log2: i32) {
    for mut rows in rows.axis_chunks_iter_mut(Axis(0), shared) {
        let finite = rows.iter().filter(|x| x.is_finite());
        let largest = finite.fold(0.0, |largest, x| f32::max(largest, x.abs()));
        let scale = scale_of(largest, most_log2);
        rows.mapv_inplace(|x| rounded(x, x, scale));
    }
}

/// Rounds values less the mean of each column, which is added again.
fn round_values(mut values: ArrayViewMut2<f32>) {
    let keys = values.nrows();
    if keys == 0 {
        return;
    }
    for column in 0..values.ncols() {
        let (sum, least, most) = moments(values.view(), column);
        let mean = Some(sum / keys as f32).filter(|mean| mean.is_finite());
        let mean = mean.unwrap_or(0.0);
        let spread = (most - mean).max(mean - least).max(0.0);
        let scale = scale_of(spread.min(f32::MAX), VALUES_LOG2);
        for x in values.slice_mut(s![.., column]) {
            *x = rounded(*x - mean, *x, scale) + mean;
        }
    }
}

/// A number divided by a scale, rounded, and multiplied; NaN if what it comes `from` is not finite.
fn rounded(x: f32, from: f32, scale: f32) -> f32 {
    nearest(x * inverse_of(scale) + (from - from)) * scale
}

/// The sum, the least and the largest of a column's finite numbers, summed in the order of kernels.
fn moments(values: ArrayView2<f32>, column: usize) -> (f32, f32, f32) {
    let (keys, dim) = values.dim();
    let rows = (ROUND_THREADS / row_lanes(dim as u32)) as usize;
    let [_, part_keys] = parts_of(keys as u32);
    let column = values.slice(s![.., column]);
    let mut found = (0.0, f32::INFINITY, f32::NEG_INFINITY);
    for part in column.axis_chunks_iter(Axis(0), part_keys as usize) {
        let mut of_part = 0.0;
        for first in 0..rows {
            let numbers = part.iter().skip(first).step_by(rows);
            let finite = numbers.copied().filter(|x| x.is_finite());
            of_part += finite.clone().sum::<f32>();
            found.1 = finite.clone().fold(found.1, f32::min);
            found.2 = finite.fold(found.2, f32::max);
        }
        found.0 += of_part;
    }
    found
}
