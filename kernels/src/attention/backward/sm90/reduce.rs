//! dQ, added to the sums in device memory by the copy engine.
//!
//! In turns, a tile of dQ gets what key tiles add in the order in which they begin. A key tile waits until the ones before it
//! have added theirs. A block takes the next key tile when it begins. So no block waits for one that has not begun, whatever
//! else the GPU runs.
//!
//! Blocks begin at the first query that sees their keys. Under the causal mask the next key tile begins further on: it waits
//! until the one before gets there. Heads go in waves, so that key tiles of a head begin as far apart as the wave has heads.
//! Sequences have few heads, with many key tiles each. There the last key tile of a head begins, then the one before, which
//! reaches the same queries later: it does not wait, and a wave has as many heads as the L2 cache holds.

use super::job::{job_at, query_tile};
use super::{CONSUMERS, KEYS};
use crate::abi::BackwardParams;
use crate::attention::backward::job::Step;
use crate::attention::options::mask::{Interval, Mask};
use crate::layout::sm90_backward::Sm90BackwardMemory;
use crate::layout::sum;
use crate::ptx::{barrier, bulk, global};

/// Threads that share the barriers of a warpgroup's part of dQ, or of dS: the warpgroup, and the warp that copies the part.
pub const SHARING: u32 = 128 + 32;

/// The barrier that says that a warpgroup has written its part of dQ, or of dS, in a stage.
#[inline(always)]
pub fn written(stage: u32, warpgroup: u32) -> u32 {
    1 + 2 * stage + warpgroup
}

/// The barrier that says that a warpgroup may write its part again.
#[inline(always)]
pub fn read(stage: u32, warpgroup: u32) -> u32 {
    5 + 2 * stage + warpgroup
}

/// Adds a warpgroup's part of dQ, step by step.
///
/// # Safety
/// The conditions of [`sm90`](super::sm90), in all lanes of one warp for each warpgroup.
#[inline(always)]
pub unsafe fn reduce<M: Mask, const DT: usize, const NT: usize>(
    params: &BackwardParams,
    memory: Sm90BackwardMemory,
    place: u32,
    warpgroup: u32,
) {
    let br = 16 * NT as u32;
    let job = job_at::<M, false>(params, place, br);
    // A warpgroup has 64 of 128 queries, or half of the columns of 64.
    let (row, column, columns) = match br {
        128 => (64 * warpgroup, 0, DT as u32),
        _ => (0, warpgroup * DT as u32 / 2, DT as u32 / 2),
    };
    let mut step = Step::first(&job);
    let mut left = job.steps(&params.forward);
    let stages = memory.dq_stages();
    let mut stage = 0;
    // Under windows, sequences and masks: where to count the step before, once the copy engine has added it. What such a turn
    // depends on is loaded meanwhile.
    let mut added = 0;
    // SAFETY: the copy engine has added the step.
    let count = |turn: u64| unsafe {
        bulk::wait::<0>();
        global::count_once(turn);
    };
    // SAFETY: the consumers write their part between the two barriers, and the sums are the launch's.
    unsafe {
        for stage in 0..stages {
            if left > stage || stage == 0 && !M::Keys::HAS_START {
                barrier::arrive(read(stage, warpgroup), SHARING);
            }
        }
        while left > 0 {
            let first = query_tile::<M, false>(&job, step, br) * br;
            let tile = job.padded_row(params, step.head, first) / u64::from(br);
            let turn = params.turns + 4 * tile;
            if params.turns != 0 {
                let before = job.tiles_before(&params.forward, first, [CONSUMERS * KEYS, br]);
                if M::Keys::HAS_START && added != 0 {
                    count(added);
                }
                global::wait_for_count(turn, CONSUMERS * before);
                bulk::fence_global();
            }
            barrier::some(written(stage, warpgroup), SHARING);
            let row16 = (tile * u64::from(br) + u64::from(row)) / u64::from(sum::TILE);
            for i in 0..KEYS / sum::TILE {
                let tile = sum::tile(row16 + u64::from(i), column, params.sum_columns);
                let (to, bytes) = (u64::from(sum::BYTES) * tile, columns * sum::BYTES);
                let from = memory.dq(stage, warpgroup) + i * bytes;
                bulk::add_f32_once(params.dq_sum + to, from, bytes);
            }
            bulk::commit();
            bulk::wait_read::<0>();
            if left > stages {
                barrier::arrive(read(stage, warpgroup), SHARING);
            }
            left -= 1;
            stage = (stage + 1) % stages;
            if params.turns != 0 {
                match M::Keys::HAS_START {
                    true => added = turn,
                    false => count(turn),
                }
            }
            step = step.next(&job);
        }
        if M::Keys::HAS_START && added != 0 {
            count(added);
        }
    }
}
