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

use crate::abi::ForwardParams;
use crate::attention::options::mask::{Interval, Mask, Visible, seen_blocks, whole_blocks};
use crate::attention::options::score::{Corner, Score};
use crate::attention::work::heads::Heads;
use crate::attention::work::walk::{Runs, Walk};
use crate::attention::{Team, Warp, WorkTile};
use crate::ptx::{shared, special};
use crate::tile::registers::again;
use crate::tile::whole::map_rows;
use crate::tile::{Accumulator, Copier, CpAsync, Element, Fixed, Pipeline, SharedTile};

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
    let warp_row = thread / 32 * warp_rows;
    let work = WorkTile::<H>::of_block(params, br);
    let (first, rows) = (work.first, work.row_count());
    let split = work.keys(params);
    let q = Copier::new(work.q_rows(&params.q), thread, threads);
    let k = Copier::new(work.k_rows::<C>(params, split.first), thread, threads);
    let v = Copier::new(work.v_rows::<C>(params, split.first), thread, threads);

    let mask = work.mask::<M>(params, split);
    // The keys that the first and the last of the rows `first..end` see. A `map` would leave an array in memory.
    let ends = |first: u32, end: u32| {
        let last = end.min(rows) - 1;
        [mask.keys(work.query(first)), mask.keys(work.query(last))]
    };
    // From here on `j` is the number of a visit.
    let visits = work.visits::<M>(params, split, first / br, bc);
    let seen = visits.of(seen_blocks(ends(first, first + br), bc));
    // The warp's first row, and the blocks that the warp sees: none if its rows lie past the last one.
    let row = first + warp_row;
    let own = match row < rows {
        true => visits.of(seen_blocks(ends(row, row + warp_rows), bc)),
        false => seen.start..seen.start,
    };
    let whole = whole_blocks(ends(row, row + warp_rows), bc);
    let walk = Walk::<M::Keys>::new(seen, own);

    let qo_tile = SharedTile::<DT>::new(shared::base());
    let k_tile = |j: u32| qo_tile.skip(br + j % 2 * 2 * bc);
    let v_tile = |j: u32| k_tile(j).skip(bc);
    // The first key of a visit.
    let key = |j: u32| visits.block(j) * bc;
    let key_before = |j: u32, visits: u32| match M::HAS_HEADS {
        true => key(j.wrapping_sub(visits)),
        false => (j * bc).wrapping_sub(visits * bc),
    };
    // The stage after block j's: V of block j - 1 and K of block j - 2, if so many blocks are left.
    // SAFETY: called between the acquire and the commit of the buffers of K of block j and V of block j + 1.
    let load_next = |j: u32, left: u32| unsafe {
        k.load_whole(k_tile(j), key_before(j, 2), bc, left > 1);
        v.load_whole(v_tile(j + 1), key_before(j, 1), bc, left > 0);
    };
    let mut pipeline = CpAsync::<2>;

    // SAFETY: all warps pass the same number of barriers, one for each block of keys; not always the same
    // instruction, which PTX asks of the lanes of a warp alone (bar.sync; compute-sanitizer's synccheck
    // asks it of the block and reports such warps). Every other branch depends on the warp alone, so
    // all lanes reach every tensor-core instruction.
    unsafe {
        pipeline.acquire();
        q.load(qo_tile, first, br, rows - first);
        // The last block may end beyond the last key.
        let last = walk.end().wrapping_sub(1);
        let last_key = visits.block(last).wrapping_mul(bc);
        let exist = split.keys.wrapping_sub(last_key);
        if walk.left(walk.end()) > 0 {
            k.load(k_tile(last), last_key, bc, exist);
        }
        pipeline.commit();
        pipeline.acquire();
        if walk.left(walk.end()) > 0 {
            v.load(v_tile(last), last_key, bc, exist);
        }
        if walk.left(walk.end()) > 1 {
            k.load(k_tile(last - 1), key(last - 1), bc, bc);
        }
        pipeline.commit();
        pipeline.wait_first();
        let q_tile = qo_tile.skip(warp_row);
        let score = C::new(params, work.sequence.batch, work.heads.first());
        let corner = Corner::new(row as i32, 0, work.sequence, split);
        let mut warp = Warp::<MT, DT, DT, QT, Fixed, C>::new(q_tile, corner, score, &Team::ALONE);
        warp.softmax
            .take_sink(C::sink(params, split, work.heads.first()), true);

        let keys_of = |mask: &M, work: &WorkTile<H>, row: u32, j: u32| {
            let (first_key, coverage) = (key(j) as i32, visits.coverage(j, 0));
            map_rows(|i| {
                let keys = mask.keys_of_block(work.query(row + i), first_key);
                keys.of_coverage(coverage)
            })
        };
        // Where the warp sees nothing of a block, it only copies.
        let mut j = walk.end();
        while walk.passes_first(j) {
            j -= 1;
            pipeline.release();
            pipeline.wait();
            pipeline.fill(|| load_next(j, walk.left(j)));
        }
        if walk.sees(j) {
            let last = walk.own_start();
            // The last block ends the loop, since line 8 is a block ahead of the other lines.
            let mut runs = Runs::<M::Keys>::new(last + 1, j, whole);
            let mut s = warp.scores::<E, Accumulator, NT>(k_tile(j - 1), key(j - 1));
            pipeline.release();
            loop {
                while j > runs.edge() {
                    j -= 1;
                    let keys = keys_of(&mask, &work, row, j);
                    let p = warp.softmax_masked::<E, NT, 1>(s, keys, &Team::ALONE);
                    pipeline.wait();
                    pipeline.fill(|| load_next(j, walk.left(j)));
                    warp.accumulate_masked::<E, M, _, NT>(p, v_tile(j), keys);
                    s = warp.scores::<E, Accumulator, NT>(k_tile(j - 1), key(j - 1));
                    pipeline.release();
                }
                while j > runs.whole() {
                    j -= 1;
                    let p = warp.softmax::<E, NT>(s, k_tile(j), key(j));
                    pipeline.wait();
                    pipeline.fill(|| load_next(j, walk.left(j)));
                    warp.accumulate::<E, NT>(p, v_tile(j));
                    s = warp.scores::<E, Accumulator, NT>(k_tile(j - 1), key(j - 1));
                    pipeline.release();
                }
                if !runs.has_other_edge(j) {
                    break;
                }
            }
            let keys = again(|| {
                let work = WorkTile::<H>::of_block(params, br);
                let mask = work.mask::<M>(params, work.keys(params));
                let row = work.first + special::thread(threads) / 32 * warp_rows;
                keys_of(&mask, &work, row, last)
            });
            let p = warp.softmax_masked::<E, NT, 1>(s, keys, &Team::ALONE);
            pipeline.wait();
            if M::Keys::HAS_START {
                j = last;
                pipeline.fill(|| load_next(j, walk.left(j)));
            }
            warp.accumulate_masked::<E, M, _, NT>(p, v_tile(last), keys);
        }
        while walk.passes_last(j) {
            j -= 1;
            pipeline.release();
            pipeline.wait();
            pipeline.fill(|| load_next(j, walk.left(j)));
        }

        warp.store::<E, H, 1>(params, threads, &Team::ALONE);
    }
}
