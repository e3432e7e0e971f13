//! Where a tensor lies in device memory.

use crate::layout::element::CHUNK;

/// Where a `[batch, heads, rows, dim]` tensor lies in device memory.
///
/// Strides count elements, may be zero or negative, and are 64-bit: a tensor beyond 2^31 elements
/// is ordinary. The dim stride is 1.
#[repr(C)]
#[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::NoUninit))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TensorRef {
    /// Device address of element `[0, 0, 0, 0]`.
    pub address: u64,
    /// Elements from one batch to the next.
    pub batch_stride: i64,
    /// Elements from one head to the next.
    pub head_stride: i64,
    /// Elements from one row (query or key) to the next.
    pub row_stride: i64,
}

impl TensorRef {
    /// Whether every row starts at a multiple of 16 bytes, so that rows can move in 16-byte pieces.
    pub const fn is_aligned(&self) -> bool {
        self.address.is_multiple_of(16)
            && self.batch_stride % CHUNK as i64 == 0
            && self.head_stride % CHUNK as i64 == 0
            && self.row_stride % CHUNK as i64 == 0
    }
}
