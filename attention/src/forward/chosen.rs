//! A kernel that was chosen, with its options.

use crate::device::Facts;
use kernels::abi::LadderParams;
use kernels::catalog::{Kernel, Kind};

/// A kernel, and what a launch of it needs beside the problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chosen {
    pub kernel: &'static Kernel,
    /// Options, if it is of the ladder.
    pub ladder: LadderParams,
    /// Bytes of a block's shared memory.
    pub shared_bytes: u32,
}

impl Chosen {
    pub fn new(kernel: &'static Kernel) -> Self {
        Chosen {
            kernel,
            ladder: LadderParams::default(),
            shared_bytes: kernel.shared_bytes(),
        }
    }

    pub fn of_ladder(kernel: &'static Kernel, ladder: LadderParams, dim: u32) -> Self {
        let Some(Kind::Ladder(shape)) = kernel.forward().map(|forward| forward.kind) else {
            return Chosen::new(kernel);
        };
        Chosen {
            kernel,
            ladder,
            shared_bytes: shape.shared_bytes(&ladder, dim),
        }
    }

    /// Whether a multiprocessor holds a block.
    pub fn fits(&self, facts: &Facts) -> bool {
        facts.fits(self.shared_bytes)
    }

    /// Blocks that a multiprocessor holds at once.
    pub fn resident_blocks(&self, facts: &Facts) -> u32 {
        facts.resident_blocks(self.kernel.blocks_per_sm(), self.shared_bytes)
    }
}
