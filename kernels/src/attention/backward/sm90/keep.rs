//! dS, stored in device memory by the copy engine.

use super::job::{head_index, job_at};
use super::reduce::{SHARING, read, written};
use crate::abi::Sm90BackwardParams;
use crate::attention::backward::job::Step;
use crate::attention::mask::Mask;
use crate::layout::sm90_backward::{DsImage, Sm90BackwardMemory};
use crate::ptx::{barrier, bulk};
use crate::tile::registers::opaque;

/// Stores a warpgroup's panel of dS, step by step.
///
/// # Safety
/// As [`sm90`](super::sm90), in all lanes of one warp for each warpgroup.
#[inline(always)]
pub unsafe fn keep<M: Mask, const NT: usize>(
    params: &Sm90BackwardParams,
    memory: Sm90BackwardMemory,
    place: u32,
    warpgroup: u32,
) {
    let br = 16 * NT as u32;
    let (backward, forward) = (&params.backward, &params.backward.forward);
    let job = job_at::<M, true>(forward, place, br);
    let image = DsImage::new(
        params.ds,
        params.first_head,
        [backward.padded_rows, job.sequence.keys],
        br,
    );
    let mut step = Step::first(&job);
    let mut left = job.steps(forward);
    let from = memory.ds(0).skip_panels(warpgroup).base;
    // SAFETY: the consumers write their panel between the two barriers, and the images are the launch's.
    unsafe {
        barrier::arrive(read(warpgroup), SHARING);
        while left > 0 {
            let head = head_index(&job, forward, step.head);
            let to = image.panel(head, step.tile, job.tile, warpgroup);
            barrier::some(written(warpgroup), SHARING);
            bulk::store_once(to, from, image.panel_bytes());
            bulk::commit();
            bulk::wait_read::<0>();
            left = opaque(left - 1);
            if left > 0 {
                barrier::arrive(read(warpgroup), SHARING);
            }
            step = step.next(&job);
        }
    }
}
