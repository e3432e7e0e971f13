//! FlashAttention-2 on the CPU: Algorithm 1 in `f32`, a task for each tile of query rows.

use super::fp8::Rounded;
use super::{Problem, RawForward};
use crate::empty;
use crate::error::Result;
use crate::options::{Head, HostOptions, Sequence};
use crate::tensor::{Dtype, Element};
use float8::F8E4M3;
use half::{bf16, f16};
use ndarray::{
    Array2, Array4, ArrayView2, ArrayView4, ArrayViewMut1, ArrayViewMut4, Axis, CowArray, Ix2, Zip,
};
use ndarray::{linalg::general_mat_mul, s};
use rayon::prelude::*;
use std::ops::Range;

/// Query rows of a tile (Br). Each tile converts all of K and V to `f32`; beside products of so many
/// rows that costs little.
const BR: usize = 128;
/// Keys of one step of the main loop (Bc): K, V and the scores of a step stay in the cache.
const BC: usize = 128;

/// Computes o and lse of a call whose arguments are checked.
///
/// # Safety
/// The conditions of [`Attention::forward_raw`](crate::Attention::forward_raw) on the CPU.
pub unsafe fn forward_raw(dtype: Dtype, problem: &Problem, args: &RawForward) -> Result<()> {
    let forward = match dtype {
        Dtype::F16 => forward_of::<f16>,
        Dtype::Bf16 => forward_of::<bf16>,
        Dtype::F32 => forward_of::<f32>,
    };
    // SAFETY: the caller's word.
    unsafe { forward(problem, args) }
}

/// # Safety
/// The conditions of [`forward_raw`], with `T` the element type.
unsafe fn forward_of<T: Element>(problem: &Problem, args: &RawForward) -> Result<()> {
    if problem.is_empty() {
        // SAFETY: the caller's word.
        unsafe {
            match args.options.f32_o {
                true => empty::cpu::forward::<f32>(args),
                false => empty::cpu::forward::<T>(args),
            }
        }
        return Ok(());
    }
    if args.options.fp8.is_some() {
        // SAFETY: the caller's word.
        return unsafe {
            match args.options.f32_o {
                true => forward_fp8::<T, f32>(problem, args),
                false => forward_fp8::<T, T>(problem, args),
            }
        };
    }
    // SAFETY: the caller vouches for the memory, and that nothing else touches it. The call found a place for every
    // element.
    let (o, mut lse) = unsafe { (args.o.view_mut::<T, _>(), args.lse.view_mut()) };
    let lse = lse.as_slice_mut().expect("contiguous");
    // SAFETY: the caller vouches for the memory, and that nothing writes the inputs.
    unsafe {
        let options = args.options.host(problem, args.k.shape[0])?;
        if let Some(cache) = args.options.e4m3_cache {
            let q = args.q.view::<T, _>().mapv(T::to_f32);
            let [k, v] = [args.k, args.v].map(|input| input.view::<F8E4M3, _>());
            let keys = |place| {
                let rows = options.rows_of_cache(problem, &cache, [&k, &v], place);
                rows.map(CowArray::from)
            };
            forward_in_f32(problem, &options, q.view(), keys, o, lse);
            return Ok(());
        }
        let [q, k, v] = [args.q, args.k, args.v].map(|input| input.view::<T, _>());
        forward(problem, &options, q, k, v, o, lse);
    }
    Ok(())
}

/// [`forward`] in FP8: of inputs that are rounded, or e4m3 already.
///
/// # Safety
/// The conditions of [`forward_raw`], with `T` the type of the call and `O` that of o.
unsafe fn forward_fp8<T: Element, O: Element>(p: &Problem, args: &RawForward) -> Result<()> {
    let fp8 = args.options.fp8.unwrap_or_default();
    let inputs = [args.q, args.k, args.v];
    // SAFETY: the caller vouches for the memory, that nothing else touches o and lse, and that nothing writes the inputs. The call found
    // a place for every element.
    unsafe {
        let options = args.options.host(p, args.k.shape[0])?;
        let rounded = match args.options.e4m3 {
            None => {
                let inputs = inputs.map(|input| input.view::<T, _>());
                Rounded::of_call(fp8, p, &options, inputs)
            }
            Some(e4m3) => {
                let inputs = inputs.map(|input| input.view::<F8E4M3, _>());
                let ones = Array2::ones((p.batch, p.kv_heads));
                let descales = e4m3
                    .descales()
                    .map(|descale| descale.map_or(ones.view(), |descale| descale.view()));
                Rounded::of_e4m3_call(fp8, p, &options, inputs, descales)
            }
        };
        let p = &rounded.problem(p);
        let (k, v) = (rounded.k.view(), rounded.v.view());
        let keys = |place| [&k, &v].map(|tensor| options.rows_of_keys(p, tensor, place));
        let mut lse = args.lse.view_mut();
        let lse = lse.as_slice_mut().expect("contiguous");
        let o = args.o.view_mut::<O, _>();
        forward_in_f32(p, &options, rounded.q.view(), keys, o, lse);
    }
    Ok(())
}

/// [`forward_of_keys`] of q, k and v in `f32`, with o in another type.
fn forward_in_f32<'k, T: Element>(
    p: &Problem,
    options: &HostOptions,
    q: ArrayView4<f32>,
    keys: impl Fn([usize; 2]) -> [CowArray<'k, f32, Ix2>; 2] + Sync,
    mut o: ArrayViewMut4<T>,
    lse: &mut [f32],
) {
    let mut wide = Array4::<f32>::zeros(o.raw_dim());
    forward_of_keys(p, options, q, keys, wide.view_mut(), lse);
    o.zip_mut_with(&wide, |o, wide| *o = T::from_f32(*wide));
}

/// Computes o and lse on all threads of the current rayon pool.
///
/// Tensors have the shapes and names of [`RawForward`](super::RawForward); lse is
/// a row-major `[batch, heads, seqlen_q]`. A key that a row does not see contributes nothing to it,
/// even if its key or value is NaN; a row that sees no key gets `o = 0` and the lse of its sink alone.
///
/// # Panics
/// If a tensor or `lse` has another size than the problem says.
pub fn forward<T: Element>(
    p: &Problem,
    options: &HostOptions,
    q: ArrayView4<T>,
    k: ArrayView4<T>,
    v: ArrayView4<T>,
    o: ArrayViewMut4<T>,
    lse: &mut [f32],
) {
    let keys = |place| [&k, &v].map(|tensor| options.rows_of_keys(p, tensor, place));
    forward_of_keys(p, options, q, keys, o, lse);
}

/// [`forward`], where `keys` gives the rows of k and v of a batch entry and a key/value head.
fn forward_of_keys<'k, T: Element>(
    p: &Problem,
    options: &HostOptions,
    q: ArrayView4<T>,
    keys: impl Fn([usize; 2]) -> [CowArray<'k, T, Ix2>; 2] + Sync,
    mut o: ArrayViewMut4<T>,
    lse: &mut [f32],
) {
    let mut o: Vec<_> = o.rows_mut().into_iter().collect();
    assert_eq!(lse.len(), o.len(), "length of lse");
    let heads = o.par_chunks_mut(p.seqlen_q);
    let heads = heads.zip(lse.par_chunks_mut(p.seqlen_q)).enumerate();
    heads.for_each(|(head, (o, lse))| {
        let (batch, head) = (head / p.heads, head % p.heads);
        let options = options.head(p, [batch, head]);
        let q = q.slice(s![batch, head, .., ..]);
        let [k, v] = keys([batch, p.kv_head(head)]);
        let tiles = o.par_chunks_mut(BR).zip(lse.par_chunks_mut(BR));
        tiles.enumerate().for_each(|(tile, (o, lse))| {
            let first = tile * BR;
            let q = widen(q.slice(s![first..first + o.len(), ..]));
            let mut tile = Tile::new(q, p.dim_v, options.sink());
            tile.attend(&options, first, |keys| {
                [&k, &v].map(|tensor| widen(tensor.slice(s![keys.clone(), ..])))
            });
            tile.finish(lse);
            for (row, o) in tile.o.rows().into_iter().zip(o) {
                let o = o.as_slice_mut().expect("unit stride in dim");
                T::from_f32_slice(row.as_slice().expect("row-major"), o);
            }
        });
    });
}

/// Rows in `f32`.
///
/// # Panics
/// If the elements of a row do not lie side by side.
pub fn widen<T: Element>(rows: ArrayView2<T>) -> Array2<f32> {
    let mut wide = Array2::zeros(rows.raw_dim());
    for (row, mut wide) in rows.rows().into_iter().zip(wide.rows_mut()) {
        let row = row.as_slice().expect("unit stride in a row");
        T::to_f32_slice(row, wide.as_slice_mut().expect("row-major"));
    }
    wide
}

/// The online softmax of some query rows over the keys seen so far.
struct Tile {
    q: Array2<f32>,
    /// Scores of a step, then their exponentials.
    s: Array2<f32>,
    /// `sum_j exp(s_j - m) v_j`.
    o: Array2<f32>,
    /// Largest score, the sink among them.
    m: Vec<f32>,
    /// `sum_j exp(s_j - m)`, the sink among them.
    l: Vec<f32>,
}

impl Tile {
    fn new(q: Array2<f32>, dim_v: usize, sink: f32) -> Self {
        let rows = q.nrows();
        Tile {
            s: Array2::zeros((rows, BC)),
            o: Array2::zeros((rows, dim_v)),
            m: vec![sink; rows],
            l: vec![if sink == f32::NEG_INFINITY { 0.0 } else { 1.0 }; rows],
            q,
        }
    }

    /// Attends to every visible key: `load` gives K and V of a range of keys, `first` is the tile's
    /// first row in the sequence.
    fn attend(
        &mut self,
        options: &Head,
        first: usize,
        load: impl Fn(Range<usize>) -> [Array2<f32>; 2],
    ) {
        for part in options.by_sequence(first..first + self.q.nrows()) {
            self.attend_in(options, first, part, &load);
        }
    }

    /// [`attend`](Self::attend) of rows of one sequence. Steps count from its first key, so that the results of a row do not depend
    /// on the others.
    fn attend_in(
        &mut self,
        options: &Head,
        first: usize,
        Sequence {
            queries: rows,
            keys,
        }: Sequence,
        load: impl Fn(Range<usize>) -> [Array2<f32>; 2],
    ) {
        let seen = options.range(rows.start).start..options.range(rows.end - 1).end;
        let begin = seen.start - (seen.start - keys.start) % BC;
        for start in (begin..seen.end).step_by(BC) {
            let keys = start.max(seen.start)..seen.end.min(start + BC);
            let start = keys.start;
            let [k, v] = load(keys.clone());
            // A masked probability is no mask of NaN: 0 * NaN is NaN.
            let finite = options.hides() && !options.invariant && v.iter().all(|v| v.is_finite());
            for (rows, keys) in options.visible(rows.clone(), keys, finite) {
                let part = s![keys.start - start..keys.end - start, ..];
                let [k, v] = [k.slice(part), v.slice(part)];
                let tile_rows = rows.start - first..rows.end - first;
                let mut s = self.s.slice_mut(s![tile_rows.clone(), ..keys.len()]);
                let q = self.q.slice(s![tile_rows.clone(), ..]);
                general_mat_mul(1.0, &q, &k.t(), 0.0, &mut s);
                // Behind the product: inside, sums of more than 256 terms are rounded by the number of rows.
                s *= options.product_scale();
                options.apply(rows, keys, s);
                self.step(tile_rows, v);
            }
        }
    }

    /// Adds the values of keys that all `rows` see with these scores.
    fn step(&mut self, rows: Range<usize>, v: ArrayView2<f32>) {
        let mut s = self.s.slice_mut(s![rows.clone(), ..v.nrows()]);
        let mut o = self.o.slice_mut(s![rows.clone(), ..]);
        Zip::from(s.rows_mut())
            .and(o.rows_mut())
            .and(&mut self.m[rows.clone()])
            .and(&mut self.l[rows])
            .for_each(rescale);
        general_mat_mul(1.0, &s, &v, 1.0, &mut o);
    }

    /// Divides by the row sums and writes the row log-sum-exp.
    fn finish(&mut self, lse: &mut [f32]) {
        for (i, mut o) in self.o.axis_iter_mut(Axis(0)).enumerate() {
            let (m, l) = (self.m[i], self.l[i]);
            if l == 0.0 {
                o.fill(0.0);
                lse[i] = f32::NEG_INFINITY;
            } else {
                o /= l;
                lse[i] = m + l.ln();
            }
        }
    }
}

/// Turns a row of scores into `exp(s - m)` for the new maximum, and rescales `o` and `l` to it.
fn rescale(mut s: ArrayViewMut1<f32>, mut o: ArrayViewMut1<f32>, m: &mut f32, l: &mut f32) {
    let s = s.as_slice_mut().expect("row-major");
    // `f32::max` drops NaN; the exponential of a NaN score then carries it into `l` and `o`.
    let max = s.iter().copied().fold(*m, f32::max);
    // All scores -inf: any finite reference keeps `exp(-inf - reference)` at 0.
    let reference = if max == f32::NEG_INFINITY { 0.0 } else { max };
    let alpha = (*m - reference).exp();
    for x in s.iter_mut() {
        *x = (*x - reference).exp();
    }
    *l = *l * alpha + s.iter().sum::<f32>();
    o *= alpha;
    *m = max;
}
