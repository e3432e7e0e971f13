//! The argument block of an attention kernel.

use super::{Divisor, Options, Order, TensorRef};

/// Arguments of a forward, packed, decode or combine kernel.
///
/// The grid is one-dimensional. A forward kernel has `batch * heads * q_tiles * splits` blocks, a
/// packed or decode kernel `batch * kv_heads * q_tiles * splits`: all query tiles on the first split of the
/// keys, then all on the second, and so on; [`order`](crate::abi::Order) says which block takes which
/// tile. A combine kernel has for each row of o a warp for every 128 columns, their
/// number rounded up to a power of two.
///
/// With more than one split the results of each are partial, and a combine kernel adds them up. A
/// *row* is then a query of a query head, in the order of the tiles: `[batch, heads, seqlen_q]`, or
/// `[batch, kv_heads, seqlen_q, group]` from a packed or decode kernel.
#[repr(C)]
#[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::NoUninit))]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ForwardParams {
    /// Queries, `[batch, heads, seqlen_q, dim]`; [aligned](TensorRef::is_aligned), as k and v.
    pub q: TensorRef,
    /// Keys, `[batch, kv_heads, seqlen_kv, dim]`.
    pub k: TensorRef,
    /// Values, `[batch, kv_heads, seqlen_kv, dim_v]`; `dim_v` is `dim`, or an [option](Options::dim_v).
    pub v: TensorRef,
    /// Output, `[batch, heads, seqlen_q, dim_v]`; must not overlap the inputs.
    pub o: TensorRef,
    /// Device address of the row log-sum-exp (natural log), `f32[batch, heads, seqlen_q]`, contiguous.
    pub lse: u64,
    /// Device address of the partial O, `f32[splits, rows, dim_v]`, not divided by the sums; unused
    /// with one split.
    pub partial_o: u64,
    /// Device address of the row maxima and row sums that the partial O is relative to,
    /// `f32[splits, rows, 2]`. They are lse in two parts, `lse = ln(2) * maximum + ln(sum)`: apart,
    /// large scores cost the sums no digits. Unused with one split.
    pub partial_softmax: u64,
    /// Query heads.
    pub heads: u32,
    /// Heads with query tiles of their own: query heads or, in a packed or decode kernel, key/value
    /// heads.
    pub tile_heads: Divisor,
    /// Query heads that share one key/value head: `heads / kv_heads`.
    pub group: Divisor,
    /// Which block takes which query tile, of which head and split.
    pub order: Order,
    /// Queries per head; at most [`MAX_SEQLEN`].
    pub seqlen_q: u32,
    /// Keys per head; at most [`MAX_SEQLEN`].
    pub seqlen_kv: u32,
    /// Head dim: a multiple of 8, at most the kernel's; of wide kernels with options, at most
    /// [`MAX_HEAD_DIM`](crate::catalog::MAX_HEAD_DIM). Kernels that load by tensor maps and combine kernels read it for rows of
    /// o.
    pub dim: u32,
    /// Softmax scale, of any sign; scores are `scale * (q . k)`.
    pub scale: f32,
    /// 1 if o is [aligned](TensorRef::is_aligned), else 0.
    pub o_aligned: u32,
    /// Query heads of all batches.
    pub batch_heads: u32,
    /// Splits of the keys: at least 1.
    pub splits: u32,
    /// Keys of each split except the last, which has at least one and at most as many: a multiple of
    /// Bc.
    pub split_keys: u32,
    /// 1 if query `i` sees only keys up to `i + seqlen_kv - seqlen_q`, else 0; for packed and
    /// decode kernels, the others have it in their type.
    pub causal: u32,
    /// The rest of the options; for kernels with options.
    pub options: Options,
}

/// The longest sequence: row indices, rounded up to a tile, stay within `i32`.
pub const MAX_SEQLEN: u32 = (1 << 31) - 1024;
