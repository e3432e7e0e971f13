//! Scores, P and dS of a tile of a head.

use super::far_rows;
use super::tiles::{D_O, K, Q, TILE, V, land, load, product};
use crate::abi::{BackwardParams, ForwardParams, TensorRef};
use crate::attention::options::mask::{Interval, Mask, Visible};
use crate::attention::options::score::{Corner, Score};
use crate::attention::workload::sequence::Sequence;
use crate::attention::{Softmax, Total};
use crate::layout::fragment;
use crate::layout::rows::Strided;
use crate::ptx::{barrier, global, math, special};
use crate::tile::whole::{map_rows, zero};
use crate::tile::{Accumulator, Element};

/// P and dS of a tile of keys, its rows, and far queries, its columns.
pub struct Found {
    pub p: Accumulator,
    /// `P * (dP - delta)`.
    pub ds: Accumulator,
    /// Derivatives of scores by scaled products.
    derivatives: Accumulator,
}

impl Found {
    /// Gradients of the scaled products.
    #[inline(always)]
    pub fn by_products(&self) -> Accumulator {
        let mut ds = self.ds;
        for i in 0..8 {
            ds.0[i] *= self.derivatives.0[i];
        }
        ds
    }
}

/// A query head and its key/value head.
#[derive(Clone, Copy)]
pub struct Heads<M, C> {
    pub sequence: Sequence,
    pub head: u32,
    kv_head: u32,
    mask: M,
    score: C,
}

impl<M: Mask, C: Score> Heads<M, C> {
    #[inline(always)]
    pub fn new(params: &ForwardParams, batch: u32, head: u32) -> Self {
        let sequence = Sequence::bounded(params, batch);
        let mask = M::new(params, sequence, sequence.whole());
        Heads {
            sequence,
            head,
            kv_head: params.group.divide(head).0,
            mask: mask.of_head(params, head),
            score: C::new(params, batch, head),
        }
    }

    #[inline(always)]
    pub fn corner(&self, query: u32, key: u32) -> Corner {
        let whole = self.sequence.whole();
        Corner::new(query as i32, key as i32, self.sequence, whole)
    }

    #[inline(always)]
    pub fn keys(&self, query: u32) -> M::Keys {
        match query < self.sequence.queries {
            true => self.mask.keys(query as i32),
            false => M::Keys::default(),
        }
    }

    #[inline(always)]
    pub fn queries(&self, key: u32) -> M::Queries {
        match key < self.sequence.keys {
            true => self.mask.queries(key as i32),
            false => M::Queries::default(),
        }
    }

    /// The first key of the first tile that a query of a tile sees, and the end of the keys that one sees.
    #[inline(always)]
    pub fn keys_of(&self, first: u32) -> [u32; 2] {
        let last = (first + TILE).min(self.sequence.queries) - 1;
        let start = self.mask.keys(first as i32).start() as u32;
        let end = self.mask.keys(last as i32).end() as u32;
        [start / TILE * TILE, end]
    }

    /// Whether a row is far and has a part in gradients: then its lse is infinity in the statistics, and its delta is not `+0`.
    ///
    /// # Safety
    /// The statistics are written, and the row is one of the padded head.
    #[inline(always)]
    pub unsafe fn is_far(&self, params: &BackwardParams, row: u32) -> bool {
        if row >= self.sequence.queries {
            return false;
        }
        let head_index = self.sequence.head_index(&params.forward, self.head);
        let place = params.statistics(head_index, row);
        // SAFETY: the caller's promise.
        unsafe {
            let lse = global::load_f32(place);
            let delta = global::load_u32(place + 4 * u64::from(params.padded_rows));
            lse == f32::INFINITY && delta != 0
        }
    }

    #[inline(always)]
    pub fn rows(&self, tensor: &TensorRef, head: u32, dim: u32) -> Strided {
        self.sequence.head_rows(tensor, head, dim)
    }

    /// Loads tiles of q and d_o.
    ///
    /// # Safety
    /// The conditions of [`far_gradients`](super::far_gradients). Every lane of the warp makes the same call.
    #[inline(always)]
    pub unsafe fn load_queries(&self, params: &BackwardParams, first: u32) {
        let forward = &params.forward;
        let of = |tensor, dim| self.rows(tensor, self.head, dim);
        // SAFETY: the caller's promise.
        unsafe {
            barrier::warp();
            load(of(&forward.q, forward.dim), Q, first, self.sequence.queries);
            let values = C::value_dim(forward);
            load(of(&params.d_o, values), D_O, first, self.sequence.queries);
            land();
        }
    }

    /// Loads tiles of k and v.
    ///
    /// # Safety
    /// The conditions of [`load_queries`](Self::load_queries).
    #[inline(always)]
    pub unsafe fn load_keys(&self, forward: &ForwardParams, first: u32) {
        let of = |tensor, dim| self.rows(tensor, self.kv_head, dim);
        // SAFETY: the caller's promise.
        unsafe {
            barrier::warp();
            load(of(&forward.k, forward.dim), K, first, self.sequence.keys);
            let values = C::value_dim(forward);
            load(of(&forward.v, values), V, first, self.sequence.keys);
            land();
        }
    }

    /// The maxima and sums of rows `g` and `g + 8` of a tile of queries, over all keys.
    ///
    /// # Safety
    /// The conditions of [`far_sums`](super::far_sums). Every lane of the warp makes the same call.
    #[inline(always)]
    pub unsafe fn totals<E: Element>(&self, forward: &ForwardParams, first: u32) -> [Total; 2] {
        let scale = self.score.scale();
        let mut softmax = Softmax::<1>::new(scale);
        softmax.take_sink(C::sink(forward, self.sequence.whole(), self.head), true);
        let keys = self.keys_of(first);
        // SAFETY: the caller's promise; branches depend on the block alone.
        unsafe {
            barrier::warp();
            let q = self.rows(&forward.q, self.head, forward.dim);
            load(q, Q, first, self.sequence.queries);
            let mut key = keys[0];
            while key < keys[1] {
                barrier::warp();
                let k = self.rows(&forward.k, self.kv_head, forward.dim);
                load(k, K, key, self.sequence.keys);
                land();
                let mut s = [[product::<E>(Q, K, forward.dim)]];
                self.score
                    .apply::<false, 1, 1>(&mut s, self.corner(first, key));
                if scale.negative {
                    s[0][0] = s[0][0].negate();
                }
                let [seen] = map_rows::<_, 1>(|i| self.keys(first + i).counted_from(key as i32));
                M::Keys::mask::<1>(&mut s, seen);
                let maxima = softmax.maxima(&s[0]);
                softmax.update(0, &mut s[0], maxima);
                key += TILE;
            }
            let [totals] = softmax.totals();
            totals
        }
    }

    /// P and dS of the loaded tiles; 0 for queries that are not far and pairs that do not see each other.
    ///
    /// # Safety
    /// The conditions of [`load_queries`](Self::load_queries).
    #[inline(always)]
    pub unsafe fn probabilities<E: Element>(
        &self,
        params: &BackwardParams,
        head_index: u32,
        first: u32,
        key: u32,
    ) -> Found {
        let forward = &params.forward;
        // SAFETY: the caller's promise; padded heads have statistics of whole tiles.
        unsafe {
            let mut p = product::<E>(K, Q, forward.dim);
            let mut ds = product::<E>(V, D_O, C::value_dim(forward));
            let derivatives = self.score.apply_deriving(&mut p, self.corner(first, key));
            let scale = self.score.scale().signed();
            for i in 0..8 {
                let (_, column) = fragment::accumulator(special::lane(), i as u32);
                let rows = far_rows(params, head_index, first + column);
                let inverse = global::load_f32(rows.inverse);
                let delta = params.statistics(u64::from(head_index), first + column)
                    + 4 * u64::from(params.padded_rows);
                if inverse > 0.0 {
                    let score = math::mul_rz(p.0[i], scale) - global::load_f32(rows.max);
                    p.0[i] = math::exp2(score) * inverse;
                    ds.0[i] = p.0[i] * (ds.0[i] - global::load_f32(delta));
                } else {
                    (p.0[i], ds.0[i]) = (0.0, 0.0);
                }
            }
            let seen = map_rows::<_, 1>(|i| self.queries(key + i).counted_from(first as i32));
            let [mut p, mut ds] = [[[p]], [[ds]]];
            zero(&mut p, seen);
            zero(&mut ds, seen);
            let ([[p]], [[ds]]) = (p, ds);
            Found { p, ds, derivatives }
        }
    }
}
