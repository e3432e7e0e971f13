//! dQ from stored dS: a matrix product.
//!
//! A job has 128 queries, 64 for each of two warpgroups, and walks over the tiles of keys that they see. A third
//! warpgroup loads dS as it was stored, and K by TMA. dQ is complete in registers: nothing is summed in memory, so the
//! result is the same from run to run.

use super::guard::{Columns, add_left_out, search};
use super::load::load;
use super::products::{multiply_columns, wait};
use super::progress;
use super::roles::{init_stage, take_roles, thread};
use super::store::store;
use crate::abi::{MAX_SEQLEN, Sm90BackwardParams, Stored};
use crate::attention::Visits;
use crate::attention::options::mask::{Mask, seen_blocks, whole_blocks};
use crate::attention::workload::alternate::{query_head, query_head_number};
use crate::attention::workload::sequence::Sequence;
use crate::layout::rows::Rows;
use crate::layout::sm90_backward::{DsImage, Sm90BackwardMemory, Sm90QueryMemory};
use crate::ptx::{barrier, bulk, global, mbarrier, shared, shuffle, special};
use crate::tile::registers::opaque;
use crate::tile::wgmma::{self, Product};
use crate::tile::{Accumulator, Element, Ring};
use core::hint::assert_unchecked;
use core::ops::Range;

/// Queries of a job.
const ROWS: u32 = 128;

/// Keys of a step.
const KEYS: u32 = Sm90BackwardMemory::KEYS;

/// The queries of a job, and what they see.
#[derive(Clone, Copy)]
struct Job<M> {
    sequence: Sequence,
    mask: M,
    head: u32,
    /// The first query.
    first: u32,
    /// The first visit to a tile of 128 keys of which some query sees a part.
    start: u32,
    /// The visit after the last.
    end: u32,
    /// The first tile that all queries see whole, and the first one after.
    whole: [u32; 2],
    /// The tiles that it visits.
    visits: Visits<M>,
}

impl<M: Mask> Job<M> {
    /// Number of the head in the order of tiles.
    #[inline(always)]
    fn number(&self, params: &Sm90BackwardParams) -> u32 {
        let forward = &params.backward.forward;
        query_head_number::<M>(forward, self.sequence.batch, self.head)
    }

    /// The wave of the head.
    #[inline(always)]
    fn wave(&self, params: &Sm90BackwardParams) -> u32 {
        let group = params.backward.forward.group;
        params.stored.wave(self.number(params), group)
    }

    /// The job at a place of the order.
    #[inline(always)]
    fn at(params: &Sm90BackwardParams, place: u32) -> Self {
        let (forward, stored) = (&params.backward.forward, &params.stored);
        let (_, tile, head) = stored.order.place(place);
        let (batch, head) = query_head::<M>(forward, stored.heads, head);
        let sequence = Sequence::new(forward, batch);
        // SAFETY: a launch has no longer sequence.
        unsafe { assert_unchecked(sequence.queries <= MAX_SEQLEN && sequence.keys <= MAX_SEQLEN) }
        let mask = M::new(forward, sequence, sequence.whole());
        let first = tile * ROWS;
        let last = (first + ROWS).min(sequence.queries) - 1;
        let keys = [mask.keys(first as i32), mask.keys(last as i32)];
        let tile = [batch, forward.group.divide(head).0, tile];
        let blocks = [0, sequence.keys.div_ceil(KEYS)];
        let visits = Visits::new(&forward.options.blocks, tile, blocks);
        let Range { start, end } = visits.of(seen_blocks(keys, KEYS));
        let whole = match M::UNIFORM {
            true => 0..u32::MAX,
            false => whole_blocks(keys, KEYS),
        };
        Job {
            sequence,
            mask,
            head,
            first,
            start,
            end,
            whole: [whole.start, whole.end],
            visits,
        }
    }
}

/// The job of a tile of queries: dQ.
///
/// The head dim is at most `16 * DT`; stored blocks of dS have `16 * NT` queries. There are `S` stages. `GIVEN` registers
/// stay with the producer's threads, `TAKEN` are a consumer's.
///
/// # Safety
/// The conditions of [`sm90_stored`](super::sm90_stored), in all threads of the block.
#[inline(always)]
pub unsafe fn queries<
    E: Element,
    M: Mask,
    const DT: usize,
    const NT: usize,
    const S: u32,
    const GIVEN: u32,
    const TAKEN: u32,
>(
    params: &Sm90BackwardParams,
    maps: u64,
    place: u32,
) where
    [Accumulator; DT]: Product,
{
    let memory = Sm90QueryMemory::new(shared::base(), E::K * DT as u32, 16 * NT as u32, S);
    let init = || {
        for stage in 0..S {
            // SAFETY: one thread calls it, before others use the barriers.
            unsafe { init_stage(memory.full(stage)) }
        }
    };
    // SAFETY: the caller's promise; `take_roles` calls each in the threads of its role, with initialised barriers.
    let copy = |warp, lane| unsafe {
        if warp == 0 {
            let wave = Job::<M>::at(params, place).wave(params);
            progress::wait_for(params, params.stored.all_stored(wave));
            if lane == 0 {
                produce::<M, DT, NT, S>(params, maps, memory, place);
            }
        }
    };
    // SAFETY: likewise.
    let consume = |warpgroup| unsafe {
        consume::<E, M, DT, S>(params, memory, place, warpgroup);
    };
    // SAFETY: the caller's promise.
    unsafe { take_roles::<M, GIVEN, TAKEN>(memory.zeros(), init, copy, consume) }
}

/// Loads dS and K.
///
/// # Safety
/// The conditions of [`queries`], with initialised barriers, in one thread of the block.
#[inline(always)]
unsafe fn produce<M: Mask, const DT: usize, const NT: usize, const S: u32>(
    params: &Sm90BackwardParams,
    maps: u64,
    memory: Sm90QueryMemory,
    place: u32,
) {
    let (br, k_map) = (16 * NT as u32, maps + 128);
    let backward = &params.backward;
    let job = Job::<M>::at(params, place);
    let sizes = [backward.padded_rows, job.sequence.keys];
    let image = DsImage::new(params.ds, sizes, br);
    let head = params.stored.ring.divide(job.number(params)).1;
    let kv_head = backward.forward.group.divide(job.head).0;
    let mut ring = Ring::<S>(0);
    let mut visit = job.start;
    // SAFETY: the barriers count what is loaded; the boxes fit their places.
    unsafe {
        while visit < job.end {
            let tile = job.visits.block(visit);
            let (stage, full) = (ring.stage(), memory.full(ring.stage()));
            ring.acquire(full);
            mbarrier::arrive_expect(full, Sm90QueryMemory::DS_BYTES + memory.k_bytes());
            // Boxes of wide heads have half of the keys.
            let box_rows = if DT > 8 { 64 } else { KEYS };
            // Opaque counters: loops stay loops, up to 110 instructions fewer.
            let mut row = 0;
            while row < KEYS {
                let first_key = tile * KEYS + row;
                let keys = [first_key, kv_head, job.sequence.batch];
                load::<DT>(memory.k(stage).skip_rows(row), k_map, keys, full);
                row = opaque(row + box_rows);
            }
            // Both panels of a block of queries lie side by side.
            let bytes = 2 * image.panel_bytes();
            let mut block = 0;
            while block < ROWS / br {
                let from = image.panel(head, job.first / br + block, tile, 0);
                let to = memory.ds(stage, 0).0.base + block * bytes;
                bulk::load(to, from, bytes, full);
                block = opaque(block + 1);
            }
            ring = ring.next();
            visit += 1;
        }
    }
}

/// Computes dQ of a warpgroup's queries.
///
/// # Safety
/// The conditions of [`produce`], in all threads of the warpgroup.
#[inline(always)]
unsafe fn consume<E: Element, M: Mask, const DT: usize, const S: u32>(
    params: &Sm90BackwardParams,
    memory: Sm90QueryMemory,
    place: u32,
    warpgroup: u32,
) where
    [Accumulator; DT]: Product,
{
    let forward = &params.backward.forward;
    let job = Job::<M>::at(params, place);
    let mut dq = [Accumulator::ZERO; DT];
    let mut ring = Ring::<S>(0);
    let mut left = job.end - job.start;
    // SAFETY: every stage is waited for before it is read, and released after the wait for its products. All branches
    // depend on the tile alone.
    unsafe {
        while left > 0 {
            let (stage, full) = (ring.stage(), memory.full(ring.stage()));
            let ((ds, row), k) = (memory.ds(stage, warpgroup), memory.k(stage));
            ring.wait(full);
            let tile = job.visits.block(job.end - left);
            let mut leave_out = false;
            if !M::UNIFORM && (tile < job.whole[0] || tile >= job.whole[1]) {
                leave_out = search::<E, DT, 8>(k, warpgroup);
            }
            wgmma::pin(&mut dq);
            let columns = Columns::new::<M>(k, memory.zeros(), leave_out);
            multiply_columns::<E, DT>(&mut dq, (ds, row), columns, true);
            wait::<0, _>(&mut dq);
            if leave_out {
                let mask = job.mask.of_head(forward, job.head);
                let first = [job.first + 64 * warpgroup, tile * KEYS].map(|first| first as i32);
                add_left_out::<E, M, DT>(mask, first, (ds, row), k, &mut dq);
                barrier::warp();
            }
            ring.release(full);
            ring = ring.next();
            left -= 1;
        }
        if shuffle::first(thread() / 32) == 0 && warpgroup == 0 {
            // All of the job's dS has landed.
            progress::count(params, Stored::read(job.wave(params)));
        }
        let first = job.first + 64 * warpgroup;
        let rows = job
            .sequence
            .head_rows(&params.backward.dq, job.head, forward.dim);
        let lane_row = first + thread() / 32 * 16 + special::lane() / 4;
        let head = job.head;
        let is_zero = [lane_row, lane_row + 8].map(|row| {
            // A row that sees no key: 0, whatever infinities K has.
            let lse = forward.lse + 4 * job.sequence.row_index(forward, head, row);
            row < job.sequence.queries && global::load_f32(lse) == f32::NEG_INFINITY
        });
        for dt in 0..DT {
            for i in 0..8 {
                let x = &mut dq[dt].0[i];
                *x = if is_zero[i / 2 % 2] {
                    0.0
                } else {
                    *x * forward.scale
                };
            }
        }
        let count = job.sequence.queries.saturating_sub(first);
        store::<E, DT>(&dq, rows.skip(first), count, params.backward.dq_aligned);
    }
}
