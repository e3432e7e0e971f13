//! Which keys a block has.

use crate::abi::{ForwardParams, Sm90BackwardParams};
use crate::attention::backward::job::Job;
use crate::attention::mask::Mask;
use crate::layout::sm90_backward::Sm90BackwardMemory;
use crate::ptx::{global, special};

/// The place of the block's key tile in the order.
///
/// # Safety
/// One thread of the block makes this call.
#[inline(always)]
pub unsafe fn take(params: &Sm90BackwardParams) -> u32 {
    match params.counter {
        0 => params.first_place + special::block(),
        // SAFETY: the counter is the launch's.
        counter => unsafe { global::count(counter, special::blocks() - 1) },
    }
}

/// The job at a place of the order, with `br` queries a step. Stored dS has all of 128 queries: steps are then a multiple
/// of them.
#[inline(always)]
pub fn job_at<M: Mask, const STORES: bool>(params: &ForwardParams, place: u32, br: u32) -> Job<M> {
    let job = Job::<M>::at(params, place, Sm90BackwardMemory::KEYS, br);
    let whole = if STORES {
        Sm90BackwardMemory::KEYS / br
    } else {
        1
    };
    Job {
        first: job.first / whole * whole,
        end: job.end.div_ceil(whole) * whole,
        ..job
    }
}
