//! dQ, added to the sums in device memory by the copy engine.
//!
//! In turns, a tile of dQ gets what key tiles add in the order of their numbers. A key tile waits until the ones before it
//! have added theirs. The blocks of these began before: a block takes the next key tile when it begins. So no block waits
//! for one that has not begun, whatever else the GPU runs.
//!
//! Blocks begin at the first query that sees their keys, and heads go in waves: the key tiles of a head begin one after
//! the other, as far apart as the wave has heads. A block then seldom waits for its turn.

use super::job::{job_at, query_tile};
use super::{CONSUMERS, KEYS};
use crate::abi::BackwardParams;
use crate::attention::backward::job::Step;
use crate::attention::mask::{Interval, Mask};
use crate::layout::sm90_backward::Sm90BackwardMemory;
use crate::layout::sum;
use crate::ptx::{barrier, bulk, global};

/// Threads that share the barriers of a warpgroup's part of dQ, or of dS: the warpgroup, and the warp that copies the part.
pub const SHARING: u32 = 128 + 32;

/// The barrier that says that a warpgroup has written its part of dQ, or of dS.
#[inline(always)]
pub fn written(warpgroup: u32) -> u32 {
    1 + warpgroup
}

/// The barrier that says that a warpgroup may write its part again.
#[inline(always)]
pub fn read(warpgroup: u32) -> u32 {
    3 + warpgroup
}

/// Adds a warpgroup's part of dQ, step by step.
///
/// # Safety
/// As [`sm90`](super::sm90), in all lanes of one warp for each warpgroup.
#[inline(always)]
pub unsafe fn reduce<M: Mask, const DT: usize, const NT: usize>(
    params: &BackwardParams,
    memory: Sm90BackwardMemory,
    place: u32,
    warpgroup: u32,
) {
    let br = 16 * NT as u32;
    let job = job_at::<M, false>(&params.forward, place, br);
    // A warpgroup has 64 of 128 queries, or half of the columns of 64.
    let (row, column, columns) = match br {
        128 => (64 * warpgroup, 0, DT as u32),
        _ => (0, warpgroup * DT as u32 / 2, DT as u32 / 2),
    };
    let mut step = Step::first(&job);
    let mut left = job.steps(&params.forward);
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
        if !M::Keys::HAS_START || left > 0 {
            barrier::arrive(read(warpgroup), SHARING);
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
            barrier::some(written(warpgroup), SHARING);
            let row16 = (tile * u64::from(br) + u64::from(row)) / u64::from(sum::TILE);
            for i in 0..KEYS / sum::TILE {
                let tile = sum::tile(row16 + u64::from(i), column, params.sum_columns);
                let (to, bytes) = (u64::from(sum::BYTES) * tile, columns * sum::BYTES);
                bulk::add_f32_once(params.dq_sum + to, memory.dq(warpgroup) + i * bytes, bytes);
            }
            bulk::commit();
            bulk::wait_read::<0>();
            left -= 1;
            if left > 0 {
                barrier::arrive(read(warpgroup), SHARING);
            }
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
