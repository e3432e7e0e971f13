//! FlashAttention-2's Algorithm 2 on the CPU, in `f32`: blocks of keys stay, blocks of queries pass.
//!
//! In each round every block of keys meets another block of queries, so that no two tasks add to the same rows of
//! dq, dk or dv. All sums have the same order in every run.

use crate::forward::Problem;
use crate::forward::cpu::widen;
use crate::tensor::Element;
use ndarray::{Array2, ArrayView1, ArrayView2, ArrayView4, ArrayViewMut1, ArrayViewMut4, Axis};
use ndarray::{linalg::general_mat_mul, s};
use rayon::prelude::*;
use std::ops::Range;

/// Query rows of a block (Br).
const BR: usize = 128;
/// Keys of a block (Bc).
const BC: usize = 128;

/// What a backward pass reads: tensors of the shapes and with the names of [`RawBackward`](super::RawBackward).
pub struct Inputs<'a, T> {
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
            let mut keys: Vec<_> = blocks(p.seqlen_kv, BC)
                .map(|keys| Keys::new(keys, k, v))
                .collect();
            for (i, dq) in dq.chunks_mut(p.seqlen_q).enumerate() {
                let head = [batch, kv_head * p.group() + i];
                let mut queries: Vec<_> = blocks(p.seqlen_q, BR)
                    .map(|rows| Some(Queries::new(p, inputs, head, rows)))
                    .collect();
                let rounds = queries.len().max(keys.len());
                queries.resize_with(rounds, || None);
                for _ in 0..rounds {
                    let pairs = keys.par_iter_mut().zip(queries.par_iter_mut());
                    pairs.for_each_init(Products::new, |products, (keys, queries)| {
                        if let Some(queries) = queries {
                            products.add(p, queries, keys);
                        }
                    });
                    queries.rotate_left(1);
                }
                let found = queries
                    .iter()
                    .flatten()
                    .flat_map(|queries| queries.dq.rows());
                store(found, dq);
            }
            store(keys.iter().flat_map(|keys| keys.dk.rows()), dk);
            store(keys.iter().flat_map(|keys| keys.dv.rows()), dv);
        });
}

/// The ranges that divide `len` rows into blocks.
fn blocks(len: usize, rows: usize) -> impl Iterator<Item = Range<usize>> {
    let starts = (0..len).step_by(rows);
    starts.map(move |start| start..len.min(start + rows))
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
            dk: Array2::zeros(k.raw_dim()),
            dv: Array2::zeros(v.raw_dim()),
            k,
            v,
        }
    }
}

/// A block of query rows, and the sum of their gradients.
struct Queries {
    /// Its place in the sequence.
    rows: Range<usize>,
    /// Runs of rows that see a key with a finite score, in the sequence; others have no part in any gradient.
    live: Vec<Range<usize>>,
    q: Array2<f32>,
    d_o: Array2<f32>,
    lse: Vec<f32>,
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
    ) -> Self {
        let [q, o, d_o] = [&inputs.q, &inputs.o, &inputs.d_o]
            .map(|tensor| widen(tensor.slice(s![batch, head, rows.clone(), ..])));
        let first = (batch * p.heads + head) * p.seqlen_q + rows.start;
        let part = |numbers: &[f32]| numbers[first..][..rows.len()].to_vec();
        let lse = part(inputs.lse);
        let mut delta = (&d_o * &o).sum_axis(Axis(1)).to_vec();
        if let Some(d_lse) = inputs.d_lse {
            let d_lse = part(d_lse).into_iter();
            delta
                .iter_mut()
                .zip(d_lse)
                .for_each(|(delta, d_lse)| *delta -= d_lse);
        }
        let is_live = |row: &usize| lse[row - rows.start] != f32::NEG_INFINITY;
        let numbers: Vec<usize> = rows.clone().filter(is_live).collect();
        let runs = numbers.chunk_by(|a, b| a + 1 == *b);
        Queries {
            live: runs.map(|run| run[0]..run[0] + run.len()).collect(),
            rows,
            dq: Array2::zeros(q.raw_dim()),
            q,
            d_o,
            lse,
            delta,
        }
    }
}

/// What a pair of blocks makes of its scores.
struct Products {
    /// S, then P, then dS.
    s: Array2<f32>,
    /// dP.
    dp: Array2<f32>,
}

impl Products {
    fn new() -> Self {
        let [s, dp] = [(); 2].map(|()| Array2::zeros((BR, BC)));
        Products { s, dp }
    }

    /// Adds what a block of queries and a block of keys give each other.
    fn add(&mut self, p: &Problem, queries: &mut Queries, keys: &mut Keys) {
        for run in queries.live.clone() {
            for (rows, columns) in p.visible(run, keys.keys.clone()) {
                let local = |range: Range<usize>, first| range.start - first..range.end - first;
                let rows = local(rows, queries.rows.start);
                let columns = local(columns, keys.keys.start);
                self.add_rectangle(p.scale, queries, rows, keys, columns);
            }
        }
    }

    /// The five products of rows and keys that all see each other.
    fn add_rectangle(
        &mut self,
        scale: f32,
        queries: &mut Queries,
        rows: Range<usize>,
        keys: &mut Keys,
        columns: Range<usize>,
    ) {
        let [q, d_o] = [&queries.q, &queries.d_o].map(|all| all.slice(s![rows.clone(), ..]));
        let [k, v] = [&keys.k, &keys.v].map(|all| all.slice(s![columns.clone(), ..]));
        let [mut s, mut dp] =
            [&mut self.s, &mut self.dp].map(|all| all.slice_mut(s![..rows.len(), ..columns.len()]));
        let mut dq = queries.dq.slice_mut(s![rows.clone(), ..]);
        let [mut dk, mut dv] =
            [&mut keys.dk, &mut keys.dv].map(|all| all.slice_mut(s![columns.clone(), ..]));

        // 1. S = scale Q K^T, and P = exp(S - lse).
        general_mat_mul(scale, &q, &k.t(), 0.0, &mut s);
        for (mut s, lse) in s.rows_mut().into_iter().zip(&queries.lse[rows.clone()]) {
            s.mapv_inplace(|s| (s - lse).exp());
        }
        // 2. dP = dO V^T.
        general_mat_mul(1.0, &d_o, &v.t(), 0.0, &mut dp);
        // 3. dV += P^T dO, and dS = P * (dP - delta).
        general_mat_mul(1.0, &s.t(), &d_o, 1.0, &mut dv);
        let rows_of_s = s.rows_mut().into_iter().zip(dp.rows());
        for ((mut s, dp), delta) in rows_of_s.zip(&queries.delta[rows]) {
            s.zip_mut_with(&dp, |s, dp| *s *= dp - delta);
        }
        // 4. dK += scale dS^T Q.
        general_mat_mul(scale, &s.t(), &q, 1.0, &mut dk);
        // 5. dQ += scale dS K.
        general_mat_mul(scale, &s, &k, 1.0, &mut dq);
    }
}
