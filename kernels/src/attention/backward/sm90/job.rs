//! Which job a block takes, and which keys a job has.

use super::THREADS;
use crate::abi::{BackwardParams, Coverage, Sm90BackwardParams};
use crate::attention::backward::job::{Job, Step};
use crate::attention::options::mask::Mask;
use crate::layout::sm90_backward::Sm90BackwardMemory;
use crate::ptx::{barrier, global, shared, shuffle, special};

/// The number of the block's job, the same in all lanes, which the assembler sees; `slot` is the shared address of a `u32`.
///
/// # Safety
/// All threads of the block make this call first, and write nothing to the slot.
#[inline(always)]
pub unsafe fn take(params: &Sm90BackwardParams, slot: u32) -> u32 {
    // SAFETY: the launch has this many threads a block, and the counter is the launch's.
    unsafe {
        if special::thread(THREADS) == 0 {
            let number = match params.counter {
                0 => special::block(),
                counter => global::count(counter, special::blocks() - 1),
            };
            shared::store_u32(slot, number);
        }
        barrier::block();
        shuffle::first(shared::load_u32(slot))
    }
}

/// The job at a place of the order, with `br` queries a step. Where dS is stored, the block visits 128 queries at a time:
/// jobs of queries read dS of all of them.
#[inline(always)]
pub fn job_at<M: Mask, const STORES: bool>(params: &BackwardParams, place: u32, br: u32) -> Job<M> {
    let steps = steps_of_visit::<STORES>(br);
    let tiles = [Sm90BackwardMemory::KEYS, steps * br];
    let descends = M::descends() && params.turns != 0;
    let job = Job::<M>::at(&params.forward, place, tiles, descends);
    Job {
        first: job.first * steps,
        end: job.end * steps,
        ..job
    }
}

/// The tile of `br` queries of a step.
#[inline(always)]
pub fn query_tile<M: Mask, const STORES: bool>(job: &Job<M>, step: Step, br: u32) -> u32 {
    let steps = steps_of_visit::<STORES>(br);
    let visit = Step {
        tile: step.tile / steps,
        ..step
    };
    job.query_tile(visit) * steps + step.tile % steps
}

/// Which pairs of a step the boolean mask shows to a warpgroup.
#[inline(always)]
pub fn coverage<M: Mask, const STORES: bool>(
    job: &Job<M>,
    step: Step,
    br: u32,
    warpgroup: u32,
) -> Coverage {
    let visit = step.tile / steps_of_visit::<STORES>(br);
    job.visits.coverage(visit, warpgroup)
}

#[inline(always)]
const fn steps_of_visit<const STORES: bool>(br: u32) -> u32 {
    match STORES {
        true => Sm90BackwardMemory::KEYS / br,
        false => 1,
    }
}
