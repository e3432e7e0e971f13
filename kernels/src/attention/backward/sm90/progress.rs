//! Counters of stored dS: a job waits until others have stored what it reads, or read what it overwrites.

use crate::abi::{Awaited, Sm90BackwardParams};
use crate::ptx::{bulk, global};

/// Waits for a counter. Bulk copies after the call see what was written before it was counted.
///
/// # Safety
/// The conditions of [`sm90_stored`](super::sm90_stored), in all lanes of one warp.
#[inline(always)]
pub unsafe fn wait_for(params: &Sm90BackwardParams, awaited: Awaited) {
    // SAFETY: the caller's promise.
    unsafe {
        global::wait_for_count(address(params, awaited.counter), awaited.least);
        bulk::fence_global();
    }
}

/// Counts one more panel of dS stored, or one more job that has read its dS.
///
/// # Safety
/// The conditions of [`sm90_stored`](super::sm90_stored), in all lanes of one warp, when its copies are done.
#[inline(always)]
pub unsafe fn count(params: &Sm90BackwardParams, counter: u32) {
    // SAFETY: the caller's promise.
    unsafe { global::count_once(address(params, counter)) }
}

#[inline(always)]
fn address(params: &Sm90BackwardParams, counter: u32) -> u64 {
    params.progress + 4 * u64::from(counter)
}
