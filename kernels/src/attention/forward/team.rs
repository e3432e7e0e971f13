//! The main loop for head dims whose O has too many columns for one warp.
//!
//! Two 16-row tiles a warp let every K and V fragment feed two products. O of these rows takes `head_dim`
//! registers a lane, which ends at 128. Here the `T` warps of a [team](crate::attention::Team) share their rows: each warp
//! computes the scores of its part of a block's keys, and adds all of `P V` to its part of O's columns. So
//! every fragment still feeds two products, and O takes `head_dim / T` registers. The price is that P
//! passes through shared memory.
//!
//! Shared memory has room for one K and one V, which take turns as stages of the pipeline: the next K
//! loads during `P V`, the next V during `Q K^T`. When V of a block is there, so is P of the whole
//! team; at this barrier the warps also vote: whether maxima must rise or, under a mask, whether V
//! holds infinities.
//!
//! Shared memory holds the Q tile, later O; K and V; P; and what the warps of a team exchange.

use super::begin;
use super::team_tiles::TeamTiles;
use crate::abi::ForwardParams;
use crate::attention::guard::multiply_guarded_tile;
use crate::attention::options::mask::{Interval, Mask, Prefix};
use crate::attention::options::score::Score;
use crate::attention::workload::heads::Heads;
use crate::attention::{Warp, WorkTile};
use crate::ptx::{barrier, shared, special};
use crate::tile::whole::{counted_from, map_rows, to_operands};
use crate::tile::{Accumulator, Copier, CpAsync, Element, Fixed, Operand, Pipeline, SharedTile};
use core::hint::cold_path;
use core::ops::Range;

/// [`sm80`](super::sm80) with teams of `T` warps, each team with `MT` tiles of 16 query rows. A
/// warp has `16 * NT` of the `16 * KT` keys of a step, and `OT` of the `DT` slices of O's columns.
///
/// # Safety
/// The conditions of [`sm80`](super::sm80).
#[inline(always)]
pub unsafe fn team<
    E: Element,
    M: Mask<Keys = Prefix>,
    H: Heads,
    C: Score,
    const W: usize,
    const T: usize,
    const MT: usize,
    const DT: usize,
    const OT: usize,
    const KT: usize,
    const NT: usize,
    const QT: usize,
>(
    params: &ForwardParams,
) {
    let (br, bc) = ((16 * MT * W / T) as u32, (16 * KT) as u32);
    let (threads, part_keys) = (32 * W as u32, 16 * NT as u32);
    // SAFETY: the launch has this many threads a block.
    let thread = unsafe { special::thread(threads) };
    let work = WorkTile::<H>::of_block::<C>(params, br);
    let (first, rows) = (work.first, work.row_count::<C>());
    let split = work.keys(params);
    let q = Copier::new(work.q_rows(&params.q), thread, threads);
    let k = Copier::new(work.k_rows::<C>(params, split.first), thread, threads);
    let v = Copier::new(work.v_rows::<C>(params, split.first), thread, threads);

    let mask = M::new(params, work.sequence, split);
    let (Range { end: blocks, .. }, runs) = begin::runs(&work, &mask, br, bc);

    let tiles = TeamTiles::<T, MT, DT, KT> {
        qo: SharedTile::new(shared::base()),
        br,
        threads,
    };
    let team = || tiles.team();
    let row = first + team().row;
    let keys = |j: u32| {
        let first_key = (j * bc) as i32;
        map_rows(|i| mask.keys_of_block(work.query(row + i), first_key))
    };
    let mut pipeline = CpAsync::<2>;

    // SAFETY: every branch here depends on the block alone, so all threads reach every barrier and
    // all lanes every tensor-core instruction. The pipeline's barriers also make P visible, and tell that all
    // warps are done with it.
    unsafe {
        q.load(tiles.qo, first, br, rows - first);
        let last_key = blocks.wrapping_sub(1).wrapping_mul(bc);
        // The last block may end beyond the last key.
        let exist = match blocks {
            0 => 0,
            _ => split.keys - last_key,
        };
        pipeline.fill(|| k.load(tiles.k(blocks), last_key, bc, exist));
        pipeline.fill(|| v.load(tiles.v(blocks), last_key, bc, exist));
        pipeline.wait_first();
        let q_tile = tiles.qo.skip(row - first);
        let mut warp =
            begin::warp::<H, C, MT, DT, OT, QT, T>(params, &work, split, row, q_tile, &team());

        // K of block j - 1, if it exists, after the last use of K of block j.
        let next_k = |pipeline: &mut CpAsync<2>, j: u32| {
            pipeline.release();
            pipeline.fill(|| k.load_whole(tiles.k(j), (j * bc).wrapping_sub(bc), bc, j > 0));
        };
        // V of block j - 1, if it exists, after the last use of V of block j, once K of block j - 1 is there.
        let next_v = |pipeline: &mut CpAsync<2>, j: u32| {
            pipeline.release();
            if j > 0 {
                pipeline.wait();
                pipeline.fill(|| v.load(tiles.v(j), (j - 1) * bc, bc, bc));
            }
        };

        let mut j = blocks;
        while j > runs.edge() {
            j -= 1;
            let s = warp.scores::<E, Accumulator, NT, DT>(tiles.own_k(j), j * bc);
            let keys = keys(j);
            let own_keys = counted_from(keys, team().side * part_keys);
            let p = warp.softmax_masked::<E, NT, T>(s, own_keys, &team());
            tiles.set_own_p(p);
            let guarded = if M::UNIFORM {
                pipeline.wait();
                false
            } else {
                pipeline.wait_own();
                pipeline.wait_others(v.loaded_non_finite::<E>(tiles.v(j), bc))
            };
            next_k(&mut pipeline, j);
            accumulate_masked::<E, _, _, T, MT, DT, OT, QT, KT, NT>(
                &mut warp, tiles, j, keys, guarded,
            );
            next_v(&mut pipeline, j);
        }
        while j > runs.whole() {
            j -= 1;
            let s = warp.scores::<E, Accumulator, NT, DT>(tiles.own_k(j), j * bc);
            let p =
                softmax::<E, C, T, MT, DT, OT, QT, KT, NT>(&mut warp, &mut pipeline, tiles, s, j);
            next_k(&mut pipeline, j);
            warp.accumulate::<E, NT, DT>(p, tiles.part_v(j, team().side));
            for t in 1..T {
                let part = (team().side + t as u32) % T as u32;
                warp.accumulate::<E, NT, DT>(tiles.part_p(part), tiles.part_v(j, part));
            }
            next_v(&mut pipeline, j);
        }

        warp.store::<E, H, T>(params, threads, &team(), WorkTile::of_block::<C>);
    }
}

/// Line 9 with old maxima, until P of the whole team and V are visible. Where P of some row of the block would overflow, all
/// teams raise the maxima.
///
/// # Safety
/// The conditions of [`Warp::new`], for all warps of the block; K of block `j` is still there.
#[inline(always)]
unsafe fn softmax<
    E: Element,
    C: Score,
    const T: usize,
    const MT: usize,
    const DT: usize,
    const OT: usize,
    const QT: usize,
    const KT: usize,
    const NT: usize,
>(
    warp: &mut Warp<MT, DT, OT, QT, Fixed, C>,
    pipeline: &mut CpAsync<2>,
    tiles: TeamTiles<T, MT, DT, KT>,
    mut s: [[Accumulator; NT]; MT],
    j: u32,
) -> [[Operand; NT]; MT] {
    let sums = warp.softmax.apply(&mut s);
    let mut p = to_operands::<E, MT, NT>(s);
    // SAFETY: the caller's promise.
    unsafe {
        tiles.set_own_p(p);
        pipeline.wait_own();
        if pipeline.wait_others(!sums.fit()) {
            cold_path();
            let s = warp.scores::<E, Accumulator, NT, DT>(tiles.own_k(j), j * 16 * KT as u32);
            p = warp.softmax_exact::<E, NT, T>(s, &tiles.team());
            tiles.set_own_p(p);
            barrier::block();
        } else {
            warp.softmax.add(sums);
        }
    }
    p
}

/// Line 10 under a mask: `O += P V`, where rows add no infinity that they do not see, if the block is `guarded`.
///
/// # Safety
/// The conditions of [`Warp::new`]; P of the whole team is visible.
#[inline(always)]
unsafe fn accumulate_masked<
    E: Element,
    C: Score,
    I: Interval,
    const T: usize,
    const MT: usize,
    const DT: usize,
    const OT: usize,
    const QT: usize,
    const KT: usize,
    const NT: usize,
>(
    warp: &mut Warp<MT, DT, OT, QT, Fixed, C>,
    tiles: TeamTiles<T, MT, DT, KT>,
    j: u32,
    keys: [[I; 2]; MT],
    guarded: bool,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if guarded {
            cold_path();
            let p = (tiles.team_p(), 0);
            multiply_guarded_tile::<E, _, MT, KT, KT, OT, DT>(
                &mut warp.o,
                p,
                tiles.own_v(j),
                keys,
                |ot| ot,
            );
        } else {
            for part in 0..T as u32 {
                warp.accumulate::<E, NT, DT>(tiles.part_p(part), tiles.part_v(j, part));
            }
        }
    }
}
