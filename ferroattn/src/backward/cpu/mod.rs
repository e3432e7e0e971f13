//! FlashAttention-2's Algorithm 2 on the CPU, in `f32`: blocks of keys stay, blocks of queries pass.
//!
//! In each round every block of keys meets another block of queries, so that no two tasks add to the same rows of
//! dq, dk or dv. All sums have the same order in every run.

mod options;

pub use options::{d_bias, d_sinks};

use super::RawBackward;
use crate::empty;
use crate::error::Result;
use crate::forward::Problem;
use crate::forward::cpu::widen;
use crate::options::{Head, HostOptions, Sequence};
use crate::tensor::{Dtype, Element};
use half::{bf16, f16};
use kernels::abi::FAR_LSE;
use ndarray::{
    Array1, Array2, ArrayView1, ArrayView2, ArrayView4, ArrayViewMut1, ArrayViewMut2,
    ArrayViewMut4, Axis,
};
use ndarray::{linalg::general_mat_mul, s};
use rayon::prelude::*;
use std::ops::Range;

/// Query rows of a block (Br).
const BR: usize = 128;
/// Keys of a block (Bc).
const BC: usize = 128;

/// Inputs of a backward pass: tensors of the shapes and with the names of [`RawBackward`](crate::RawBackward).
pub struct Inputs<'a, T> {
    pub options: HostOptions<'a>,
    pub q: ArrayView4<'a, T>,
    pub k: ArrayView4<'a, T>,
    pub v: ArrayView4<'a, T>,
    pub o: ArrayView4<'a, T>,
    /// Row-major.
    pub lse: &'a [f32],
    pub d_o: ArrayView4<'a, T>,
    /// Row-major.
    pub d_lse: Option<&'a [f32]>,
}

impl<T: Element> Inputs<'_, T> {
    /// lse and `delta = rowsum(d_o * o) - d_lse` of some rows of a head.
    fn statistics(
        &self,
        p: &Problem,
        [batch, head]: [usize; 2],
        rows: Range<usize>,
    ) -> [Vec<f32>; 2] {
        let [o, d_o] = [&self.o, &self.d_o]
            .map(|tensor| widen(tensor.slice(s![batch, head, rows.clone(), ..])));
        let first = (batch * p.heads + head) * p.seqlen_q + rows.start;
        let part = |numbers: &[f32]| numbers[first..][..rows.len()].to_vec();
        let mut delta = (&d_o * &o).sum_axis(Axis(1)).to_vec();
        if let Some(d_lse) = self.d_lse {
            let d_lse = part(d_lse);
            let pairs = delta.iter_mut().zip(d_lse);
            pairs.for_each(|(delta, d_lse)| *delta -= d_lse);
        }
        [part(self.lse), delta]
    }
}

/// Computes the gradients of a call whose arguments are checked.
///
/// # Safety
/// The conditions of [`Attention::backward_raw`](crate::Attention::backward_raw) on the CPU.
pub unsafe fn backward_raw(dtype: Dtype, problem: &Problem, args: &RawBackward) -> Result<()> {
    let backward = match dtype {
        Dtype::F16 => backward_of::<f16>,
        Dtype::Bf16 => backward_of::<bf16>,
        Dtype::F32 => backward_of::<f32>,
    };
    // SAFETY: the caller's word.
    unsafe { backward(problem, args) }
}

/// # Safety
/// The conditions of [`backward_raw`], with `T` the element type.
unsafe fn backward_of<T: Element>(problem: &Problem, args: &RawBackward) -> Result<()> {
    if problem.is_empty() {
        // SAFETY: the caller's word.
        unsafe { empty::cpu::backward::<T>(args) };
        return Ok(());
    }
    // SAFETY: the caller vouches for the memory, and that nothing writes the inputs.
    let [q, k, v, o, d_o] =
        [args.q, args.k, args.v, args.o, args.d_o].map(|input| unsafe { input.view::<T, _>() });
    // SAFETY: as above.
    let lse = unsafe { args.lse.view::<f32, _>() };
    // SAFETY: as above.
    let d_lse = args.d_lse.map(|d_lse| unsafe { d_lse.view::<f32, _>() });
    let inputs = Inputs {
        // SAFETY: as above.
        options: unsafe { args.options.host(problem, problem.batch) }?,
        q,
        k,
        v,
        o,
        lse: lse.as_slice().expect("contiguous"),
        d_o,
        d_lse: d_lse
            .as_ref()
            .map(|d_lse| d_lse.as_slice().expect("contiguous")),
    };
    // SAFETY: the caller vouches for the memory, and that nothing else touches it. The call found a place for every
    // element.
    let gradients = [args.dq, args.dk, args.dv].map(|output| unsafe { output.view_mut() });
    backward(problem, &inputs, gradients);
    if let Some(to) = args.d_sinks {
        let found = d_sinks(problem, &inputs);
        // SAFETY: as above.
        let mut to = unsafe { to.view_mut::<f32, _>() };
        to.assign(&Array1::from(found));
    }
    if let Some(to) = args.d_bias {
        // SAFETY: as above.
        d_bias(problem, &inputs, unsafe { to.view_mut() });
    }
    Ok(())
}

/// Computes the `gradients` dq, dk and dv on all threads of the current rayon pool.
///
/// # Panics
/// If a tensor has another size than the problem says.
pub fn backward<T: Element>(p: &Problem, inputs: &Inputs<T>, mut gradients: [ArrayViewMut4<T>; 3]) {
    let [mut dq, mut dk, mut dv] = gradients.each_mut().map(|gradient| {
        let rows = gradient.rows_mut().into_iter();
        rows.collect::<Vec<_>>()
    });
    let kv_heads = dk.par_chunks_mut(p.seqlen_kv);
    let kv_heads = kv_heads.zip(dv.par_chunks_mut(p.seqlen_kv));
    let groups = dq.par_chunks_mut(p.seqlen_q * p.group());
    kv_heads
        .zip(groups)
        .enumerate()
        .for_each(|(kv_head, ((dk, dv), dq))| {
            let (batch, kv_head) = (kv_head / p.kv_heads, kv_head % p.kv_heads);
            let [k, v] =
                [&inputs.k, &inputs.v].map(|tensor| tensor.slice(s![batch, kv_head, .., ..]));
            let rows = dq.iter_mut().chain(&mut *dk).chain(&mut *dv);
            rows.for_each(|row| row.fill(T::from_f32(0.0)));
            let first_head = inputs.options.head(p, [batch, kv_head * p.group()]);
            // Blocks are of one sequence, whose gradients so do not depend on its neighbours.
            for sequence in first_head.sequences.all() {
                let mut keys: Vec<_> = blocks(sequence.keys.clone(), BC)
                    .map(|keys| Keys::new(keys, k, v))
                    .collect();
                for (i, dq) in dq.chunks_mut(p.seqlen_q).enumerate() {
                    let head = [batch, kv_head * p.group() + i];
                    let mut queries: Vec<_> = blocks(sequence.queries.clone(), BR)
                        .map(|rows| Some(Queries::new(p, inputs, head, rows, &sequence)))
                        .collect();
                    add_in_rounds(&inputs.options.head(p, head), &mut keys, &mut queries);
                    let found = queries
                        .iter()
                        .flatten()
                        .flat_map(|queries| queries.dq.rows());
                    store(found, &mut dq[sequence.queries.clone()]);
                }
                let of_sequence = sequence.keys.clone();
                store(
                    keys.iter().flat_map(|keys| keys.dk.rows()),
                    &mut dk[of_sequence.clone()],
                );
                store(
                    keys.iter().flat_map(|keys| keys.dv.rows()),
                    &mut dv[of_sequence],
                );
            }
        });
}

/// Adds what each block of keys and each block of queries give each other.
fn add_in_rounds(options: &Head, keys: &mut [Keys], queries: &mut Vec<Option<Queries>>) {
    let rounds = queries.len().max(keys.len());
    queries.resize_with(rounds, || None);
    for _ in 0..rounds {
        let pairs = keys.par_iter_mut().zip(queries.par_iter_mut());
        pairs.for_each_init(Products::new, |products, (keys, queries)| {
            if let Some(queries) = queries {
                products.add(options, queries, keys);
            }
        });
        queries.rotate_left(1);
    }
}

/// The ranges that divide rows into blocks.
fn blocks(all: Range<usize>, rows: usize) -> impl Iterator<Item = Range<usize>> {
    let starts = all.clone().step_by(rows);
    starts.map(move |start| start..all.end.min(start + rows))
}

/// The blocks of queries of all sequences, with their sequence.
fn blocks_of_queries(options: &Head) -> Vec<(Range<usize>, Sequence)> {
    let sequences = options.sequences.all().into_iter();
    let blocks = sequences.flat_map(|sequence| {
        let blocks = blocks(sequence.queries.clone(), BR);
        blocks.map(move |rows| (rows, sequence.clone()))
    });
    blocks.collect()
}

/// Rounds rows to the element type.
fn store<'a, T: Element>(
    rows: impl Iterator<Item = ArrayView1<'a, f32>>,
    to: &mut [ArrayViewMut1<T>],
) {
    for (row, to) in rows.zip(to) {
        let to = to.as_slice_mut().expect("unit stride in dim");
        T::from_f32_slice(row.as_slice().expect("row-major"), to);
    }
}

/// A block of keys, and the sums of their gradients.
struct Keys {
    /// Its place in the sequence.
    keys: Range<usize>,
    /// Whether all keys and values are.
    finite: bool,
    k: Array2<f32>,
    v: Array2<f32>,
    dk: Array2<f32>,
    dv: Array2<f32>,
}

impl Keys {
    fn new<T: Element>(keys: Range<usize>, k: ArrayView2<T>, v: ArrayView2<T>) -> Self {
        let [k, v] = [k, v].map(|tensor| widen(tensor.slice(s![keys.clone(), ..])));
        Keys {
            keys,
            finite: is_finite(&k) && is_finite(&v),
            dk: Array2::zeros(k.raw_dim()),
            dv: Array2::zeros(v.raw_dim()),
            k,
            v,
        }
    }
}

/// lse of a row in two parts: P is `exp(s - max - log_sum)`.
#[derive(Clone, Copy)]
struct RowSum {
    /// lse, or the largest score where lse is [far](FAR_LSE).
    max: f32,
    /// 0, or what lse is more than that: far from 0, one number in f32 cannot hold both.
    log_sum: f32,
}

/// A block of query rows, and the sum of their gradients.
struct Queries {
    /// Its place in the sequence.
    rows: Range<usize>,
    /// Runs of rows that see a key with a finite score, in the sequence; others have no part in any gradient.
    live: Vec<Range<usize>>,
    q: Array2<f32>,
    d_o: Array2<f32>,
    /// Whether q, d_o, and lse and delta of live rows are.
    finite: bool,
    sums: Vec<RowSum>,
    /// `rowsum(d_o * o) - d_lse`.
    delta: Vec<f32>,
    dq: Array2<f32>,
}

impl Queries {
    fn new<T: Element>(
        p: &Problem,
        inputs: &Inputs<T>,
        [batch, head]: [usize; 2],
        rows: Range<usize>,
        sequence: &Sequence,
    ) -> Self {
        let [q, d_o] = [&inputs.q, &inputs.d_o]
            .map(|tensor| widen(tensor.slice(s![batch, head, rows.clone(), ..])));
        let [lse, delta] = inputs.statistics(p, [batch, head], rows.clone());
        let mut sums = lse.iter().zip(&delta);
        let sums_are_finite = sums
            .all(|(lse, delta)| *lse == f32::NEG_INFINITY || lse.is_finite() && delta.is_finite());
        let is_live = |row: &usize| lse[row - rows.start] != f32::NEG_INFINITY;
        let numbers: Vec<usize> = rows.clone().filter(is_live).collect();
        let runs = numbers.chunk_by(|a, b| a + 1 == *b);
        let near = lse.iter().map(|&max| RowSum { max, log_sum: 0.0 });
        let mut queries = Queries {
            live: runs.map(|run| run[0]..run[0] + run.len()).collect(),
            rows,
            finite: is_finite(&q) && is_finite(&d_o) && sums_are_finite,
            dq: Array2::zeros(q.raw_dim()),
            q,
            d_o,
            sums: near.collect(),
            delta,
        };
        let is_far = |lse: &f32| lse.is_finite() && lse.abs() >= FAR_LSE;
        if lse.iter().any(is_far) {
            let again = queries.sum_again(p, inputs, [batch, head], sequence);
            for ((sum, again), lse) in queries.sums.iter_mut().zip(again).zip(&lse) {
                if is_far(lse) {
                    *sum = again;
                }
            }
        }
        queries
    }

    /// The sums of all rows, from the scores of all keys of their sequence.
    fn sum_again<T: Element>(
        &self,
        p: &Problem,
        inputs: &Inputs<T>,
        [batch, head]: [usize; 2],
        sequence: &Sequence,
    ) -> Vec<RowSum> {
        let options = inputs.options.head(p, [batch, head]);
        let [k, v] =
            [&inputs.k, &inputs.v].map(|tensor| tensor.slice(s![batch, p.kv_head(head), .., ..]));
        let sink = options.sink();
        let of_sink = if sink == f32::NEG_INFINITY { 0.0 } else { 1.0 };
        let mut sums = vec![(sink, of_sink); self.rows.len()];
        let mut products = Products::new();
        for keys in blocks(sequence.keys.clone(), BC) {
            let keys = Keys::new(keys, k, v);
            for pairs in Pairs::visible(&options, self, &keys) {
                products.scores(&options, self, &keys, &pairs);
                let scores = pairs.of(&mut products.s);
                for ((max, sum), scores) in sums[pairs.rows.clone()].iter_mut().zip(scores.rows()) {
                    let largest = scores.iter().copied().fold(*max, f32::max);
                    let reference = largest.max(f32::MIN);
                    *sum *= (*max - reference).exp();
                    *sum += scores.iter().map(|s| (s - reference).exp()).sum::<f32>();
                    *max = largest;
                }
            }
        }
        let sums = sums.into_iter().map(|(max, sum)| RowSum {
            max,
            log_sum: sum.ln(),
        });
        sums.collect()
    }
}

/// The matrices that a pair of blocks makes of its scores.
struct Products {
    /// S, then P, then dS.
    s: Array2<f32>,
    /// dP.
    dp: Array2<f32>,
    /// Derivatives of S by its scaled products, where they are not 1.
    derivatives: Array2<f32>,
}

impl Products {
    fn new() -> Self {
        let [s, dp, derivatives] = [(); 3].map(|()| Array2::zeros((BR, BC)));
        Products { s, dp, derivatives }
    }

    /// Adds what a block of queries and a block of keys give each other.
    fn add(&mut self, options: &Head, queries: &mut Queries, keys: &mut Keys) {
        let scale = options.p.scale;
        for pairs in Pairs::visible(options, queries, keys) {
            let Pairs { rows, columns, .. } = &pairs;
            self.probabilities(options, queries, keys, &pairs);
            let [q, d_o] = [&queries.q, &queries.d_o].map(|all| all.slice(s![rows.clone(), ..]));
            let [mut dk, mut dv] =
                [&mut keys.dk, &mut keys.dv].map(|all| all.slice_mut(s![columns.clone(), ..]));
            // dV += P^T dO.
            general_mat_mul(1.0, &pairs.of(&mut self.s).t(), &d_o, 1.0, &mut dv);
            self.score_gradients(options, queries, &keys.v, &pairs);
            if options.has_derivatives() {
                let derivatives = pairs.of(&mut self.derivatives);
                pairs
                    .of(&mut self.s)
                    .zip_mut_with(&derivatives, |ds, derivative| *ds *= derivative);
            }
            let s = pairs.of(&mut self.s);
            // dK += scale dS^T Q, and dQ += scale dS K.
            general_mat_mul(scale, &s.t(), &q, 1.0, &mut dk);
            let mut dq = queries.dq.slice_mut(s![rows.clone(), ..]);
            let k = keys.k.slice(s![columns.clone(), ..]);
            general_mat_mul(scale, &s, &k, 1.0, &mut dq);
        }
    }

    /// P = exp(S - lse).
    fn probabilities(&mut self, options: &Head, queries: &Queries, keys: &Keys, pairs: &Pairs) {
        self.scores(options, queries, keys, pairs);
        let sums = &queries.sums[pairs.rows.clone()];
        for (mut s, sum) in pairs.of(&mut self.s).rows_mut().into_iter().zip(sums) {
            s.mapv_inplace(|s| (s - sum.max - sum.log_sum).exp());
        }
    }

    /// S = scale Q K^T and its options.
    fn scores(&mut self, options: &Head, queries: &Queries, keys: &Keys, pairs: &Pairs) {
        let Pairs { rows, columns, .. } = pairs;
        let q = queries.q.slice(s![rows.clone(), ..]);
        let k = keys.k.slice(s![columns.clone(), ..]);
        let mut s = pairs.of(&mut self.s);
        general_mat_mul(options.product_scale(), &q, &k.t(), 0.0, &mut s);
        let [row_places, key_places] = pairs.places.clone();
        if options.has_derivatives() {
            let mut derivatives = pairs.of(&mut self.derivatives);
            for ((row, column), product) in s.indexed_iter() {
                let place = [row_places.start + row, key_places.start + column];
                derivatives[[row, column]] =
                    options.derivative(place, options.scaled(*product)) as f32;
            }
        }
        options.apply(row_places, key_places, s.view_mut());
    }

    /// dP = dO V^T, and dS = P * (dP - delta) by the options' scores.
    fn score_gradients(
        &mut self,
        options: &Head,
        queries: &Queries,
        v: &Array2<f32>,
        pairs: &Pairs,
    ) {
        let Pairs { rows, columns, .. } = pairs;
        let d_o = queries.d_o.slice(s![rows.clone(), ..]);
        let v = v.slice(s![columns.clone(), ..]);
        let (mut s, mut dp) = (pairs.of(&mut self.s), pairs.of(&mut self.dp));
        general_mat_mul(1.0, &d_o, &v.t(), 0.0, &mut dp);
        let rows_of_s = s.rows_mut().into_iter().zip(dp.rows());
        for ((mut s, dp), delta) in rows_of_s.zip(&queries.delta[rows.clone()]) {
            s.zip_mut_with(&dp, |s, dp| *s *= dp - delta);
        }
        let [row_places, key_places] = pairs.places.clone();
        options.hide(row_places, key_places, s, 0.0);
    }
}

/// Some rows of a block of queries and some keys of a block.
struct Pairs {
    /// Their places in the sequence.
    places: [Range<usize>; 2],
    /// The rows in their block.
    rows: Range<usize>,
    /// The keys in their block.
    columns: Range<usize>,
}

impl Pairs {
    /// Rectangles of the pairs that see each other, of rows that see a key with a finite score.
    fn visible(options: &Head, queries: &Queries, keys: &Keys) -> Vec<Pairs> {
        let local = |range: &Range<usize>, first| range.start - first..range.end - first;
        let finite = queries.finite && keys.finite;
        let live = queries.live.iter().cloned();
        let rectangles = live.flat_map(|run| options.visible(run, keys.keys.clone(), finite));
        let pairs = rectangles.map(|(rows, columns)| Pairs {
            rows: local(&rows, queries.rows.start),
            columns: local(&columns, keys.keys.start),
            places: [rows, columns],
        });
        pairs.collect()
    }

    /// Their part of an array for a pair of blocks.
    fn of<'a>(&self, all: &'a mut Array2<f32>) -> ArrayViewMut2<'a, f32> {
        all.slice_mut(s![..self.rows.len(), ..self.columns.len()])
    }
}

/// Whether no element is NaN or infinite.
fn is_finite(tensor: &Array2<f32>) -> bool {
    tensor.iter().all(|x| x.is_finite())
}
