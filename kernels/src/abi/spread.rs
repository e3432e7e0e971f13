//! The argument block of the kernels that spread packed sequences, and gather them.

use super::TensorRef;

/// Arguments of the kernel that copies packed sequences to where each begins at a multiple of a step: sequence `s`, whose offset
/// is `first`, at row `ceil(first / step) * step + s * step`. So no two share a step, and a copy has at most a step more for
/// each, and one. Rows between them are zeros. Another kernel writes the tensor from such a copy, with zeros in rows of no sequence.
///
/// Offsets that are not allowed are moved to what is: no row is read or written outside of tensor and copy.
///
/// The grid is one-dimensional, with `heads * ceil(rows / Br)` blocks.
#[repr(C)]
#[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::NoUninit))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpreadParams {
    /// The tensor, `[1, heads, tensor_rows, dim]`.
    pub tensor: TensorRef,
    /// Device address of the copy, `[heads, rows, dim]`, row-major, with zeros behind rows that are no multiple of 8 elements: a
    /// multiple of 16.
    pub copy: u64,
    /// Device address of the offsets of sequences, `i32[sequences + 1]`.
    pub offsets: u64,
    /// Sequences: at least 1.
    pub sequences: u32,
    /// Rows of a step.
    pub step: u32,
    /// Rows of a head.
    pub tensor_rows: u32,
    /// Rows of a head of the copy: at most [`MAX_SEQLEN`](super::MAX_SEQLEN).
    pub rows: u32,
    /// Elements of a row: at least 1, at most [`MAX_DEPTH`](super::MAX_DEPTH).
    pub dim: u32,
    /// 1 if a row is one f32, and the copy has no gaps; else 0, for elements of 16 bits.
    pub numbers: u32,
    /// Zero: rounds the size up to a multiple of 8 bytes.
    pub padding: u32,
    /// Whether rows of the tensor are [aligned](TensorRef::is_aligned) and multiples of 8 elements; 0 is no.
    pub aligned: u32,
}

/// The row of a [copy](SpreadParams) at which a sequence begins, by its offset.
#[inline(always)]
pub const fn first_spread_row(first: u32, sequence: u32, step: u32) -> u32 {
    (first.div_ceil(step) + sequence) * step
}
