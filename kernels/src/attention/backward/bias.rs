//! The gradient of the bias where kernels do not add to it pair by pair: zeros before they do, and sums over axes that repeat.

use super::far::has_far_rows;
use super::job::below;
use crate::abi::BackwardParams;
use crate::attention::options::mask::{Interval, Mask};
use crate::attention::options::pairs::Pairs;
use crate::attention::options::score::{Corner, Score};
use crate::attention::workload::sequence::Sequence;
use crate::layout::fragment;
use crate::ptx::{barrier, cp_async, global, math, shared, shuffle, special};
use crate::tile::registers::fence;
use crate::tile::whole::{map_rows, zero};
use crate::tile::{Accumulator, Copier, Element, Fixed, SharedTile, multiply_transposed};

/// Writes zeros for the block's query of a head of a batch entry, with `W` warps a block.
///
/// # Safety
/// Launched as [`BackwardParams`] and the kernel's row of the [catalog](crate::catalog) say, with a block for each query of
/// each head of each batch entry, of axes that do not repeat.
#[inline(always)]
pub unsafe fn zero_bias<const W: u32>(params: &BackwardParams) {
    let [_, heads, queries] = kept(params);
    let block = special::block();
    let (head, query) = (block / queries, block % queries);
    let row = Pairs::new(&params.d_bias, [head / heads, head % heads], 4);
    // SAFETY: the launch has this many threads a block; the row is the block's own.
    unsafe {
        let mut key = special::thread(32 * W);
        while key < params.forward.seqlen_kv {
            global::store_f32(row.at(query, key), 0.0);
            key += 32 * W;
        }
    }
}

/// Extents of the first three axes of the bias's gradient: 1 where an axis repeats.
#[inline(always)]
fn kept(params: &BackwardParams) -> [u32; 3] {
    let (d_bias, forward) = (&params.d_bias, &params.forward);
    let batch = forward.batch_heads / forward.heads;
    [
        (d_bias.batch_stride, batch),
        (d_bias.head_stride, forward.heads),
        (d_bias.query_stride, forward.seqlen_q),
    ]
    .map(|(stride, extent)| if stride == 0 { 1 } else { extent })
}

/// Writes the sums of dS over the axes that repeat, in one order: of `16 * W` keys by `16 * NT` queries, or by all.
///
/// dS is computed again. So no two blocks add to one sum, and dS takes no memory.
///
/// # Safety
/// Launched as [`BackwardParams`] and the kernel's row of the [catalog](crate::catalog) say, with a block for each tile of the
/// gradient; readable inputs, statistics and sums of far rows, and a writable gradient.
#[inline(always)]
pub unsafe fn sum_bias<
    E: Element,
    M: Mask,
    C: Score,
    const W: usize,
    const DT: usize,
    const NT: usize,
>(
    params: &BackwardParams,
) {
    let forward = &params.forward;
    let (bc, br) = (16 * W as u32, 16 * NT as u32);
    let [batches, heads, queries] = kept(params);
    let (key_tiles, query_tiles) = (forward.seqlen_kv.div_ceil(bc), queries.div_ceil(br));
    let block = special::block();
    let (rest, key) = (block / key_tiles, block % key_tiles * bc);
    let (rest, query) = (rest / query_tiles, rest % query_tiles * br);
    let place = [rest / heads, rest % heads];
    let batch_end = place[0]
        + if batches == 1 {
            forward.batch_heads / forward.heads
        } else {
            1
        };
    let head_end = place[1] + if heads == 1 { forward.heads } else { 1 };
    let query_end = if queries == 1 {
        forward.seqlen_q
    } else {
        query + 1
    };

    let mut sum = [Accumulator::ZERO; NT];
    let mut batch = place[0];
    while batch < batch_end {
        let mut head = place[1];
        while head < head_end {
            let mut query = query;
            while query < query_end {
                // SAFETY: the caller's promise; branches depend on the block alone.
                unsafe { add::<E, M, C, W, DT, NT>(params, &mut sum, [batch, head], [query, key]) }
                query += br;
            }
            head += 1;
        }
        batch += 1;
    }

    // SAFETY: the launch has this many threads a block.
    let warp = unsafe { special::thread(32 * W as u32) } / 32;
    let (lane, first_key) = (special::lane(), key + 16 * warp);
    let d_bias = Pairs::new(&params.d_bias, place, 4);
    if queries == 1 {
        for r in 0..2 {
            let mut of_row = 0.0;
            for nt in 0..NT {
                let [a, b, c, d] = sum[nt].row(r);
                of_row += (a + b) + (c + d);
            }
            // SAFETY: every lane reaches this call.
            let of_row = unsafe { shuffle::reduce::<4>(of_row, |a, b| a + b) };
            let key = first_key + lane / 4 + 8 * r as u32;
            if lane % 4 == 0 && key < forward.seqlen_kv {
                // SAFETY: only this lane stores the key's sum.
                unsafe { global::store_f32(d_bias.at(0, key), of_row) }
            }
        }
        return;
    }
    for nt in 0..NT {
        for i in 0..8 {
            let (row, column) = fragment::accumulator(lane, i as u32);
            let (key, query) = (first_key + row, query + 16 * nt as u32 + column);
            if key < forward.seqlen_kv && query < queries {
                // SAFETY: only this lane stores the pair's sum.
                unsafe { global::store_f32(d_bias.at(query, key), sum[nt].0[i]) }
            }
        }
    }
}

/// Adds dS of a tile of a query head, transposed: a row for each of the warp's 16 keys.
///
/// # Safety
/// The conditions of [`sum_bias`]. All threads of the block make the same call.
#[inline(always)]
unsafe fn add<E: Element, M: Mask, C: Score, const W: usize, const DT: usize, const NT: usize>(
    params: &BackwardParams,
    sum: &mut [Accumulator; NT],
    [batch, head]: [u32; 2],
    [query, key]: [u32; 2],
) {
    let forward = &params.forward;
    let (bc, br) = (16 * W as u32, 16 * NT as u32);
    let sequence = Sequence::bounded(forward, batch);
    let mask = M::new(forward, sequence, sequence.whole()).of_head(forward, head);
    let last = (query + br).min(sequence.queries) - 1;
    let first_seen = mask.keys(query as i32).start() as u32;
    let seen_end = mask.keys(last as i32).end() as u32;
    if first_seen >= key + bc || seen_end <= key {
        return;
    }
    let k_tile = SharedTile::<DT>::new(shared::base());
    let v_tile = k_tile.skip(bc);
    let q_tile = v_tile.skip(bc);
    let d_o_tile = q_tile.skip(br);
    // SAFETY: the launch has this many threads; the rows that exist are readable and aligned; all threads pass the barriers.
    unsafe {
        let thread = special::thread(32 * W as u32);
        let (warp, lane) = (thread / 32, special::lane());
        let rows = |tensor, head, dim| {
            let rows = sequence.head_rows(tensor, head, dim);
            Copier::new(rows, thread, 32 * W as u32)
        };
        let kv_head = forward.group.divide(head).0;
        let values = C::value_dim(forward);
        // No warp reads the tiles before.
        barrier::block();
        let (keys, queries) = (sequence.keys - key, sequence.queries - query);
        rows(&forward.k, kv_head, forward.dim).load(k_tile, key, bc, keys);
        rows(&forward.v, kv_head, values).load(v_tile, key, bc, keys);
        rows(&forward.q, head, forward.dim).load(q_tile, query, br, queries);
        rows(&params.d_o, head, values).load(d_o_tile, query, br, queries);
        cp_async::commit();
        cp_async::wait::<0>();
        barrier::block();

        let [mut p, mut dp] = [[[Accumulator::ZERO; NT]; 1]; 2];
        let own = |tile: SharedTile<DT>| move |dt| [tile.skip(16 * warp).a(lane, 0, dt)];
        multiply_transposed::<E, Accumulator, Fixed, 1, NT, DT>(&mut p, own(k_tile), q_tile, lane);
        let v = own(v_tile);
        multiply_transposed::<E, Accumulator, Fixed, 1, NT, DT>(&mut dp, v, d_o_tile, lane);

        let key = key + 16 * warp;
        let score = C::new(forward, batch, head);
        let corner = Corner::new(query as i32, key as i32, sequence, sequence.whole());
        let seen = map_rows::<_, 1>(|i| match key + i < sequence.keys {
            true => mask.queries((key + i) as i32),
            false => M::Queries::default(),
        });
        let seen = seen[0].map(|queries| queries.counted_from(query as i32));
        let head_index = sequence.head_index(forward, head);
        let has_far = has_far_rows(params);
        for nt in 0..NT {
            // Else the assembler mixes the tiles, whose loads take more registers than there are for three
            // blocks: 48 bytes of spills.
            fence();
            score.apply_deriving(&mut p[0][nt], corner.skip::<true>(0, nt));
            let first = query + 16 * nt as u32;
            let mut ds = [[Accumulator::ZERO]];
            for half in 0..2 {
                let row = first + 8 * half as u32 + 2 * (lane % 4);
                let statistics = RowPair::load(params, head_index, row, has_far);
                for i in 4 * half..4 * half + 4 {
                    let s = math::mul_rz(p[0][nt].0[i], score.scale().signed());
                    ds[0][0].0[i] = statistics.ds(i % 2, s, dp[0][nt].0[i]);
                }
            }
            zero(&mut ds, [below(seen, nt)]);
            sum[nt].add(ds[0][0]);
        }
    }
}

/// Statistics of two neighbouring rows of a padded head.
struct RowPair {
    lse: [f32; 2],
    delta: [f32; 2],
    /// The maxima and 1 over the sums of far rows; 0 of others.
    max: [f32; 2],
    inverse: [f32; 2],
}

impl RowPair {
    /// Those of `row` and the next one.
    ///
    /// # Safety
    /// The statistics and the sums of far rows are written.
    #[inline(always)]
    unsafe fn load(params: &BackwardParams, head_index: u64, row: u32, has_far: bool) -> Self {
        let place = params.statistics(head_index, row);
        let (far, behind) = (place - params.rows, 4 * u64::from(params.padded_rows));
        // SAFETY: the caller's promise.
        unsafe {
            let mut pair = RowPair {
                lse: global::load_f32x2(place),
                delta: global::load_f32x2(place + behind),
                max: [0.0; 2],
                inverse: [0.0; 2],
            };
            if has_far {
                pair.max = global::load_f32x2(params.far + far);
                pair.inverse = global::load_f32x2(params.far + far + behind);
            }
            pair
        }
    }

    /// dS of a score in base 2.
    #[inline(always)]
    fn ds(&self, row: usize, s: f32, dp: f32) -> f32 {
        let is_far = self.inverse[row] > 0.0;
        let (reference, factor) = match is_far {
            true => (self.max[row], self.inverse[row]),
            false => (self.lse[row], 1.0),
        };
        math::exp2(s - reference) * factor * (dp - self.delta[row])
    }
}
