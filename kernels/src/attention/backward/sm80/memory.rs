//! Where tiles lie in the shared memory of a block.

use super::kernel::Kernel;
use crate::ptx::shared;
use crate::tile::SharedTile;
use core::marker::PhantomData;

/// Shared memory of a block, with rows of `16 * DT` elements and `16 * NT` queries a step.
///
/// ```text
/// K | V | Q, dO of stage 0, 1 | dS of stage 0, 1 | lse, delta of stage 0, 1 | job
/// ```
pub struct Memory<K, const DT: usize, const NT: usize> {
    /// The block's keys; dV at the end.
    pub k: SharedTile<DT>,
    /// Their values; dK at the end.
    pub v: SharedTile<DT>,
    /// Address of the words of the block's job.
    pub job: u32,
    kernel: PhantomData<K>,
}

impl<K: Kernel, const DT: usize, const NT: usize> Memory<K, DT, NT> {
    const BR: u32 = 16 * NT as u32;

    /// The memory of this block.
    #[inline(always)]
    pub fn new() -> Self {
        let k = SharedTile::new(shared::base());
        let mut memory = Memory {
            k,
            v: k.skip(K::BC),
            job: 0,
            kernel: PhantomData,
        };
        memory.job = memory.statistics(2);
        memory
    }

    /// Q of a stage.
    #[inline(always)]
    pub fn q(&self, stage: u32) -> SharedTile<DT> {
        self.v.skip(K::BC + stage * 2 * Self::BR)
    }

    /// dO of a stage.
    #[inline(always)]
    pub fn d_o(&self, stage: u32) -> SharedTile<DT> {
        self.q(stage).skip(Self::BR)
    }

    /// dSᵀ of a stage, a row for each key; before that P.
    #[inline(always)]
    pub fn ds(&self, stage: u32) -> SharedTile<NT> {
        SharedTile::new(self.q(2).base).skip(stage % K::DS_STAGES * K::BC)
    }

    /// Address of a stage's row statistics: lse of all queries, then delta.
    #[inline(always)]
    pub fn statistics(&self, stage: u32) -> u32 {
        self.ds(0).skip(K::DS_STAGES * K::BC).base + stage * 8 * Self::BR
    }
}
