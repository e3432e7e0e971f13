//! Stages that a producer fills by the copy engine, and consumers use.

use crate::ptx::mbarrier;

/// A place in a stream of tiles through `S` stages: the number of a tile.
///
/// Each stage has two `mbarrier`s. `full` completes when a tile has landed, `empty`, 8 bytes behind it, when all
/// consumers have released it. A producer and every consumer pass the tiles in the same order; none passes 2^32.
#[derive(Clone, Copy)]
pub struct Ring<const S: u32>(pub u32);

impl<const S: u32> Ring<S> {
    /// The tile's stage.
    #[inline(always)]
    pub fn stage(self) -> u32 {
        self.0 % S
    }

    /// The parity of the stage's phase.
    #[inline(always)]
    fn parity(self) -> u32 {
        self.0 / S % 2
    }

    /// Waits until the stage whose first barrier is `full` is free. All are free at first: the phase before
    /// the first one counts as complete.
    ///
    /// # Safety
    /// The barriers are initialised.
    #[inline(always)]
    pub unsafe fn acquire(self, full: u32) {
        // SAFETY: the caller's promise.
        unsafe { mbarrier::wait(full + 8, self.parity() ^ 1) }
    }

    /// Waits until the tile has landed.
    ///
    /// # Safety
    /// The conditions of [`acquire`](Self::acquire).
    #[inline(always)]
    pub unsafe fn wait(self, full: u32) {
        // SAFETY: the caller's promise.
        unsafe { mbarrier::wait(full, self.parity()) }
    }

    /// Gives the stage back, once for the warp.
    ///
    /// # Safety
    /// The conditions of [`acquire`](Self::acquire); all lanes of the warp have waited for the tile, and no longer read it.
    #[inline(always)]
    pub unsafe fn release(self, full: u32) {
        // SAFETY: the caller's promise.
        unsafe { mbarrier::arrive_once(full + 8) }
    }

    /// The next tile's place.
    #[inline(always)]
    #[must_use]
    pub fn next(self) -> Self {
        Ring(self.0 + 1)
    }
}
