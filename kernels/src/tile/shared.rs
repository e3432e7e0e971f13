//! A swizzled tile in shared memory.

use super::Operand;
use crate::layout::{
    fragment,
    swizzle::{CHUNK_BYTES, Swizzle},
};
use crate::ptx::{ldmatrix, shared, special};

/// Rows of `16 * DT` 16-bit elements, stored under the [swizzle](crate::layout::swizzle).
#[derive(Clone, Copy)]
pub struct SharedTile<const DT: usize> {
    /// Shared-window address, a multiple of 128.
    pub base: u32,
}

impl<const DT: usize> SharedTile<DT> {
    /// 16-byte chunks of a row.
    pub const CHUNKS: u32 = 2 * DT as u32;
    /// Bytes of a row.
    pub const ROW_BYTES: u32 = Self::CHUNKS * CHUNK_BYTES;
    /// Where chunks lie.
    pub const SWIZZLE: Swizzle = Swizzle::new(Self::CHUNKS);

    /// The tile that starts `rows` rows further; `rows` is a multiple of 8.
    #[inline(always)]
    pub fn skip(self, rows: u32) -> Self {
        SharedTile {
            base: self.base + rows * Self::ROW_BYTES,
        }
    }

    /// The tile without the first `slices` slices of 16 columns, a multiple of 4: of 128 bytes, within
    /// which chunks are swizzled.
    #[inline(always)]
    pub fn skip_slices(self, slices: u32) -> Self {
        SharedTile {
            base: self.base + slices * 2 * CHUNK_BYTES,
        }
    }

    /// Address of a chunk.
    #[inline(always)]
    pub fn chunk(self, row: u32, chunk: u32) -> u32 {
        self.base + Self::SWIZZLE.offset(row, chunk)
    }

    /// The 16x16 tile `(row16, d16)` as an A operand: Q.
    ///
    /// # Safety
    /// Every lane of the warp must reach the same call, with the tile written and visible.
    #[inline(always)]
    pub unsafe fn a(self, lane: u32, row16: usize, d16: usize) -> Operand {
        let (row, chunk) = fragment::ldmatrix_rows_first(lane);
        // SAFETY: the address lies in the tile; the rest is the caller's promise.
        Operand(unsafe { ldmatrix::x4(self.operand_address(row, chunk, row16, d16)) })
    }

    /// The 16x16 tile `(row16, d16)` as B operands with `k` along the row: K, for Q K^T.
    ///
    /// # Safety
    /// As [`a`](Self::a).
    #[inline(always)]
    pub unsafe fn b(self, lane: u32, row16: usize, d16: usize) -> Operand {
        let (row, chunk) = fragment::ldmatrix_chunks_first(lane);
        // SAFETY: the address lies in the tile; the rest is the caller's promise.
        Operand(unsafe { ldmatrix::x4(self.operand_address(row, chunk, row16, d16)) })
    }

    /// The 16x16 tile `(row16, d16)` as B operands with `k` down the rows: V, for P V.
    ///
    /// # Safety
    /// As [`a`](Self::a).
    #[inline(always)]
    pub unsafe fn b_trans(self, lane: u32, row16: usize, d16: usize) -> Operand {
        let (row, chunk) = fragment::ldmatrix_rows_first(lane);
        // SAFETY: the address lies in the tile; the rest is the caller's promise.
        Operand(unsafe { ldmatrix::x4_trans(self.operand_address(row, chunk, row16, d16)) })
    }

    /// Writes the 16x16 tile `(row16, d16)` from an A operand. Without bank conflicts: the 8 rows of
    /// a register lie in distinct groups of 4 banks.
    ///
    /// # Safety
    /// Nobody else uses the tile.
    #[inline(always)]
    pub unsafe fn set(self, lane: u32, row16: usize, d16: usize, operand: Operand) {
        for r in 0..4 {
            let (row, column) = fragment::operand_a(lane, r as u32);
            let chunk = self.chunk(16 * row16 as u32 + row, 2 * d16 as u32 + column / 8);
            // SAFETY: the address lies in the tile, which is the caller's.
            unsafe { shared::store_u32(chunk + 2 * (column % 8), operand.0[r]) }
        }
    }

    /// The 16x16 tiles of the first `MT` times 16 rows from slice `first` on, as A operands.
    ///
    /// # Safety
    /// As [`a`](Self::a).
    #[inline(always)]
    pub unsafe fn operands<const MT: usize, const NT: usize>(
        self,
        first: usize,
    ) -> [[Operand; NT]; MT] {
        let lane = special::lane();
        let mut operands = [[Operand::ZERO; NT]; MT];
        for mt in 0..MT {
            for nt in 0..NT {
                // SAFETY: the caller's promise.
                operands[mt][nt] = unsafe { self.a(lane, mt, first + nt) };
            }
        }
        operands
    }

    /// Writes what [`operands`](Self::operands) reads.
    ///
    /// # Safety
    /// Nobody else uses this part of the tile.
    #[inline(always)]
    pub unsafe fn set_operands<const MT: usize, const NT: usize>(
        self,
        first: usize,
        operands: [[Operand; NT]; MT],
    ) {
        let lane = special::lane();
        for mt in 0..MT {
            for nt in 0..NT {
                // SAFETY: the caller's promise.
                unsafe { self.set(lane, mt, first + nt, operands[mt][nt]) }
            }
        }
    }

    /// The lane's own part does not depend on the tile and stays in a register; the step to a tile
    /// is an XOR and an immediate offset.
    #[inline(always)]
    fn operand_address(self, row: u32, chunk: u32, row16: usize, d16: usize) -> u32 {
        Self::SWIZZLE.step(self.chunk(row, chunk), 16 * row16 as u32, 2 * d16 as u32)
    }
}
