//! dS, stored in device memory by the copy engine.

use super::job::query_tile;
use super::progress;
use super::reduce::SHARING;
use crate::abi::{Sm90BackwardParams, Stored};
use crate::attention::backward::job::{Job, Step};
use crate::attention::options::mask::{Interval, Mask};
use crate::attention::workload::alternate::query_head_number;
use crate::layout::sm90_backward::DsImage;
use crate::ptx::{barrier, bulk};
use crate::tile::registers::opaque;

/// A panel of dS in shared memory, and the barriers between the warpgroup that writes it and the warp that stores it.
pub struct DsPanel {
    /// Shared address.
    pub base: u32,
    /// Its number in the tile.
    pub number: u32,
    /// Queries of a step.
    pub queries: u32,
    /// The barrier that says that it is written.
    pub written: u32,
    /// The barrier that says that it may be written again.
    pub read: u32,
}

/// Stores a panel of dS, step by step, and counts it. Waits first until jobs of queries have read what the memory held.
///
/// # Safety
/// The conditions of [`sm90`](super::sm90), in all lanes of one warp; the panel is written between its two barriers.
#[inline(always)]
pub unsafe fn keep<M: Mask>(params: &Sm90BackwardParams, job: &Job<M>, panel: DsPanel) {
    let (backward, forward) = (&params.backward, &params.backward.forward);
    let sizes = [backward.padded_rows, job.sequence.keys];
    let image = DsImage::new(params.ds, sizes, panel.queries);
    let stored = &params.stored;
    let number =
        |in_group| query_head_number::<M>(forward, job.sequence.batch, job.head(forward, in_group));
    let wave = stored.wave(number(0), forward.group);
    let mut step = Step::first(job);
    let mut left = job.steps(forward);
    // SAFETY: the caller's promise; the images are the launch's.
    unsafe {
        if !M::Keys::HAS_START || left > 0 {
            barrier::arrive(panel.read, SHARING);
        }
        if let Some(awaited) = stored.memory_free(wave) {
            progress::wait_for(params, awaited);
        }
        while left > 0 {
            let head = stored.ring.divide(number(step.head)).1;
            let tile = query_tile::<M, true>(job, step, panel.queries);
            let to = image.panel(head, tile, job.tile, panel.number);
            barrier::some(panel.written, SHARING);
            bulk::store_once(to, panel.base, image.panel_bytes());
            bulk::commit();
            bulk::wait_read::<0>();
            // Opaque: the loop is not turned, 24 to 72 instructions fewer.
            left = opaque(left - 1);
            if left > 0 {
                barrier::arrive(panel.read, SHARING);
            }
            step = step.next(job);
        }
        bulk::wait::<0>();
        progress::count(params, Stored::stored(wave));
    }
}
