//! q, k and v, rounded as kernels round them.

use crate::forward::Problem;
use crate::options::{Fp8, HostOptions};
use crate::tensor::Element;
use float8::F8E4M3;
use kernels::abi::FP8_BLOCK;
use kernels::layout::element::CHUNK;
use kernels::layout::fp8::{
    KEYS_LOG2, ROUND_THREADS, VALUES_LOG2, inverse_of, parts_of, queries_log2, rotation_signs,
    row_lanes, scale_of,
};
use ndarray::{
    Array3, Array4, ArrayView1, ArrayView2, ArrayView4, ArrayViewMut1, ArrayViewMut2, Axis, s,
};
use rayon::prelude::*;

/// Inputs of a call in [FP8](crate::Attention::fp8), rounded as its kernels round them, in f32: the exact result of these tells the error of a
/// kernel from that of the inputs.
///
/// ```
/// # fn main() -> ferroattn::Result<()> {
/// use ferroattn::{Fp8, Problem, Rounded};
/// use ndarray::{Array4, ArrayView4};
///
/// let shape = [1, 1, 2, 2];
/// let problem = Problem::new(shape, shape, shape, false, None)?;
/// let x = Array4::from_shape_vec((1, 1, 2, 2), vec![1.0_f32, 1.03, -2.0, 0.4]).expect("four numbers");
/// let rounded = Rounded::new(Fp8::new(), &problem, x.view(), x.view(), x.view());
/// // Three bits behind the point.
/// assert_eq!(rounded.q.as_slice(), Some(&[1.0, 1.0, -2.0, 0.40625][..]));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Rounded {
    /// Queries, `[batch, heads, seqlen_q, dim]`; [rotated](method@Fp8::hadamard) rows have 64, 128 or 256 elements.
    pub q: Array4<f32>,
    /// Keys, `[batch, kv_heads, seqlen_kv, dim]`, likewise.
    pub k: Array4<f32>,
    /// Values, `[batch, kv_heads, seqlen_kv, dim_v]`, with the means of their columns.
    pub v: Array4<f32>,
    /// The means that were taken out before, `[batch, kv_heads, dim_v]`; 0 of inputs that were e4m3.
    pub means: Array3<f32>,
    /// Whether o is summed in two levels.
    pub(crate) has_levels: bool,
}

impl Rounded {
    /// The inputs of a problem, rounded to e4m3 with the scales of kernels, bit for bit. Infinities and NaN are NaN.
    ///
    /// # Panics
    /// If a tensor has another shape than the problem says.
    pub fn new<T: Element>(
        fp8: Fp8,
        p: &Problem,
        q: ArrayView4<T>,
        k: ArrayView4<T>,
        v: ArrayView4<T>,
    ) -> Self {
        Self::of_seen(fp8, p, [q, k, v], &vec![p.seqlen_kv; p.batch])
    }

    /// [`new`](Self::new) of a call with options: keys that no query sees count for nothing.
    pub(crate) fn of_call<T: Element>(
        fp8: Fp8,
        p: &Problem,
        options: &HostOptions,
        [q, k, v]: [ArrayView4<T>; 3],
    ) -> Self {
        let nan = T::from_f32(f32::NAN);
        let [k, v] = [k, v].map(|tensor| options.seen_keys(p, tensor, nan));
        Self::of_seen(fp8, p, [q, k.view(), v.view()], &options.seen_counts(p))
    }

    /// [`new`](Self::new), where queries of an entry of the batch see so many keys. The others are NaN, and count for nothing.
    fn of_seen<T: Element>(
        fp8: Fp8,
        p: &Problem,
        [q, k, v]: [ArrayView4<T>; 3],
        seen: &[usize],
    ) -> Self {
        expect_shapes(p, [q.shape(), k.shape(), v.shape()]);
        let mut means = Array3::zeros((p.batch, p.kv_heads, p.dim_v));
        let [q, k, mut v] = [q, k, v].map(|tensor| tensor.mapv(T::to_f32));
        let of_values = v.outer_iter_mut().zip(means.outer_iter_mut()).zip(seen);
        of_values
            .par_bridge()
            .for_each(|((mut heads, mut means), &seen)| {
                let heads = heads.outer_iter_mut().zip(means.outer_iter_mut());
                heads.for_each(|(values, means)| round_values(values, Some((means, seen))));
            });
        let [q, k] = round_both(fp8, q, k);
        Rounded {
            q,
            k,
            v,
            means,
            has_levels: false,
        }
    }

    /// The inputs of a problem that are e4m3 already, times [descales](crate::Attention::descales) `[batch, kv_heads]` of q, k and v. Only numbers
    /// that are 2^8 times smaller than the largest of their row of q, their block of k or their column of v change, unless q and k are
    /// [rotated](method@Fp8::hadamard).
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{F8E4M3, Fp8, Problem, Rounded};
    /// use ndarray::{Array2, Array4};
    ///
    /// let shape = [1, 1, 2, 2];
    /// let problem = Problem::new(shape, shape, shape, false, None)?;
    /// let x = Array4::from_elem(shape, F8E4M3::from_f32(1.25));
    /// let [one, two] = [1.0, 2.0].map(|x| Array2::from_elem([1, 1], x));
    /// let descales = [one.view(), two.view(), two.view()];
    /// let rounded = Rounded::of_e4m3(Fp8::new(), &problem, [x.view(), x.view(), x.view()], descales);
    /// assert_eq!((rounded.q[[0, 0, 0, 0]], rounded.k[[0, 0, 0, 0]]), (1.25, 2.5));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// If a tensor has another shape than the problem says.
    pub fn of_e4m3(
        fp8: Fp8,
        p: &Problem,
        [q, k, v]: [ArrayView4<F8E4M3>; 3],
        descales: [ArrayView2<f32>; 3],
    ) -> Self {
        expect_shapes(p, [q.shape(), k.shape(), v.shape()]);
        for descales in &descales {
            assert_eq!(descales.shape(), [p.batch, p.kv_heads], "shape of descales");
        }
        let [q, k, v] = [q, k, v].map(|tensor| tensor.mapv(|x| x.to_f32()));
        let [q, k] = round_both(fp8, q, k);
        let v = each_head(v, |values| round_values(values, None));
        let times = |mut tensor: Array4<f32>, group: usize, descales: ArrayView2<f32>| {
            for ((batch, head), descale) in descales.indexed_iter() {
                let heads = head * group..(head + 1) * group;
                tensor
                    .slice_mut(s![batch, heads, .., ..])
                    .mapv_inplace(|x| x * descale);
            }
            tensor
        };
        let [of_q, of_k, of_v] = descales;
        Rounded {
            q: times(q, p.group(), of_q),
            k: times(k, 1, of_k),
            v: times(v, 1, of_v),
            means: Array3::zeros((p.batch, p.kv_heads, p.dim_v)),
            has_levels: true,
        }
    }

    /// [`of_e4m3`](Self::of_e4m3) of a call with options: keys that no query sees count for nothing.
    ///
    /// # Panics
    /// If a tensor has another shape than the problem says.
    pub fn of_e4m3_call(
        fp8: Fp8,
        p: &Problem,
        options: &HostOptions,
        [q, k, v]: [ArrayView4<F8E4M3>; 3],
        descales: [ArrayView2<f32>; 3],
    ) -> Self {
        let nan = F8E4M3::from_f32(f32::NAN);
        let [k, v] = [k, v].map(|tensor| options.seen_keys(p, tensor, nan));
        Self::of_e4m3(fp8, p, [q, k.view(), v.view()], descales)
    }

    /// The problem that these inputs pose.
    pub fn problem(&self, p: &Problem) -> Problem {
        Problem {
            dim: self.q.shape()[3],
            ..*p
        }
    }

    /// The means of a key/value head's columns.
    pub(crate) fn means_of(&self, batch: usize, kv_head: usize) -> ArrayView1<'_, f32> {
        self.means.slice(s![batch, kv_head, ..])
    }
}

fn expect_shapes(p: &Problem, shapes: [&[usize]; 3]) {
    assert_eq!(shapes, [p.q_shape(), p.k_shape(), p.v_shape()], "shapes");
}

/// Rows of q and k, rotated if `fp8` says so, and rounded.
fn round_both(fp8: Fp8, q: Array4<f32>, k: Array4<f32>) -> [Array4<f32>; 2] {
    let dim = q.shape()[3];
    let width = (CHUNK * row_lanes(dim as u32)) as usize;
    let [mut q, k] = match fp8.hadamard {
        true => [q, k].map(|tensor| rotated(tensor, width)),
        false => [q, k],
    };
    let most_log2 = queries_log2(q.shape()[3] as u32);
    q = each_head(q, |rows| round_rows(rows, 1, most_log2));
    if fp8.hadamard {
        // A rotation divides both by the width.
        q *= width as f32;
    }
    let k = each_head(k, |rows| round_rows(rows, FP8_BLOCK as usize, KEYS_LOG2));
    [q, k]
}

/// Rows of `width` elements: zeros behind, some signs changed, times a Hadamard matrix divided by the width.
fn rotated(tensor: Array4<f32>, width: usize) -> Array4<f32> {
    let (batch, heads, rows, dim) = tensor.dim();
    let mut wide = Array4::zeros((batch, heads, rows, width));
    wide.slice_mut(s![.., .., .., ..dim]).assign(&tensor);
    each_head(wide, |mut rows| {
        for mut row in rows.rows_mut() {
            let row = row.as_slice_mut().expect("row-major");
            for (i, x) in row.iter_mut().enumerate() {
                let signs = rotation_signs((i / CHUNK as usize) as u32);
                let sign = if signs >> (i % CHUNK as usize) & 1 != 0 {
                    -1.0
                } else {
                    1.0
                };
                *x *= sign / width as f32;
            }
            let mut step = 1;
            while step < width {
                for i in (0..width).filter(|i| i & step == 0) {
                    (row[i], row[i + step]) = (row[i] + row[i + step], row[i] - row[i + step]);
                }
                step *= 2;
            }
        }
    })
}

/// The tensor, whose heads `round` rounds.
fn each_head(mut tensor: Array4<f32>, round: impl Fn(ArrayViewMut2<f32>) + Sync) -> Array4<f32> {
    let entries = tensor.outer_iter_mut().par_bridge();
    entries.for_each(|mut heads| heads.outer_iter_mut().for_each(&round));
    tensor
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

/// Rounds values. With `means`, and how many of the values queries see, they lose the mean of each column before, which is added again.
fn round_values(mut values: ArrayViewMut2<f32>, mut means: Option<(ArrayViewMut1<f32>, usize)>) {
    if values.nrows() == 0 {
        return;
    }
    for column in 0..values.ncols() {
        let (sum, least, most) = moments(values.view(), column);
        let spread = |mean: f32| (most - mean).max(mean - least).max(0.0);
        let mut mean = 0.0;
        if let Some((means, seen)) = &mut means {
            let found = sum / *seen as f32;
            if found.is_finite() && spread(found).is_finite() {
                mean = found;
            }
            means[column] = mean;
        }
        let scale = scale_of(spread(mean), VALUES_LOG2);
        for x in values.slice_mut(s![.., column]) {
            *x = rounded(*x - mean, *x, scale) + mean;
        }
    }
}

/// A number divided by a scale, rounded, and multiplied; NaN if what it comes `from` is not finite.
fn rounded(x: f32, from: f32, scale: f32) -> f32 {
    match from.is_finite() {
        true => F8E4M3::from_f32(x * inverse_of(scale)).to_f32() * scale,
        false => f32::NAN,
    }
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
