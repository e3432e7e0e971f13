//! The producer: one thread loads K and V, then Q, dO and the rows' statistics, step by step.

use super::job::{job_at, query_tile};
use super::load::load;
use crate::abi::Sm90BackwardParams;
use crate::attention::backward::job::Step;
use crate::attention::options::mask::Mask;
use crate::layout::sm90_backward::Sm90BackwardMemory;
use crate::ptx::{bulk, mbarrier};
use crate::tile::Ring;

/// Loads all that the consumers read.
///
/// # Safety
/// The conditions of [`sm90`](super::sm90), with initialised barriers, in one thread of the block.
#[inline(always)]
pub unsafe fn produce<M: Mask, const DT: usize, const NT: usize, const STORES: bool>(
    params: &Sm90BackwardParams,
    maps: u64,
    memory: Sm90BackwardMemory,
    place: u32,
) {
    let (backward, forward) = (&params.backward, &params.backward.forward);
    let br = 16 * NT as u32;
    let [q_map, k_map, v_map, d_o_map] = [maps, maps + 128, maps + 256, maps + 384];
    let job = job_at::<M, STORES>(backward, place, br);
    let batch = job.sequence.batch;
    // SAFETY: the barriers count what is loaded, and the stages' consumers; the boxes fit their places.
    unsafe {
        let k_full = memory.k_full();
        mbarrier::arrive_expect(k_full, 2 * memory.k_bytes());
        let keys = [job.first_key, job.kv_head, batch];
        load::<DT>(memory.k(), k_map, keys, k_full);
        load::<DT>(memory.v(), v_map, keys, k_full);
        let mut ring = Ring::<{ Sm90BackwardMemory::STAGES }>(0);
        let mut step = Step::first(&job);
        let mut left = job.steps(forward);
        let bytes = memory.q_bytes() + memory.rows_bytes();
        while left > 0 {
            let (stage, row) = (ring.stage(), query_tile::<M, STORES>(&job, step, br) * br);
            let queries = [row, job.head(forward, step.head), batch];
            let lse = backward.statistics(job.head_index(forward, step.head), row);

            let full = memory.q_full(stage);
            ring.acquire(full);
            mbarrier::arrive_expect(full, bytes);
            load::<DT>(memory.q(stage), q_map, queries, full);
            bulk::load(memory.lse(stage), lse, memory.rows_bytes(), full);

            let full = memory.d_o_full(stage);
            ring.acquire(full);
            mbarrier::arrive_expect(full, bytes);
            load::<DT>(memory.d_o(stage), d_o_map, queries, full);
            bulk::load(
                memory.delta(stage),
                lse + 4 * u64::from(backward.padded_rows),
                memory.rows_bytes(),
                full,
            );

            ring = ring.next();
            step = step.next(&job);
            left -= 1;
        }
    }
}
