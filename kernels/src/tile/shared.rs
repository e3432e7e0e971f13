//! A tile in shared memory.

use super::{Operand, Pairs};
use crate::layout::element::{BYTES, CHUNK};
use crate::layout::{fragment, swizzle::Swizzle};
use crate::ptx::{ldmatrix, shared, special};

/// How the chunks of a tile lie in shared memory.
pub trait Arrangement: Copy {
    /// Their places in rows of `2 * DT` chunks.
    fn swizzle<const DT: usize>(self) -> Swizzle;

    /// Address of `(row + down, chunk + right)` in a tile at `base`, under the conditions of
    /// [`Swizzle::step`].
    fn stepped<const DT: usize>(self, base: u32, from: [u32; 2], down: u32, right: u32) -> u32;
}

/// The [swizzle](crate::layout::swizzle) of the rows' length, known to the compiler.
#[derive(Clone, Copy)]
pub struct Fixed;

impl Arrangement for Fixed {
    #[inline(always)]
    fn swizzle<const DT: usize>(self) -> Swizzle {
        const { Swizzle::new(2 * DT as u32) }
    }

    /// The lane's own part does not depend on the tile and stays in a register. The step to a 16x16 tile is an XOR
    /// and an immediate offset.
    #[inline(always)]
    fn stepped<const DT: usize>(self, base: u32, from: [u32; 2], down: u32, right: u32) -> u32 {
        let swizzle = self.swizzle::<DT>();
        swizzle.step(base + swizzle.offset(from[0], from[1]), down, right)
    }
}

/// Any swizzle, chosen at run time.
impl Arrangement for Swizzle {
    #[inline(always)]
    fn swizzle<const DT: usize>(self) -> Swizzle {
        self
    }

    #[inline(always)]
    fn stepped<const DT: usize>(self, base: u32, from: [u32; 2], down: u32, right: u32) -> u32 {
        base + Swizzle::stepped(self, from[0], from[1], down, right)
    }
}

/// Rows of `DT` slices of [`K`](crate::layout::element::K) elements, two chunks each.
#[derive(Clone, Copy)]
pub struct SharedTile<const DT: usize, A: Arrangement = Fixed> {
    /// Shared address: a multiple of 128 or, without a swizzle, of 16.
    pub base: u32,
    /// How chunks lie.
    pub arrangement: A,
}

impl<const DT: usize> SharedTile<DT> {
    /// The tile at an address, a multiple of 128, under the swizzle of its rows' length.
    #[inline(always)]
    pub fn new(base: u32) -> Self {
        SharedTile {
            base,
            arrangement: Fixed,
        }
    }
}

impl<const DT: usize, A: Arrangement> SharedTile<DT, A> {
    /// 16-byte chunks of a row.
    pub const CHUNKS: u32 = 2 * DT as u32;

    /// Where chunks lie.
    #[inline(always)]
    pub fn swizzle(self) -> Swizzle {
        self.arrangement.swizzle::<DT>()
    }

    /// The tile that starts `rows` rows further; `rows` is a multiple of 8.
    #[inline(always)]
    pub fn skip(self, rows: u32) -> Self {
        SharedTile {
            base: self.base + rows * self.swizzle().pitch(),
            ..self
        }
    }

    /// The tile that starts `columns` columns further, a multiple of 128 bytes: chunks are swizzled within them.
    #[inline(always)]
    pub fn skip_columns(self, columns: u32) -> Self {
        SharedTile {
            base: self.base + BYTES * columns,
            ..self
        }
    }

    /// Address of a chunk.
    #[inline(always)]
    pub fn chunk(self, row: u32, chunk: u32) -> u32 {
        self.base + self.swizzle().offset(row, chunk)
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
    /// The conditions of [`a`](Self::a).
    #[inline(always)]
    pub unsafe fn b(self, lane: u32, row16: usize, d16: usize) -> Operand {
        let (row, chunk) = fragment::ldmatrix_chunks_first(lane);
        // SAFETY: the address lies in the tile; the rest is the caller's promise.
        Operand(unsafe { ldmatrix::x4(self.operand_address(row, chunk, row16, d16)) })
    }

    /// The 16x16 tile `(row16, d16)` as B operands with `k` down the rows: V, for P V.
    ///
    /// # Safety
    /// The conditions of [`a`](Self::a).
    #[inline(always)]
    pub unsafe fn b_trans(self, lane: u32, row16: usize, d16: usize) -> Operand {
        let (row, chunk) = fragment::ldmatrix_rows_first(lane);
        // SAFETY: the address lies in the tile; the rest is the caller's promise.
        Operand(unsafe { ldmatrix::x4_trans(self.operand_address(row, chunk, row16, d16)) })
    }

    /// [`b_trans`](Self::b_trans) of the tile `beside` slices right of `(row16, d16)`: `d16` is a multiple of a power
    /// of two above `beside`, so that what depends on the warp is added once.
    ///
    /// # Safety
    /// The conditions of [`a`](Self::a).
    #[inline(always)]
    pub unsafe fn b_trans_beside(
        self,
        lane: u32,
        beside: u32,
        row16: usize,
        d16: usize,
    ) -> Operand {
        let (row, chunk) = fragment::ldmatrix_rows_first(lane);
        let address = self.operand_address(row, chunk + 2 * beside, row16, d16);
        // SAFETY: the address lies in the tile; the rest is the caller's promise.
        Operand(unsafe { ldmatrix::x4_trans(address) })
    }

    /// The 16x16 tile `beside` slices right of `(row16, d16)`, as for [`b_trans_beside`](Self::b_trans_beside), as an A
    /// operand with `k` down the rows: dS, for dQ = dS K.
    ///
    /// # Safety
    /// The conditions of [`a`](Self::a).
    #[inline(always)]
    pub unsafe fn a_trans(self, lane: u32, beside: u32, row16: usize, d16: usize) -> Operand {
        let (row, chunk) = fragment::ldmatrix_chunks_first(lane);
        let address = self.operand_address(row, chunk + 2 * beside, row16, d16);
        // SAFETY: the address lies in the tile; the rest is the caller's promise.
        Operand(unsafe { ldmatrix::x4_trans(address) })
    }

    /// Writes the 16x16 tile `(row16, d16)` from an A operand, without bank conflicts: the 8 rows of
    /// a register lie in distinct groups of 4 banks.
    ///
    /// # Safety
    /// No other lane uses these elements.
    #[inline(always)]
    pub unsafe fn set(self, lane: u32, row16: usize, d16: usize, operand: Operand) {
        // SAFETY: the caller's promise.
        unsafe { self.set_pairs(lane, row16, d16, operand, Pairs::OF_OPERANDS) }
    }

    /// [`set`](Self::set) of an operand whose lanes have other pairs of columns.
    ///
    /// # Safety
    /// The conditions of [`set`](Self::set).
    #[inline(always)]
    pub unsafe fn set_pairs(
        self,
        lane: u32,
        row16: usize,
        d16: usize,
        operand: Operand,
        pairs: Pairs,
    ) {
        for r in 0..4 {
            // SAFETY: the address lies in the tile; the rest is the caller's promise.
            unsafe { shared::store_u32(self.pair(lane, row16, d16, r, pairs), operand.0[r]) }
        }
    }

    /// Reads what [`set_pairs`](Self::set_pairs) writes.
    ///
    /// # Safety
    /// The tile is written and visible.
    #[inline(always)]
    pub unsafe fn get_pairs(self, lane: u32, row16: usize, d16: usize, pairs: Pairs) -> Operand {
        let mut operand = [0; 4];
        for r in 0..4 {
            // SAFETY: the address lies in the tile; the rest is the caller's promise.
            operand[r] = unsafe { shared::load_u32(self.pair(lane, row16, d16, r, pairs)) };
        }
        Operand(operand)
    }

    /// Address of a pair of elements, which register `r` of a lane's operand has.
    #[inline(always)]
    fn pair(self, lane: u32, row16: usize, d16: usize, r: usize, pairs: Pairs) -> u32 {
        let row = fragment::operand_a(lane, r as u32).0;
        let column = pairs.lane * (lane % 4) + pairs.half * (r as u32 / 2);
        let chunk = self.chunk(16 * row16 as u32 + row, 2 * d16 as u32 + column / CHUNK);
        chunk + BYTES * (column % CHUNK)
    }

    /// The 16x16 tiles of the first `16 * MT` rows, from slice `first` of the columns on, as A operands.
    ///
    /// # Safety
    /// The conditions of [`a`](Self::a).
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
    /// No other warp uses this part of the tile.
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

    #[inline(always)]
    fn operand_address(self, row: u32, chunk: u32, row16: usize, d16: usize) -> u32 {
        let (down, right) = (16 * row16 as u32, 2 * d16 as u32);
        self.arrangement
            .stepped::<DT>(self.base, [row, chunk], down, right)
    }
}
