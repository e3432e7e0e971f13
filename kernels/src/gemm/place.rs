//! Which tile of C a block computes, and which part of it each warp.

use crate::abi::{GemmParams, MatrixRef};
use crate::layout::{element, rows::Strided};
use crate::ptx::special;

/// A tile of C, by its first row and its first column.
#[derive(Clone, Copy)]
pub struct CTile {
    pub row: u32,
    pub column: u32,
}

impl CTile {
    /// The tile of this block, of `rows` rows and `columns` columns.
    #[inline(always)]
    pub fn of_block(params: &GemmParams, rows: u32, columns: u32) -> Self {
        Self::at(params, special::block(), rows, columns)
    }

    /// The tile at a place of the order, of `rows` rows and `columns` columns.
    #[inline(always)]
    pub fn at(params: &GemmParams, place: u32, rows: u32, columns: u32) -> Self {
        let (_, column, row) = params.order.place(place);
        CTile {
            row: row * rows,
            column: column * columns,
        }
    }

    /// The part of warp `warp`, of `rows` rows and `columns` columns, where `across` warps lie side by side.
    #[inline(always)]
    pub fn of_warp(self, warp: u32, across: u32, rows: u32, columns: u32) -> Self {
        CTile {
            row: self.row + warp / across * rows,
            column: self.column + warp % across * columns,
        }
    }
}

impl MatrixRef {
    /// The part of a matrix of `columns` columns that starts at row `row` and column `column`.
    #[inline(always)]
    pub(super) fn rows(&self, row: u32, column: u32, columns: u32) -> Strided {
        let offset = i64::from(row) * self.row_stride + i64::from(column);
        Strided {
            address: element::at(self.address, offset),
            row_bytes: element::bytes(self.row_stride),
            elements: columns.saturating_sub(column),
        }
    }
}
