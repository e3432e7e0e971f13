//! The argument block of the Hopper forward kernel.

use super::ForwardParams;

/// A tensor map: where a tensor lies, and how boxes of it lie in shared memory. The driver encodes it
/// (`cuTensorMapEncodeTiled`).
pub type TensorMap = [u64; 16];

/// Arguments of a forward kernel that loads by tensor maps. The kernel's parameter lies at a multiple of 64.
///
/// The grid is one-dimensional, with at most a block for each tile; blocks take tiles until none is left.
#[repr(C)]
#[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::NoUninit))]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sm90Params {
    /// Boxes of 64 rows of q, `[batch, heads, seqlen_q, dim]`, and one panel's columns. Unused in packed kernels.
    pub q: TensorMap,
    /// Boxes of Bc rows of k, `[batch, kv_heads, seqlen_kv, dim]`, and one panel's columns.
    pub k: TensorMap,
    /// Boxes of v, of as many rows as a chunk has keys, and one panel's columns.
    pub v: TensorMap,
    /// The rest.
    pub forward: ForwardParams,
    /// Device address of a `u32` that counts the tiles taken beside each block's first, and is 0 before a launch and
    /// after it. 0 if a block takes every tile a multiple of the grid's size after its first.
    pub counter: u64,
    /// Tiles of all splits.
    pub tiles: u32,
    /// Unused.
    pub padding: u32,
}
