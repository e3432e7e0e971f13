//! FlashAttention-2 forward, one query tile a block.
//!
//! A block holds Br query rows, split over its warps in 16-row tiles. It walks over the keys in blocks of Bc, from
//! the last visible one to the first, so that masked blocks come first. One stage of the
//! pipeline is V of block `j` and K of block `j - 1`. In a step of the main loop a warp
//!
//! 1. turns the scores of block `j` into probabilities,
//! 2. waits for V of block `j` and K of block `j - 1`, and starts the copies of the next stage,
//! 3. adds `P V` of block `j` to O, and computes the scores of block `j - 1`: two products that the
//!    assembler can mix, so that tensor cores wait for the operands of neither.
//!
//! Two blocks share a multiprocessor: while a warp of one is at 1, which uses no tensor core, a warp of
//! the other can be at 3.
//!
//! Shared memory holds the Q tile, later O, and then K and V of each stage.

use super::begin;
use crate::abi::ForwardParams;
use crate::attention::options::mask::{Interval, Mask, Visible, seen_blocks, whole_blocks};
use crate::attention::options::score::Score;
use crate::attention::workload::heads::Heads;
use crate::attention::workload::walk::{Runs, Walk};
use crate::attention::{Team, Visits, WorkTile};
use crate::layout::rows::Rows;
use crate::ptx::{shared, special};
use crate::tile::registers::again;
use crate::tile::whole::map_rows;
use crate::tile::{Accumulator, Copier, CpAsync, Element, Pipeline, SharedTile};
use core::ops::Range;

/// Computes the block's tile of O and lse, on its split of the keys.
///
/// The block has `W` warps, each with `MT` tiles of 16 query rows; the head dim is at most
/// `16 * DT`, and a step takes `16 * NT` keys. `QT` of the `DT` slices of Q stay in registers.
///
/// # Safety
/// Launched as [`ForwardParams`] and the kernel's row of the [catalog](crate::catalog) say: grid, block
/// size and shared memory, with tensors that are readable (q, k, v) and writable (o, lse) in full.
#[inline(always)]
pub unsafe fn sm80<
    E: Element,
    M: Mask,
    H: Heads,
    C: Score,
    const W: usize,
    const MT: usize,
    const DT: usize,
    const NT: usize,
    const QT: usize,
>(
    params: &ForwardParams,
) {
    let (br, bc) = ((16 * MT * W) as u32, (16 * NT) as u32);
    let (threads, warp_rows) = (32 * W as u32, 16 * MT as u32);
    // SAFETY: the launch has this many threads a block.
    let thread = unsafe { special::thread(threads) };
    let work = WorkTile::<H>::of_block::<C>(params, br);
    let (first, rows) = (work.first, work.row_count::<C>());
    let split = work.keys(params);
    let q = Copier::new(work.q_rows(&params.q), thread, threads);
    let k = Copier::new(work.k_rows::<C>(params, split.first), thread, threads);
    let v = Copier::new(work.v_rows::<C>(params, split.first), thread, threads);

    let mask = work.mask::<M>(params, split);
    // From here on `j` is the number of a visit.
    let visits = work.visits::<M>(params, split, first / br, bc);
    let row = first + thread / 32 * warp_rows;
    let (walk, whole) = plan(&work, &mask, visits, [br, warp_rows, bc], row);

    let qo_tile = SharedTile::<DT>::new(shared::base());
    let stages = Stages::<DT, NT>(qo_tile.skip(br));
    let key = |j: u32| visits.block(j).wrapping_mul(bc);
    let mut pipeline = CpAsync::<2>;
    // The stage after block j's: V of block j - 1 and K of block j - 2, if the tile has them. Block j counts as left: a
    // comparison with the loop's own counter would hold a predicate, and spill.
    // SAFETY: called between the acquire and the commit of the buffers of K of block j and V of block j + 1.
    let load_next = |j: u32| unsafe {
        let left = walk.left(j + 1);
        k.load_whole(stages.k(j), key(j.wrapping_sub(2)), bc, left > 2);
        v.load_whole(stages.v(j + 1), key(j.wrapping_sub(1)), bc, left > 1);
    };
    // SAFETY: all threads make the same calls, each after the release of block j + 1.
    let fill_next = |pipeline: &mut CpAsync<2>, j: u32| unsafe {
        pipeline.wait();
        pipeline.fill(|| load_next(j));
    };

    // SAFETY: all warps pass a barrier for each block of keys; not always the same instruction, which PTX asks of the
    // lanes of a warp alone (compute-sanitizer's synccheck reports such warps). Every other branch depends on the
    // warp alone, so all lanes reach every tensor-core instruction.
    unsafe {
        q.load(qo_tile, first, br, rows - first);
        load_first(&mut pipeline, [&k, &v], stages, walk, visits, split.keys);
        pipeline.wait_first();
        let q_tile = qo_tile.skip(row - first);
        let mut warp =
            begin::warp::<H, C, MT, DT, DT, QT, 1>(params, &work, split, row, q_tile, &Team::ALONE);
        // Where the warp sees nothing of a block, it only copies.
        let mut j = walk.end();
        while walk.passes_first(j) {
            j -= 1;
            pipeline.release();
            fill_next(&mut pipeline, j);
        }
        if walk.sees(j) {
            let last = walk.own_start();
            // The last block ends the loop, since line 8 is a block ahead of the other lines.
            let mut runs = Runs::<M::Keys>::new(last + 1, j, whole);
            let mut s = warp.scores::<E, Accumulator, NT, DT>(stages.k(j - 1), key(j - 1));
            pipeline.release();
            loop {
                while j > runs.edge() {
                    j -= 1;
                    let keys = keys_of(&mask, &work, row, visits, j, bc);
                    let p = warp.softmax_masked::<E, NT, 1>(s, keys, &Team::ALONE);
                    fill_next(&mut pipeline, j);
                    warp.accumulate_masked::<E, M, _, NT, DT>(p, stages.v(j), keys);
                    s = warp.scores::<E, Accumulator, NT, DT>(stages.k(j - 1), key(j - 1));
                    pipeline.release();
                }
                while j > runs.whole() {
                    j -= 1;
                    let p = warp.softmax::<E, NT, DT>(s, stages.k(j), key(j));
                    fill_next(&mut pipeline, j);
                    warp.accumulate::<E, NT, DT>(p, stages.v(j));
                    s = warp.scores::<E, Accumulator, NT, DT>(stages.k(j - 1), key(j - 1));
                    pipeline.release();
                }
                if !runs.has_other_edge(j) {
                    break;
                }
            }
            // Held over the loop, what it is made of spills 20 bytes at D = 128.
            let keys = again(|| {
                let work = WorkTile::<H>::of_block::<C>(params, br);
                let mask = work.mask::<M>(params, work.keys(params));
                let row = work.first + special::thread(threads) / 32 * warp_rows;
                keys_of(&mask, &work, row, visits, last, bc)
            });
            let p = warp.softmax_masked::<E, NT, 1>(s, keys, &Team::ALONE);
            pipeline.wait();
            if M::Keys::HAS_START {
                j = last;
                pipeline.fill(|| load_next(j));
            }
            warp.accumulate_masked::<E, M, _, NT, DT>(p, stages.v(last), keys);
        }
        while walk.passes_last(j) {
            j -= 1;
            pipeline.release();
            fill_next(&mut pipeline, j);
        }

        let work = WorkTile::of_block::<C>;
        warp.store::<E, H, 1>(params, threads, &Team::ALONE, work);
    }
}

/// The tiles of two stages, each K and then V of `16 * NT` keys.
#[derive(Clone, Copy)]
struct Stages<const DT: usize, const NT: usize>(SharedTile<DT>);

impl<const DT: usize, const NT: usize> Stages<DT, NT> {
    /// K of block `j`.
    #[inline(always)]
    fn k(self, j: u32) -> SharedTile<DT> {
        self.0.skip(j % 2 * 2 * 16 * NT as u32)
    }

    /// V of block `j`.
    #[inline(always)]
    fn v(self, j: u32) -> SharedTile<DT> {
        self.k(j).skip(16 * NT as u32)
    }
}

/// Fills both stages: with K of the last block; with V of it, and K of the block before.
///
/// # Safety
/// The conditions of [`Copier::load`]; there are `keys` keys.
#[inline(always)]
unsafe fn load_first<M: Mask, R: Rows, const DT: usize, const NT: usize>(
    pipeline: &mut CpAsync<2>,
    [k, v]: [&Copier<DT, R>; 2],
    stages: Stages<DT, NT>,
    walk: Walk<M::Keys>,
    visits: Visits<M>,
    keys: u32,
) {
    let bc = (16 * NT) as u32;
    let (last, left) = (walk.end().wrapping_sub(1), walk.left(walk.end()));
    let key = visits.block(last).wrapping_mul(bc);
    // The last block may end beyond the last key.
    let exist = match left {
        0 => 0,
        _ => keys - key,
    };
    // SAFETY: the caller's promise.
    unsafe {
        pipeline.fill(|| k.load(stages.k(last), key, bc, exist));
        pipeline.fill(|| {
            v.load(stages.v(last), key, bc, exist);
            let last = last.wrapping_sub(1);
            let key = visits.block(last).wrapping_mul(bc);
            k.load_whole(stages.k(last), key, bc, left > 1);
        });
    }
}

/// The keys of block `j` that rows see, which count from row `row`.
#[inline(always)]
fn keys_of<M: Mask, H: Heads, const MT: usize>(
    mask: &M,
    work: &WorkTile<H>,
    row: u32,
    visits: Visits<M>,
    j: u32,
    bc: u32,
) -> [[M::Keys; 2]; MT] {
    let (first_key, coverage) = ((visits.block(j) * bc) as i32, visits.coverage(j, 0));
    map_rows(|i| {
        let keys = mask.keys_of_block(work.query(row + i), first_key);
        keys.of_coverage(coverage)
    })
}

/// The walk of the warp with `warp_rows` rows from `row` on, and the blocks that all of these rows see whole.
#[inline(always)]
fn plan<M: Mask, H: Heads>(
    work: &WorkTile<H>,
    mask: &M,
    visits: Visits<M>,
    [br, warp_rows, bc]: [u32; 3],
    row: u32,
) -> (Walk<M::Keys>, Range<u32>) {
    let seen = visits.of(seen_blocks(begin::ends(work, mask, work.first, br), bc));
    let ends = begin::ends(work, mask, row, warp_rows);
    // Rows past the last one see nothing.
    let own = match row < work.row_count_of::<M>() {
        true => visits.of(seen_blocks(ends, bc)),
        false => seen.start..seen.start,
    };
    (Walk::new(seen, own), whole_blocks(ends, bc))
}
