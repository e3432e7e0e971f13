//! The facts of a device that plans depend on, as numbers.

use super::Class;
use crate::error::{Error, Result, expect_at_most};
use kernels::catalog::class;

/// Shared memory of a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SharedMemory {
    /// Bytes that a block can ask for.
    pub block: u32,
    /// Bytes of all blocks on a multiprocessor.
    pub multiprocessor: u32,
}

impl SharedMemory {
    /// The memory as the catalog knows it.
    const fn of_kernels(self) -> class::SharedMemory {
        class::SharedMemory {
            block: self.block,
            multiprocessor: self.multiprocessor,
        }
    }
}

/// The facts of a device, for the choice of kernels and the division of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Facts {
    /// Compute capability, as (major, minor).
    pub compute_capability: (i32, i32),
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Shared memory of a block and of a multiprocessor; it decides the tiles.
    pub shared: SharedMemory,
    /// Bytes of the L2 cache.
    pub l2_bytes: u32,
    /// Whether the device has memory pools. Without them a call that needs a workspace waits for its own end.
    pub has_pools: bool,
}

impl Facts {
    /// The facts of an A100, an RTX 3090, an H100 or a B200, which the emulator stands for.
    pub const fn emulated(class: Class) -> Facts {
        let (multiprocessors, l2_megabytes) = match class {
            Class::Sm80 => (108, 40),
            Class::Sm86 => (82, 6),
            Class::Sm90 => (132, 50),
            Class::Sm100 => (148, 126),
        };
        let class::SharedMemory {
            block,
            multiprocessor,
        } = class.of_kernels().shared_memory();
        Facts {
            compute_capability: class.of_kernels().compute_capability(),
            multiprocessors,
            shared: SharedMemory {
                block,
                multiprocessor,
            },
            l2_bytes: l2_megabytes << 20,
            has_pools: true,
        }
    }

    /// Checks that a device could have these numbers: products of a few of them and of a problem's sizes do not overflow.
    pub(crate) fn validate(&self) -> Result<()> {
        if self.multiprocessors == 0 {
            return Err(Error::Zero("multiprocessors"));
        }
        expect_at_most("multiprocessors", self.multiprocessors as usize, 1 << 16)?;
        expect_at_most("shared.block", self.shared.block as usize, 1 << 30)
    }

    /// The class whose tiles suit the device.
    pub fn class(&self) -> Class {
        class::Class::of(self.compute_capability, self.shared.of_kernels()).into()
    }

    /// Whether a multiprocessor holds a block with this much shared memory.
    pub fn fits(&self, shared_bytes: u32) -> bool {
        self.shared.of_kernels().resident_blocks(shared_bytes) > 0
    }

    /// Blocks that a multiprocessor holds at once: `blocks_per_sm`, for which the registers are bounded, or fewer
    /// where their shared memory does not fit.
    pub fn resident_blocks(&self, blocks_per_sm: u32, shared_bytes: u32) -> u32 {
        let fitting = self.shared.of_kernels().resident_blocks(shared_bytes);
        blocks_per_sm.min(fitting).max(1)
    }
}
