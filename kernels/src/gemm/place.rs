//! Which tile of C a block computes, and which part of it a warp.

use crate::abi::Divisor;
use crate::abi::{GemmParams, MatrixRef};
use crate::ptx::special;
use crate::tile::GlobalRows;

/// The first row and the first column of a tile of C.
#[derive(Clone, Copy)]
pub struct Place {
    pub row: u32,
    pub column: u32,
}

impl Place {
    /// That of this block, when tiles have so many rows and columns.
    #[inline(always)]
    pub fn of_block(p: &GemmParams, rows: u32, columns: u32) -> Self {
        let (_, column, row) = p.order.place(special::block());
        Place {
            row: row * rows,
            column: column * columns,
        }
    }

    /// That of a warp with so many rows and columns, where `across` warps lie side by side.
    #[inline(always)]
    pub fn of_warp(self, warp: u32, across: u32, rows: u32, columns: u32) -> Self {
        Place {
            row: self.row + warp / across * rows,
            column: self.column + warp % across * columns,
        }
    }
}

impl MatrixRef {
    /// The rows from `row` on, from `column` on, of a matrix of `columns` columns.
    #[inline(always)]
    pub(super) fn rows(&self, row: u32, column: u32, columns: u32) -> GlobalRows<false> {
        let offset = i64::from(row) * self.row_stride + i64::from(column);
        GlobalRows {
            address: self.address.wrapping_add_signed(2 * offset),
            row_bytes: 2 * self.row_stride,
            head_bytes: 0,
            group: const { Divisor::new(1) },
            first: 0,
            dim: columns.saturating_sub(column),
        }
    }
}
