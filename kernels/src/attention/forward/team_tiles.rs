//! Where the warps of a team find their tiles.

use crate::attention::Team;
use crate::ptx::special;
use crate::tile::registers::{again, opaque_in};
use crate::tile::{Operand, SharedTile};

/// The tiles of a block in shared memory: Q, later O; K; V; P. Each step computes their addresses and the warp's place in
/// its team again.
#[derive(Clone, Copy)]
pub struct TeamTiles<const T: usize, const MT: usize, const DT: usize, const KT: usize> {
    /// Q, later O.
    pub qo: SharedTile<DT>,
    /// Rows of the block.
    pub br: u32,
    /// Threads of the block.
    pub threads: u32,
}

impl<const T: usize, const MT: usize, const DT: usize, const KT: usize> TeamTiles<T, MT, DT, KT> {
    /// Keys of a warp's part of a block.
    const PART: u32 = (16 * KT / T) as u32;

    /// K of block `j`, or of the one that follows it.
    #[inline(always)]
    pub fn k(self, j: u32) -> SharedTile<DT> {
        // Its sums with addresses of fragments, held over the loop, would take 8 instructions.
        SharedTile::new(opaque_in(self.qo.skip(self.br).base, j))
    }

    /// V of block `j`, or of the one that follows it.
    #[inline(always)]
    pub fn v(self, j: u32) -> SharedTile<DT> {
        self.k(j).skip(16 * KT as u32)
    }

    /// K of the warp's part of block `j`.
    #[inline(always)]
    pub fn own_k(self, j: u32) -> SharedTile<DT> {
        self.k(j).skip(self.team().side * Self::PART)
    }

    /// V of block `j`, in the warp's columns.
    #[inline(always)]
    pub fn own_v(self, j: u32) -> SharedTile<DT> {
        let columns = (16 * DT / T) as u32;
        self.v(j).skip_columns(self.team().side * columns)
    }

    /// V of a warp's part of block `j`, in this warp's columns.
    #[inline(always)]
    pub fn part_v(self, j: u32, part: u32) -> SharedTile<DT> {
        self.own_v(j).skip(part * Self::PART)
    }

    /// P of the block, all rows.
    #[inline(always)]
    fn p(self) -> SharedTile<KT> {
        SharedTile::new(self.v(0).skip(16 * KT as u32).base)
    }

    /// P of the team's rows.
    #[inline(always)]
    pub fn team_p(self) -> SharedTile<KT> {
        self.p().skip(self.team().row)
    }

    /// Reads P of the team's rows and a warp's part of the keys.
    ///
    /// # Safety
    /// The conditions of [`SharedTile::operands`].
    #[inline(always)]
    pub unsafe fn part_p<const NT: usize>(self, part: u32) -> [[Operand; NT]; MT] {
        // SAFETY: the caller's promise.
        unsafe { self.team_p().operands(part as usize * NT) }
    }

    /// Writes P of the team's rows and the warp's part of the keys.
    ///
    /// # Safety
    /// The team is done with P of the block before.
    #[inline(always)]
    pub unsafe fn set_own_p<const NT: usize>(self, p: [[Operand; NT]; MT]) {
        let first = self.team().side as usize * NT;
        // SAFETY: the caller's promise; the part is the warp's.
        unsafe { self.team_p().set_operands(first, p) }
    }

    /// The warp's place in its team. What the team exchanges lies after P.
    #[inline(always)]
    pub fn team(self) -> Team<T> {
        // SAFETY: the launch has this many threads a block.
        // Held, it takes 9 registers more where heads share rows, and spills 56 bytes.
        let warp = again(|| unsafe { special::thread(self.threads) } / 32);
        let exchange = self.p().skip(self.br).base;
        Team::of_warp(warp, 16 * MT as u32, self.br, exchange)
    }
}
