//! The argument blocks of the kernels that merge results of attention.

use super::{Divisor, TensorRef};

/// A result of attention, or its gradient.
#[repr(C)]
#[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::NoUninit))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartRef {
    /// o, `[batch, heads, seqlen, dim]`.
    pub o: TensorRef,
    /// Device address of lse, `f32[batch, heads, seqlen]`, with stride 1 in the last axis.
    pub lse: u64,
    /// Numbers from a batch entry's lse to the next one's.
    pub lse_batch: i64,
    /// Numbers from a head's lse to the next one's.
    pub lse_head: i64,
}

/// Two results, and where the rows of all tensors are found.
///
/// The grid is one-dimensional, with a block for [so many](crate::catalog::Auxiliary::MERGED_ROWS) rows.
#[repr(C)]
#[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::NoUninit))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MergeParts {
    /// The result on the first part of the keys.
    pub first: PartRef,
    /// The result on the second part.
    pub second: PartRef,
    /// `batch * heads * seqlen`; below 2^31.
    pub rows: u32,
    /// Elements of a row: a multiple of 8 if rows are aligned.
    pub dim: u32,
    /// Heads.
    pub heads: Divisor,
    /// Rows of a head.
    pub seqlen: Divisor,
    /// Whether the rows of all tensors are [aligned](TensorRef::is_aligned) and multiples of 8 elements; 0 is no.
    pub aligned: u32,
    /// Zero: rounds the size up to a multiple of 8 bytes.
    pub padding: u32,
}

/// Arguments of a kernel that merges.
#[repr(C)]
#[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::NoUninit))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MergeParams {
    /// The parts that are merged.
    pub parts: MergeParts,
    /// The merged result.
    pub merged: PartRef,
}

/// Arguments of a kernel of the gradient.
#[repr(C)]
#[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::NoUninit))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MergeBackwardParams {
    /// The parts that were merged.
    pub parts: MergeParts,
    /// Gradient of the merged result; without one of lse, its address is 0.
    pub d_merged: PartRef,
    /// Gradient of the first part.
    pub d_first: PartRef,
    /// Gradient of the second part.
    pub d_second: PartRef,
}
