//! The argument blocks of the Hopper attention kernels.

use super::{BackwardParams, ForwardParams, Stored};

/// A tensor map: where a tensor lies, and how boxes of it lie in shared memory. The driver encodes it
/// (`cuTensorMapEncodeTiled`).
pub type TensorMap = [u64; 16];

/// Arguments of a forward kernel that loads by tensor maps, and may store by one. The kernel's parameter lies at a multiple of 64.
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
    /// Boxes of 16 rows of o, `[batch, heads, seqlen_q, dim]`, and one panel's columns. Used if `o_by_map` is not 0.
    pub o: TensorMap,
    /// The rest.
    pub forward: ForwardParams,
    /// Device address of a `u32` that counts the tiles taken beside each block's first, and is 0 before a launch and
    /// after it. 0 if a block takes every tile a multiple of the grid's size after its first.
    pub counter: u64,
    /// Tiles of all splits.
    pub tiles: u32,
    /// Whether o is stored by its map. 0 with splits, or if the kernel [stores](Self::stores_by_map) from registers alone.
    pub o_by_map: u32,
}

impl Sm90Params {
    /// Queries of a box of o; a warp stores one box.
    pub const O_ROWS: u32 = 16;

    /// Whether the kernel of this head dim stores o by its map. Measured on an H200 (`docs/tuning.md`): 1 to 5 % faster at
    /// 128, slower at 256; below 128 a register is missing.
    pub const fn stores_by_map(dim: u32) -> bool {
        dim == 128
    }
}

/// Arguments of the main kernel of a backward pass that loads by tensor maps. The kernel's parameter lies at a multiple of
/// 64.
#[repr(C)]
#[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::NoUninit))]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sm90BackwardParams {
    /// Boxes of Br rows of q, `[batch, heads, seqlen_q, dim]`, and one panel's columns.
    pub q: TensorMap,
    /// Boxes of 128 rows of k, 64 above head dim 128, `[batch, kv_heads, seqlen_kv, dim]`, and one panel's columns.
    pub k: TensorMap,
    /// Boxes of v, with the shape of [`k`](Self::k)'s.
    pub v: TensorMap,
    /// Boxes of the gradient of o, with the shape of [`q`](Self::q)'s.
    pub d_o: TensorMap,
    /// The rest. A turn counts the halves of key tiles that are added.
    pub backward: BackwardParams,
    /// Device address of a `u32` that counts the blocks as they begin, and is 0 before a launch and after it. A block
    /// takes the job of its count, so that it waits only for blocks that began before. 0 if a block takes the job of its
    /// index.
    pub counter: u64,
    /// Device address of dS, if it is stored: see [`DsImage`](crate::layout::sm90_backward::DsImage).
    pub ds: u64,
    /// Device address of the `u32` [counters](Stored::counters) of jobs that store and read dS.
    pub progress: u64,
    /// The jobs of a launch that stores dS.
    pub stored: Stored,
}
