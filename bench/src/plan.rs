//! How to measure.

use crate::choice::Choice;

/// How to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Which of the project's kernels.
    pub kernel: Choice,
    /// Splits of the keys; 0 for the default.
    pub splits: u32,
    /// Keys of a split of batch invariant calls, 0 for no splits; none if there are no such calls.
    pub invariant: Option<u32>,
    /// Timed launches of each contender.
    pub iters: usize,
    /// Untimed launches of each contender, before the timed ones.
    pub warmup: usize,
    /// Seed of the inputs.
    pub seed: u64,
}
