//! The shared memory of a block of the kernel for latent attention: Q, the stages of keys, what the two warpgroups tell each
//! other, and the barriers.

use super::descriptor::Panels;
use super::element::BYTES;

/// Where everything lies, from the first address on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentMemory(u32);

impl LatentMemory {
    /// Elements of a row of q and k.
    pub const DIM: u32 = 576;
    /// Elements of a row of v, which is the first part of a key, and of o.
    pub const DIM_V: u32 = 512;
    /// Query rows of a block.
    pub const ROWS: u32 = 64;
    /// Keys of a stage.
    pub const KEYS: u32 = 32;
    /// Stages.
    pub const STAGES: u32 = 4;
    /// Bytes of a stage.
    pub const STAGE_BYTES: u32 = Self::KEYS * Self::DIM * BYTES;

    const WIDTH: u32 = Panels::width_for(Self::DIM);
    const Q_BYTES: u32 = Self::ROWS * Self::DIM * BYTES;
    /// From a thread of a warpgroup 16 bytes in each of three arrays.
    const EXCHANGE_BYTES: u32 = 3 * Self::ARRAY_BYTES;
    const ARRAY_BYTES: u32 = 128 * 16;

    /// The memory of a block from shared address `base` on, a multiple of 1024.
    #[must_use]
    #[inline(always)]
    pub const fn new(base: u32) -> Self {
        LatentMemory(base)
    }

    /// Q.
    #[must_use]
    #[inline(always)]
    pub const fn q(self) -> Panels {
        Panels {
            base: self.0,
            rows: Self::ROWS,
            width: Self::WIDTH,
        }
    }

    /// The keys of a stage.
    #[must_use]
    #[inline(always)]
    pub const fn keys(self, stage: u32) -> Panels {
        Panels {
            base: self.0 + Self::Q_BYTES + stage * Self::STAGE_BYTES,
            rows: Self::KEYS,
            width: Self::WIDTH,
        }
    }

    /// The values of a stage, in one half of their columns.
    #[must_use]
    #[inline(always)]
    pub const fn values(self, stage: u32, half: u32) -> Panels {
        let panels = Self::DIM_V / 2 / Self::WIDTH;
        self.keys(stage).skip_panels(half * panels)
    }

    /// 16 bytes in an array for two threads of equal number, one of each warpgroup.
    #[must_use]
    #[inline(always)]
    pub const fn exchange(self, array: u32, thread: u32) -> u32 {
        self.keys(Self::STAGES).base + array * Self::ARRAY_BYTES + 16 * thread
    }

    /// The barrier that says that a stage has landed; the next one, 8 bytes behind it, says that both warpgroups have read it.
    #[must_use]
    #[inline(always)]
    pub const fn full(self, stage: u32) -> u32 {
        self.keys(Self::STAGES).base + Self::EXCHANGE_BYTES + 16 * stage
    }

    /// Bytes of all.
    #[must_use]
    #[inline(always)]
    pub const fn bytes(self) -> u32 {
        self.full(Self::STAGES) - self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::class::Class;

    #[test]
    fn a_block_fits_a_multiprocessor() {
        let memory = LatentMemory::new(0);
        assert_eq!(memory.bytes(), 227_392);
        assert!(memory.bytes() <= Class::Sm90.shared_memory().block);
        // Swizzles begin anew.
        assert!((0..4).all(|stage| memory.keys(stage).base.is_multiple_of(1024)));
    }

    #[test]
    fn values_are_the_first_columns_of_keys() {
        let memory = LatentMemory::new(1024);
        for (column, half) in [(0, 0), (64, 0), (192, 0), (256, 1), (448, 1)] {
            let found = memory.values(2, half).chunk(5, column - 256 * half);
            assert_eq!(found, memory.keys(2).chunk(5, column));
        }
    }
}
