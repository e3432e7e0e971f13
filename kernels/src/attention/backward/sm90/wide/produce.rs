//! The producer: one thread loads K and V, then Q, dO and the rows' statistics, step by step.

use super::super::job::job_at;
use super::super::load::load;
use super::{SIZE, half_at};
use crate::abi::Sm90BackwardParams;
use crate::attention::backward::job::Step;
use crate::attention::options::mask::Mask;
use crate::layout::sm90_backward::Sm90WideMemory;
use crate::ptx::{bulk, mbarrier};
use crate::tile::Ring;
use crate::tile::registers::opaque;

/// Loads all that the consumers read.
///
/// # Safety
/// The conditions of [`keys`](super::keys), with initialised barriers, in one thread of the block.
#[inline(always)]
pub unsafe fn produce<M: Mask, const DT: usize>(
    params: &Sm90BackwardParams,
    maps: u64,
    memory: Sm90WideMemory,
    place: u32,
) {
    let (backward, forward) = (&params.backward, &params.backward.forward);
    let (place, half) = half_at(place);
    let job = job_at::<M, true>(backward, place, SIZE);
    let batch = job.sequence.batch;
    // SAFETY: the barriers count what is loaded, and the stages' consumers; the boxes fit their places.
    unsafe {
        let keys = [job.first_key + half * SIZE, job.kv_head, batch];
        let mut which = 0;
        while which < 2 {
            let full = memory.keys_full(which);
            mbarrier::arrive_expect(full, memory.tile_bytes());
            let map = maps + 128 + 128 * u64::from(which);
            load::<DT>(memory.keys(which), map, keys, full);
            // Opaque: the loops over two tensors stay loops, 48 instructions.
            which = opaque(which + 1);
        }
        let mut ring = Ring::<{ Sm90WideMemory::STAGES }>(0);
        let mut step = Step::first(&job);
        let mut left = job.steps(forward);
        while left > 0 {
            let (stage, row) = (ring.stage(), step.tile * SIZE);
            let queries = [row, job.head(forward, step.head), batch];
            let lse = backward.statistics(job.head_index(forward, step.head), row);
            let mut which = 0;
            while which < 2 {
                let full = memory.queries_full(which, stage);
                ring.acquire(full);
                mbarrier::arrive_expect(full, memory.tile_bytes() + 4 * SIZE);
                let map = maps + 384 * u64::from(which);
                load::<DT>(memory.queries(which, stage), map, queries, full);
                let from = lse + 4 * u64::from(backward.padded_rows) * u64::from(which);
                bulk::load(memory.rows(which, stage), from, 4 * SIZE, full);
                which = opaque(which + 1);
            }
            ring = ring.next();
            step = step.next(&job);
            left -= 1;
        }
    }
}
