//! Turns: key tile after key tile adds to dQ of a query tile, so that the sums are the same from run to run.

use super::block::Block;
use super::kernel::Kernel;
use crate::attention::backward::job::{Job, Step};
use crate::ptx::{barrier, global};

/// # Safety
/// All functions here: all threads of the block make the same calls, each on its side; the counters are writable.
impl<K: Kernel, const MT: usize, const DT: usize, const NT: usize> Block<'_, K, MT, DT, NT> {
    /// Barrier of all threads: dQ of the step before is added.
    const ADDED: u32 = 1 + K::PAIRS;

    /// Whether side 0 waits for side 1's dQ.
    #[inline(always)]
    fn waits(&self) -> bool {
        K::DS_STAGES == 1 || self.params.turns != 0
    }

    /// Says, on side 1, that dQ of the step before is added and its dS free.
    #[inline(always)]
    pub unsafe fn say_added(&self) {
        if self.waits() {
            // SAFETY: the caller's promise.
            unsafe { barrier::arrive(Self::ADDED, K::THREADS) }
        }
    }

    /// Waits, on side 0, until dQ of the step before is added and its dS free.
    #[inline(always)]
    pub unsafe fn wait_until_added(&self) {
        if self.waits() {
            // SAFETY: the caller's promise.
            unsafe { barrier::some(Self::ADDED, K::THREADS) }
        }
    }

    /// The counter of a step's query tile: how many key tiles were added to it.
    #[inline(always)]
    fn turn(&self, job: &Job<K::Mask>, step: Step) -> u64 {
        let row = job.padded_row(self.params, step.head, job.query_tile(step) * Self::BR);
        self.params.turns + 4 * (row / u64::from(Self::BR))
    }

    /// Waits, by one warp, for this key tile's turn to add to a step's query tile.
    #[inline(always)]
    pub unsafe fn wait_for_turn(&self, step: Step) {
        if self.params.turns != 0 && self.warp(step.head) == 0 {
            let job = self.job();
            let first = job.query_tile(step) * Self::BR;
            let before = job.tiles_before(self.forward, first, [K::BC, Self::BR]);
            // SAFETY: the caller's promise.
            unsafe { global::wait_for_count(self.turn(&job, step), before) }
        }
    }

    /// Ends, by another warp, the turn of the step before, if there is one: its dQ is added.
    #[inline(always)]
    pub unsafe fn end_turn_before(&self, step: Step) {
        if self.params.turns != 0
            && self.warp(step.head) == K::PAIRS - 1
            && !step.is_first(&self.job())
        {
            let job = self.job();
            // SAFETY: the caller's promise.
            unsafe { global::count_once(self.turn(&job, step.previous(&job))) }
        }
    }
}
