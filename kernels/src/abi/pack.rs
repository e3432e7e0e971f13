//! The argument block of the kernels that copy tensors to aligned rows and back.

use super::TensorRef;

/// Arguments of a pack kernel, which copies a tensor to where its rows are
/// [aligned](TensorRef::is_aligned): row-major, with zeros behind rows that are no multiple of 8
/// elements. An unpack kernel writes the tensor from such a copy.
///
/// The grid is one-dimensional, with `batch * heads * tiles` blocks.
#[repr(C)]
#[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::NoUninit))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackParams {
    /// The tensor, `[batch, heads, rows, dim]`.
    pub tensor: TensorRef,
    /// Device address of the copy: a multiple of 16.
    pub copy: u64,
    /// Heads.
    pub heads: u32,
    /// Rows of a head; at most [`MAX_SEQLEN`](super::MAX_SEQLEN).
    pub rows: u32,
    /// Elements of a row: at least 1, at most [`MAX_DEPTH`](super::MAX_DEPTH).
    pub dim: u32,
    /// `ceil(rows / Br)`.
    pub tiles: u32,
}
