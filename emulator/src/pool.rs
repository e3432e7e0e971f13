//! Registers that `setmaxnreg` moves between the warps of a block.
//!
//! A launch gives each warp as many as the kernel's launch bounds allow. Some warpgroups give some back
//! to the block's pool, others take them. Nothing but the pool can serve a `setmaxnreg.inc`.

/// Registers of a multiprocessor.
const ALL: u32 = 64 << 10;

/// The most registers of a thread, and the step in which counts change.
pub(crate) const MOST: u32 = 256;
pub(crate) const STEP: u32 = 8;

/// The registers of a block, counted for one lane of a warp.
pub(crate) struct Pool {
    /// Registers that no warp has.
    pub free: u32,
    /// Registers that each warp has.
    pub owned: Vec<u32>,
}

impl Pool {
    /// At the start of a block, `at_launch` for each lane.
    pub fn new(at_launch: u32, warps: usize) -> Self {
        Pool {
            free: 0,
            owned: vec![at_launch; warps],
        }
    }

    /// Changes what a warp has; whether there was enough.
    pub fn resize(&mut self, warp: usize, count: u32) -> bool {
        let owned = &mut self.owned[warp];
        let enough = self.free + *owned >= count;
        if enough {
            self.free = self.free + *owned - count;
            *owned = count;
        }
        enough
    }
}

/// The registers that launch bounds give a thread: as many as fit `blocks` blocks of `threads` threads on a
/// multiprocessor, and not more than `limit`.
pub(crate) fn registers_at_launch(threads: u32, blocks: u32, limit: Option<u32>) -> u32 {
    let fitting = ALL / threads.saturating_mul(blocks).max(1) / STEP * STEP;
    fitting.min(limit.unwrap_or(MOST)).min(MOST)
}
