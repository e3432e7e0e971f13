//! The argument block of a matrix product.

use super::{Order, TensorMap};
use crate::layout::element::CHUNK;

/// Where a row-major matrix lies in device memory.
///
/// The stride counts elements, may be zero or negative, and is 64-bit: a matrix beyond 2^31 elements
/// is ordinary. Elements of a row lie side by side.
#[repr(C)]
#[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::NoUninit))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MatrixRef {
    /// Device address of element `[0, 0]`.
    pub address: u64,
    /// Elements from one row to the next.
    pub row_stride: i64,
}

impl MatrixRef {
    /// Whether every row starts at a multiple of 16 bytes.
    pub const fn is_aligned(&self) -> bool {
        self.address.is_multiple_of(16) && self.row_stride % CHUNK as i64 == 0
    }
}

/// Arguments of a matrix product `C = A B^T`.
///
/// The grid is one-dimensional, with a block for each tile of C.
#[repr(C)]
#[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::NoUninit))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GemmParams {
    /// `[m, k]`; [aligned](MatrixRef::is_aligned), as b.
    pub a: MatrixRef,
    /// `[n, k]`.
    pub b: MatrixRef,
    /// `[m, n]`; must not overlap a and b.
    pub c: MatrixRef,
    /// Rows of A and C.
    pub m: u32,
    /// Rows of B, columns of C.
    pub n: u32,
    /// Columns of A and B: a multiple of 8, perhaps 0, at most [`MAX_DEPTH`].
    pub k: u32,
    /// 1 if c is [aligned](MatrixRef::is_aligned) and n a multiple of 8, else 0.
    pub c_aligned: u32,
    /// Which block takes which tile: [`place`](Order::place) gives the column of tiles and, as a
    /// head, the row of tiles. Blocks that run together lie in some rows and some columns of tiles, so
    /// that they share what they read in the L2 cache.
    pub order: Order,
}

/// The most columns of A and B: 16-byte pieces of a tile's rows are counted in 32 bits.
pub const MAX_DEPTH: u32 = 1 << 28;

/// Arguments of a matrix product by tensor maps, with k at least 1. The kernel's parameter lies at a multiple of 64.
///
/// The grid is one-dimensional, with at most a block for each tile of C; blocks take tiles until none is left.
#[repr(C)]
#[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::NoUninit))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HopperGemmParams {
    /// Boxes of a tile's rows of a, as one head of one batch entry, and 64 columns.
    pub a: TensorMap,
    /// Boxes of b, with the layout of [`a`](Self::a)'s.
    pub b: TensorMap,
    /// The rest; of the references to a and b none is used.
    pub gemm: GemmParams,
    /// Tiles of C.
    pub tiles: u32,
    /// Unused.
    pub padding: u32,
}
