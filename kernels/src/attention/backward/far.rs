//! Gradients of rows whose lse is [far](crate::abi::FAR_LSE) from 0.
//!
//! A far lse has no digits in f32 for the logarithm of the row's sum: where a bias of the lowest number lies on all of `n` keys,
//! `exp(s - lse)` is 1 for each, not `1 / n`. The main kernels leave far rows out, by a lse of infinity in the statistics. Then
//! two kernels find their sums, in two parts, and their gradients: dq is stored, dk and dv are added to what is there.
//!
//! Far rows are rare, so these kernels are simple and slow: a warp, and tiles of 16 queries by 16 keys. Where no row is far, they
//! look at a number a row.

use crate::abi::{BackwardParams, ForwardParams, MAX_SEQLEN, TensorRef};
use crate::attention::mask::{Interval, Mask};
use crate::attention::non_finite::multiply_slices_guarded;
use crate::attention::score::{Corner, Score};
use crate::attention::sequence::Sequence;
use crate::attention::{Softmax, Total};
use crate::layout::fragment;
use crate::layout::rows::{Rows, Strided};
use crate::ptx::{barrier, cp_async, global, math, shared, shuffle, special};
use crate::tile::whole::{map_rows, zero};
use crate::tile::{Accumulator, Copier, Element, Operand, SharedTile};
use core::hint::assert_unchecked;

/// Rows and columns of a tile.
const TILE: u32 = 16;

/// Queries of a block that looks for far rows: they share a mark.
const ROWS: u32 = 128;

/// 16-column slices of the widest rows.
const SLICES: usize = 16;

/// Slices of a block that computes gradients.
const PART: usize = 4;

/// Finds the sums of the block's far rows, and marks whether there are any.
///
/// # Safety
/// Launched as [`BackwardParams`] and the kernel's row of the [catalog](crate::catalog) say, with written statistics, readable
/// inputs, and writable sums and marks.
#[inline(always)]
pub unsafe fn far_sums<E: Element, M: Mask, C: Score>(params: &BackwardParams) {
    let (forward, lane) = (&params.forward, special::lane());
    let marks = params.padded_rows / ROWS;
    let (head_index, mark) = (special::block() / marks, special::block() % marks);
    let first = ROWS * mark;
    // SAFETY: the launch has a block for each mark; all branches depend on the block alone, or reach no collective instruction.
    unsafe {
        let pair = Heads::<M, C>::new(
            forward,
            head_index / forward.heads,
            head_index % forward.heads,
        );
        let rows = far_rows(params, head_index, first + 4 * lane);
        let mut is_any_far = 0;
        for i in 0..4 {
            let is_far = pair.is_far(params, first + 4 * lane + i);
            global::store_f32(rows.max + 4 * u64::from(i), 0.0);
            global::store_f32(rows.inverse + 4 * u64::from(i), 0.0);
            is_any_far |= u32::from(is_far);
        }
        let is_any_far = shuffle::or(is_any_far);
        if lane == 0 {
            global::store_u32(mark_of(params, head_index, mark), is_any_far);
        }
        if is_any_far == 0 {
            return;
        }
        // The zeros come before the sums.
        barrier::warp();
        let mut row = first;
        while row < (first + ROWS).min(pair.sequence.queries) {
            let is_far = pair.is_far(params, row + lane % TILE);
            if shuffle::or(u32::from(is_far)) != 0 {
                let totals = pair.totals::<E>(forward, row);
                for r in 0..2 {
                    let row = row + lane / 4 + 8 * r as u32;
                    let Total { max, sum } = totals[r];
                    if lane % 4 == 0 && pair.is_far(params, row) && sum > 0.0 {
                        let rows = far_rows(params, head_index, row);
                        global::store_f32(rows.max, max);
                        global::store_f32(rows.inverse, math::reciprocal(sum));
                    }
                }
            }
            row += TILE;
        }
    }
}

/// Stores dq of far rows, and adds what far rows give to dk and dv: a block for each mark, then one for each 16 keys of each
/// key/value head, both once for each 64 columns.
///
/// # Safety
/// The conditions of [`far_sums`], which ran before, as did the kernels that write dq, dk and dv of other rows.
#[inline(always)]
pub unsafe fn far_gradients<E: Element, M: Mask, C: Score>(params: &BackwardParams) {
    let forward = &params.forward;
    let columns = 16 * PART as u32;
    let parts = forward.dim.max(C::value_dim(forward)).div_ceil(columns);
    let (block, part) = (special::block() / parts, special::block() % parts);
    let marks = params.padded_rows / ROWS;
    let of_queries = forward.batch_heads * marks;
    // SAFETY: the caller's promise.
    unsafe {
        if block < of_queries {
            let (head_index, mark) = (block / marks, block % marks);
            if global::load_u32(mark_of(params, head_index, mark)) != 0 {
                gradients_of_queries::<E, M, C>(params, head_index, mark, part);
            }
        } else {
            gradients_of_keys::<E, M, C>(params, block - of_queries, part);
        }
    }
}

/// Stores dq of the far rows under a mark, in one part of its columns, and adds to the gradient of the bias.
///
/// # Safety
/// The conditions of [`far_gradients`].
#[inline(always)]
unsafe fn gradients_of_queries<E: Element, M: Mask, C: Score>(
    params: &BackwardParams,
    head_index: u32,
    mark: u32,
    part: u32,
) {
    let (forward, lane) = (&params.forward, special::lane());
    let heads = Heads::<M, C>::new(
        forward,
        head_index / forward.heads,
        head_index % forward.heads,
    );
    let mut row = ROWS * mark;
    // SAFETY: the caller's promise; all branches depend on the block alone.
    unsafe {
        while row < (ROWS * (mark + 1)).min(heads.sequence.queries) {
            if is_any_far(params, head_index, row) {
                let mut dq = [[Accumulator::ZERO; PART]];
                let keys = heads.keys_of(row);
                let mut key = keys[0];
                heads.load_queries(params, head_index, row);
                while key < keys[1] {
                    heads.load_keys(forward, key);
                    let found = heads.probabilities::<E>(params, head_index, row, key);
                    if part == 0 {
                        let head = [heads.sequence.batch, heads.head];
                        let corner = heads.corner(row, key);
                        C::add_gradients::<1, 1, false>(params, head, &[[found.ds]], corner);
                    }
                    let ds = found.by_products().to_operand::<E>();
                    ds_tile().set(lane, 0, 0, ds);
                    barrier::warp();
                    let seen = map_rows::<_, 1>(|i| heads.keys(row + i).counted_from(key as i32));
                    multiply_slices_guarded::<E, 1, 1, PART>(
                        &mut dq,
                        |_| [ds_tile().a_trans(lane, 0, 0, 0)],
                        |_, nt| tile(K).b_trans(lane, 0, slice(part, nt)),
                        seen,
                    );
                    key += TILE;
                }
                let rows = heads.rows(&params.dq, heads.head, forward.dim);
                for_each_element(dq, part, forward.dim, |i, column, gradient| {
                    let row = row + i;
                    if row < heads.sequence.queries && inverse_of(params, head_index, row) > 0.0 {
                        let to = rows.at(row) + 2 * u64::from(column);
                        global::store_u16(to, E::pack(gradient * forward.scale, 0.0) as u16);
                    }
                });
            }
            row += TILE;
        }
    }
}

/// Adds what far rows give to dk and dv of 16 keys of a key/value head, in one part of the columns.
///
/// # Safety
/// The conditions of [`far_gradients`].
#[inline(always)]
unsafe fn gradients_of_keys<E: Element, M: Mask, C: Score>(
    params: &BackwardParams,
    place: u32,
    part: u32,
) {
    let (forward, lane) = (&params.forward, special::lane());
    let (marks, group) = (params.padded_rows / ROWS, forward.group.value);
    let key_tiles = forward.seqlen_kv.div_ceil(TILE);
    let (kv_head_index, key) = (place / key_tiles, place % key_tiles * TILE);
    let mut dk = [[Accumulator::ZERO; PART]];
    let mut dv = dk;
    let mut is_any = false;
    // SAFETY: the caller's promise; all branches depend on the block alone, or reach no collective instruction.
    unsafe {
        let mut head_index = kv_head_index * group;
        while head_index < (kv_head_index + 1) * group {
            let mut first_mark = 0;
            while first_mark < marks {
                let mark = first_mark + lane;
                let is_marked = match mark < marks {
                    true => global::load_u32(mark_of(params, head_index, mark)),
                    false => 0,
                };
                // Rows under 32 marks.
                let end = match shuffle::or(is_marked) {
                    0 => 0,
                    _ => (ROWS * (first_mark + 32)).min(forward.seqlen_q),
                };
                let mut row = ROWS * first_mark;
                while row < end {
                    let is_marked = global::load_u32(mark_of(params, head_index, row / ROWS)) != 0;
                    if is_marked && is_any_far(params, head_index, row) {
                        is_any = true;
                        let (batch, head) =
                            (head_index / forward.heads, head_index % forward.heads);
                        let heads = Heads::<M, C>::new(forward, batch, head);
                        heads.load_queries(params, head_index, row);
                        heads.load_keys(forward, key);
                        let found = heads.probabilities::<E>(params, head_index, row, key);
                        let seen =
                            map_rows::<_, 1>(|i| heads.queries(key + i).counted_from(row as i32));
                        multiply_slices_guarded::<E, 1, 1, PART>(
                            &mut dv,
                            |_| [found.p.to_operand::<E>()],
                            |_, nt| tile(D_O).b_trans(lane, 0, slice(part, nt)),
                            seen,
                        );
                        multiply_slices_guarded::<E, 1, 1, PART>(
                            &mut dk,
                            |_| [found.by_products().to_operand::<E>()],
                            |_, nt| tile(Q).b_trans(lane, 0, slice(part, nt)),
                            seen,
                        );
                    }
                    row += TILE;
                }
                first_mark += 32;
            }
            head_index += 1;
        }
        if !is_any {
            return;
        }
        let (batch, kv_head) = (
            kv_head_index / forward.tile_heads.value,
            kv_head_index % forward.tile_heads.value,
        );
        let sequence = Sequence::new(forward, batch);
        // Called twice: a loop would put the gradients into memory.
        let add = |tensor: &TensorRef, dim: u32, gradients, factor: f32| {
            let rows = sequence.head_rows(tensor, kv_head, dim);
            for_each_element(gradients, part, dim, |i, column, gradient| {
                if key + i < sequence.keys {
                    let to = rows.at(key + i) + 2 * u64::from(column);
                    let sum = math::fma(gradient, factor, E::widen(global::load_u16(to)));
                    global::store_u16(to, E::pack(sum, 0.0) as u16);
                }
            });
        };
        add(&params.dk, forward.dim, dk, forward.scale);
        add(&params.dv, C::value_dim(forward), dv, 1.0);
    }
}

/// The numbers of the block's tiles of q, k, v and d_o in shared memory.
const Q: u32 = 0;
const K: u32 = 1;
const V: u32 = 2;
const D_O: u32 = 3;

#[inline(always)]
fn tile(number: u32) -> SharedTile<SLICES> {
    SharedTile::new(shared::base()).skip(TILE * number)
}

#[inline(always)]
fn ds_tile() -> SharedTile<2> {
    SharedTile::new(tile(4).base)
}

/// The slice of a tile's columns that has slice `nt` of a part.
#[inline(always)]
fn slice(part: u32, nt: usize) -> usize {
    PART * part as usize + nt
}

/// Addresses of what far rows have beside the statistics, from one row on.
struct FarRows {
    /// The largest score, in base 2.
    max: u64,
    /// 1 over the sum of the exponentials; 0 where the row is not far.
    inverse: u64,
}

#[inline(always)]
fn far_rows(params: &BackwardParams, head_index: u32, row: u32) -> FarRows {
    let max = params.far + (params.statistics(u64::from(head_index), row) - params.rows);
    FarRows {
        max,
        inverse: max + 4 * u64::from(params.padded_rows),
    }
}

/// Address of the mark of rows of a head: not 0 if one of them is far.
#[inline(always)]
fn mark_of(params: &BackwardParams, head_index: u32, mark: u32) -> u64 {
    let marks = u64::from(params.padded_rows / ROWS);
    params.far_marks + 4 * (u64::from(head_index) * marks + u64::from(mark))
}

/// 1 over the sum of a far row, 0 of others.
///
/// # Safety
/// [`far_sums`] has run, and the row is one of the padded head.
#[inline(always)]
unsafe fn inverse_of(params: &BackwardParams, head_index: u32, row: u32) -> f32 {
    // SAFETY: the caller's promise.
    unsafe { global::load_f32(far_rows(params, head_index, row).inverse) }
}

/// Whether one of 16 rows is far.
///
/// # Safety
/// The conditions of [`inverse_of`], for all rows. Every lane of the warp makes the same call.
#[inline(always)]
unsafe fn is_any_far(params: &BackwardParams, head_index: u32, row: u32) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        let inverse = inverse_of(params, head_index, row + special::lane() % TILE);
        shuffle::or(inverse.to_bits()) != 0
    }
}

/// Calls `f` with the row in the tile, the column and the value of each of the lane's elements in columns that exist.
#[inline(always)]
fn for_each_element(
    tiles: [[Accumulator; PART]; 1],
    part: u32,
    dim: u32,
    f: impl Fn(u32, u32, f32),
) {
    let lane = special::lane();
    for nt in 0..PART {
        for i in 0..8 {
            let (row, column) = fragment::accumulator(lane, i as u32);
            let column = 16 * slice(part, nt) as u32 + column;
            if column < dim {
                f(row, column, tiles[0][nt].0[i]);
            }
        }
    }
}

/// What a tile of keys, its rows, and far queries, its columns, give each other.
struct Found {
    p: Accumulator,
    /// `P * (dP - delta)`.
    ds: Accumulator,
    /// Derivatives of scores by scaled products.
    derivatives: Accumulator,
}

impl Found {
    /// Gradients of the scaled products.
    #[inline(always)]
    fn by_products(&self) -> Accumulator {
        let mut ds = self.ds;
        for i in 0..8 {
            ds.0[i] *= self.derivatives.0[i];
        }
        ds
    }
}

/// A query head and its key/value head.
#[derive(Clone, Copy)]
struct Heads<M, C> {
    sequence: Sequence,
    head: u32,
    kv_head: u32,
    mask: M,
    score: C,
}

impl<M: Mask, C: Score> Heads<M, C> {
    #[inline(always)]
    fn new(params: &ForwardParams, batch: u32, head: u32) -> Self {
        let sequence = Sequence::new(params, batch);
        // Else the mask checks the order of its bounds, and panics.
        // SAFETY: a launch has no longer sequence.
        unsafe { assert_unchecked(sequence.queries <= MAX_SEQLEN && sequence.keys <= MAX_SEQLEN) }
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
    fn corner(&self, query: u32, key: u32) -> Corner {
        let whole = self.sequence.whole();
        Corner::new(query as i32, key as i32, self.sequence, whole)
    }

    #[inline(always)]
    fn keys(&self, query: u32) -> M::Keys {
        match query < self.sequence.queries {
            true => self.mask.keys(query as i32),
            false => M::Keys::default(),
        }
    }

    #[inline(always)]
    fn queries(&self, key: u32) -> M::Queries {
        match key < self.sequence.keys {
            true => self.mask.queries(key as i32),
            false => M::Queries::default(),
        }
    }

    /// The first key of the first tile that a query of a tile sees, and the end of the keys that one sees.
    #[inline(always)]
    fn keys_of(&self, first: u32) -> [u32; 2] {
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
    unsafe fn is_far(&self, params: &BackwardParams, row: u32) -> bool {
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
    fn rows(&self, tensor: &TensorRef, head: u32, dim: u32) -> Strided {
        self.sequence.head_rows(tensor, head, dim)
    }

    /// Loads 16 rows of a tensor into a tile.
    ///
    /// # Safety
    /// Every lane of the warp makes the same call; the rows are readable and aligned, and no lane uses the tile.
    #[inline(always)]
    unsafe fn load(&self, rows: Strided, number: u32, first: u32, all: u32) {
        let copier = Copier::new(rows, special::lane(), 32);
        // SAFETY: the caller's promise.
        unsafe { copier.load(tile(number), first, TILE, all - first) }
    }

    /// Loads tiles of q and d_o, with zeros in the place of rows that are not far: whatever they hold, they have no part.
    ///
    /// # Safety
    /// The conditions of [`far_gradients`]. Every lane of the warp makes the same call.
    #[inline(always)]
    unsafe fn load_queries(&self, params: &BackwardParams, head_index: u32, first: u32) {
        let forward = &params.forward;
        let of = |tensor, dim| self.rows(tensor, self.head, dim);
        // SAFETY: the caller's promise. A row has as many chunks as there are lanes.
        unsafe {
            barrier::warp();
            self.load(of(&forward.q, forward.dim), Q, first, self.sequence.queries);
            let values = C::value_dim(forward);
            self.load(of(&params.d_o, values), D_O, first, self.sequence.queries);
            land();
            let mut row = 0;
            while row < TILE {
                if inverse_of(params, head_index, first + row) == 0.0 {
                    shared::store_u32x4(tile(Q).chunk(row, special::lane()), [0; 4]);
                    shared::store_u32x4(tile(D_O).chunk(row, special::lane()), [0; 4]);
                }
                row += 1;
            }
            barrier::warp();
        }
    }

    /// Loads tiles of k and v.
    ///
    /// # Safety
    /// The conditions of [`load_queries`](Self::load_queries).
    #[inline(always)]
    unsafe fn load_keys(&self, forward: &ForwardParams, first: u32) {
        let of = |tensor, dim| self.rows(tensor, self.kv_head, dim);
        // SAFETY: the caller's promise.
        unsafe {
            barrier::warp();
            self.load(of(&forward.k, forward.dim), K, first, self.sequence.keys);
            let values = C::value_dim(forward);
            self.load(of(&forward.v, values), V, first, self.sequence.keys);
            land();
        }
    }

    /// The maxima and sums of rows `g` and `g + 8` of a tile of queries, over all keys.
    ///
    /// # Safety
    /// The conditions of [`far_sums`]. Every lane of the warp makes the same call.
    #[inline(always)]
    unsafe fn totals<E: Element>(&self, forward: &ForwardParams, first: u32) -> [Total; 2] {
        let scale = self.score.scale();
        let mut softmax = Softmax::<1>::new(scale);
        softmax.take_sink(C::sink(forward, self.sequence.whole(), self.head));
        let keys = self.keys_of(first);
        // SAFETY: the caller's promise; branches depend on the block alone.
        unsafe {
            barrier::warp();
            let q = self.rows(&forward.q, self.head, forward.dim);
            self.load(q, Q, first, self.sequence.queries);
            let mut key = keys[0];
            while key < keys[1] {
                barrier::warp();
                let k = self.rows(&forward.k, self.kv_head, forward.dim);
                self.load(k, K, key, self.sequence.keys);
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
    unsafe fn probabilities<E: Element>(
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

/// The product of a tile's rows with another's.
///
/// # Safety
/// Both are written and visible. Every lane of the warp makes the same call.
#[inline(always)]
unsafe fn product<E: Element>(a: u32, b: u32, dim: u32) -> Accumulator {
    let mut product = Accumulator::ZERO;
    let lane = special::lane();
    let mut column = 0;
    while column < dim {
        let slice = column as usize / 16;
        // SAFETY: the caller's promise.
        unsafe {
            let a: Operand = tile(a).a(lane, 0, slice);
            product.mma::<E>(a, tile(b).b(lane, 0, slice));
        }
        column += 16;
    }
    product
}

/// Waits until the warp's copies are there.
///
/// # Safety
/// Every lane of the warp makes the same call.
#[inline(always)]
unsafe fn land() {
    // SAFETY: the caller's promise.
    unsafe {
        cp_async::commit();
        cp_async::wait::<0>();
        barrier::warp();
    }
}
