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
use crate::attention::heads::Heads;
use crate::attention::mask::{Interval, Mask, seen_blocks, whole_blocks};
use crate::attention::score::{Corner, Score};
use crate::attention::walk::{Runs, Walk};
use crate::attention::{Team, Visits, Warp, WorkTile};
use crate::layout::rows::Rows;
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
    let stream = Stream {
        k: Copier::new(work.k_rows::<C>(params, split.first), thread, threads),
        v: Copier::new(work.v_rows::<C>(params, split.first), thread, threads),
        visits,
        qo_tile,
        br,
        bc,
    };
    let mut pipeline = CpAsync::<2>;

    // SAFETY: all warps pass the same number of barriers, one for each block of keys; not always the same
    // instruction, which PTX asks of the lanes of a warp alone (bar.sync; compute-sanitizer's synccheck
    // asks it of the block and reports such warps). Every other branch depends on the warp alone, so
    // all lanes reach every tensor-core instruction.
    unsafe {
        pipeline.acquire();
        q.load(qo_tile, first, br, rows - first);
        stream.begin(&mut pipeline, &walk, split.keys);
        pipeline.wait_first();
        let q_tile = qo_tile.skip(warp_row);
        let score = C::new(params, work.sequence.batch, work.heads.first());
        let corner = Corner::new(row as i32, 0, work.sequence, split);
        let mut warp = Warp::<MT, DT, DT, QT, Fixed, C>::new(q_tile, corner, score, &Team::ALONE);
        warp.softmax
            .take_sink(C::sink(params, split, work.heads.first()), true);

        let keys_of = |mask: &M, work: &WorkTile<H>, row: u32, j: u32| {
            let (first_key, share) = (stream.key(j) as i32, stream.visits.share(j, 0));
            map_rows(|i| {
                let keys = mask.keys_of_block(work.query(row + i), first_key);
                keys.of_share(share)
            })
        };
        // Where the warp sees nothing of a block, it only copies.
        let mut j = walk.end();
        while walk.passes_first(j) {
            j -= 1;
            pipeline.release();
            pipeline.wait();
            pipeline.fill(|| stream.load_next(j, walk.left(j)));
        }
        if walk.sees(j) {
            let last = walk.own_start();
            // The last block ends the loop, since line 8 is a block ahead of the other lines.
            let mut runs = Runs::<M::Keys>::new(last + 1, j, whole);
            let mut s = warp.scores::<E, Accumulator, NT>(stream.k_tile(j - 1), stream.key(j - 1));
            pipeline.release();
            loop {
                while j > runs.edge() {
                    j -= 1;
                    let keys = keys_of(&mask, &work, row, j);
                    let p = warp.softmax_masked::<E, NT, 1>(s, keys, &Team::ALONE);
                    pipeline.wait();
                    pipeline.fill(|| stream.load_next(j, walk.left(j)));
                    warp.accumulate_masked::<E, M, _, NT>(p, stream.v_tile(j), keys);
                    s = warp.scores::<E, Accumulator, NT>(stream.k_tile(j - 1), stream.key(j - 1));
                    pipeline.release();
                }
                while j > runs.whole() {
                    j -= 1;
                    let p = warp.softmax::<E, NT>(s, stream.k_tile(j), stream.key(j));
                    pipeline.wait();
                    pipeline.fill(|| stream.load_next(j, walk.left(j)));
                    warp.accumulate::<E, NT>(p, stream.v_tile(j));
                    s = warp.scores::<E, Accumulator, NT>(stream.k_tile(j - 1), stream.key(j - 1));
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
                pipeline.fill(|| stream.load_next(j, walk.left(j)));
            }
            warp.accumulate_masked::<E, M, _, NT>(p, stream.v_tile(last), keys);
        }
        while walk.passes_last(j) {
            j -= 1;
            pipeline.release();
            pipeline.wait();
            pipeline.fill(|| stream.load_next(j, walk.left(j)));
        }

        warp.store::<E, H, 1>(params, threads, &Team::ALONE);
    }
}

/// K and V of the blocks on their way through two stages. A stage has V of a block, and K of the block after it.
struct Stream<M, R: Rows, const DT: usize> {
    k: Copier<DT, R>,
    v: Copier<DT, R>,
    visits: Visits<M>,
    qo_tile: SharedTile<DT>,
    br: u32,
    bc: u32,
}

impl<M: Mask, R: Rows, const DT: usize> Stream<M, R, DT> {
    /// K of block `j`.
    #[inline(always)]
    fn k_tile(&self, j: u32) -> SharedTile<DT> {
        self.qo_tile.skip(self.br + j % 2 * 2 * self.bc)
    }

    /// V of block `j`.
    #[inline(always)]
    fn v_tile(&self, j: u32) -> SharedTile<DT> {
        self.k_tile(j).skip(self.bc)
    }

    /// The first key of block `j`.
    #[inline(always)]
    fn key(&self, j: u32) -> u32 {
        self.visits.block(j) * self.bc
    }

    /// The first key of the block `count` blocks before `j`, which exists where it is used.
    #[inline(always)]
    fn key_before(&self, j: u32, count: u32) -> u32 {
        match M::HAS_HEADS {
            true => self.key(j.wrapping_sub(count)),
            false => (j * self.bc).wrapping_sub(count * self.bc),
        }
    }

    /// Starts to load the last two blocks, after what the caller put into the first stage. The last one may end beyond the last of
    /// `keys` keys.
    ///
    /// # Safety
    /// All threads of the block make the calls; the stages are free.
    #[inline(always)]
    unsafe fn begin<I: Interval>(&self, pipeline: &mut CpAsync<2>, walk: &Walk<I>, keys: u32) {
        let (bc, blocks) = (self.bc, walk.left(walk.end()));
        let last = walk.end().wrapping_sub(1);
        let last_key = self.visits.block(last).wrapping_mul(bc);
        let exist = keys.wrapping_sub(last_key);
        // SAFETY: the caller's promise.
        unsafe {
            if blocks > 0 {
                self.k.load(self.k_tile(last), last_key, bc, exist);
            }
            pipeline.commit();
            pipeline.acquire();
            if blocks > 0 {
                self.v.load(self.v_tile(last), last_key, bc, exist);
            }
            if blocks > 1 {
                self.k
                    .load(self.k_tile(last - 1), self.key(last - 1), bc, bc);
            }
            pipeline.commit();
        }
    }

    /// Starts to load the stage after block `j`'s: V of block `j - 1` and K of block `j - 2`, if so many blocks are `left`.
    ///
    /// # Safety
    /// The conditions of [`begin`](Self::begin): the buffers of K of block `j` and V of block `j + 1` are free.
    #[inline(always)]
    unsafe fn load_next(&self, j: u32, left: u32) {
        // SAFETY: the caller's promise.
        unsafe {
            let (k, v) = (self.k_tile(j), self.v_tile(j + 1));
            self.k
                .load_whole(k, self.key_before(j, 2), self.bc, left > 1);
            self.v
                .load_whole(v, self.key_before(j, 1), self.bc, left > 0);
        }
    }
}
