//! A plan of a backward call in the making.

use super::RawBackward;
use crate::error::Result;
use crate::forward::Problem;
use crate::plan::Steps;
use crate::spread::Spread;
use kernels::abi::{BackwardParams, Stored, StoredSizes};
use kernels::catalog::{self, Backward, Family};
use std::ops::Range;

/// A plan in the making.
pub(super) struct Draft<'a> {
    /// The call's problem, of as many queries and keys as kernels see.
    pub problem: Problem,
    pub args: &'a RawBackward,
    pub dtype: catalog::Dtype,
    pub multiprocessors: u32,
    /// Padded rows of all query heads.
    pub rows: usize,
    /// Whether key tiles add to dq in turns.
    pub takes_turns: bool,
    /// The arguments that all steps have in common, with [places](Steps::places) in the workspace.
    pub params: BackwardParams,
    /// The part of the workspace that holds zeros before the main kernel.
    pub zeros: Range<u64>,
    /// Place in it of the counter from which blocks of Hopper's kernels take their numbers; 0 if they have theirs.
    pub counter: u64,
    /// Jobs of a kernel that stores dS.
    pub stored: Option<StoredJobs>,
    /// How queries and keys of packed sequences are spread.
    pub spread: [Option<Spread>; 2],
    pub steps: Steps,
}

/// Jobs of a kernel that stores dS.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoredJobs {
    pub sizes: StoredSizes,
    pub jobs: Stored,
    /// Place of their [counters](Stored::counters) in the workspace.
    pub progress: u64,
}

impl Draft<'_> {
    /// Bytes of so many f32 for each padded row.
    pub fn row_bytes(&self, numbers: usize) -> Result<usize> {
        let bytes = self.rows.checked_mul(numbers * size_of::<f32>());
        bytes.ok_or(Steps::OVERFLOW)
    }

    /// Launches a kernel with the parameters of all steps.
    pub fn launch(&mut self, kernel: Backward, blocks: u128) -> Result<()> {
        let kernel = catalog::kernel(Family::Backward(kernel));
        let (shared_bytes, params) = (kernel.launch.shared_bytes, self.params);
        self.steps
            .launch(kernel.into(), blocks, shared_bytes, &params)?;
        Ok(())
    }
}
