//! The argument block of the kernels of a backward pass.

use super::{Divisor, ForwardParams, PairsRef, TensorRef};

/// Arguments of the kernels of a backward pass: row statistics, gradients, and dq rounded to 16 bits.
///
/// A grid is one-dimensional. The first kernel has a warp for each 8 rows of each query head, padding included. The
/// main kernel has a block for each key tile of each key/value head, or for each [job](super::Stored) where it stores dS. The
/// next kernel, if dq is summed, has a warp for each 16 rows and 32 columns of dq, padding included. The last one, if there is a
/// gradient of sinks, has a block for each query head.
#[repr(C)]
#[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::NoUninit))]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BackwardParams {
    /// The forward pass: its inputs and results, all of which are inputs here. Tiles are of keys: `tile_heads` counts
    /// key/value heads, and [`order`](ForwardParams::order) says which block takes which key tile. There is one split.
    pub forward: ForwardParams,
    /// Gradient of o, as o; [aligned](TensorRef::is_aligned), as q, k and v.
    pub d_o: TensorRef,
    /// Gradient of q, as q; must not overlap other tensors.
    pub dq: TensorRef,
    /// Gradient of k, as k.
    pub dk: TensorRef,
    /// Gradient of v, as v.
    pub dv: TensorRef,
    /// Device address of the gradient of lse, as [lse](Self::lse_index); 0 if it is 0.
    pub d_lse: u64,
    /// Device address of the row statistics, `f32[batch * heads, 2, padded_rows]`, at a multiple of 16: first
    /// `lse * log2(e)`, infinity where a row sees no key, is padding, or has a [far](FAR_LSE) lse; then `delta`, `+0` where a row
    /// has no part in gradients, and there alone if it is far.
    pub rows: u64,
    /// Device address of the f32 sums of dq, not scaled, `f32[batch * heads, padded_rows, sum_columns]`, zeros before
    /// the main kernel; 0 if dS is stored. Elements of a 16x16 tile lie in the [order of sums](crate::layout::sum).
    pub dq_sum: u64,
    /// Device address of `u32[batch * heads, padded_rows / Br]`, which count the key tiles that are added to each
    /// query tile of dq; zeros before the main kernel. 0 if tiles may be added in any order.
    pub turns: u64,
    /// Device address of a `u32`, 0 before the first kernel: it counts rows with a [far](FAR_LSE) lse. 0 if none is taken for far.
    pub far_count: u64,
    /// Device address of the sums of far rows, as [`rows`](Self::rows) lie: first the largest score in base 2, then 1 over the sum of
    /// the exponentials, 0 for other rows. Written if there are far rows.
    pub far: u64,
    /// Device address of `u32[batch * heads, padded_rows / ROW_PADDING]`: not 0 where one of so many rows is far. Written if there are
    /// far rows.
    pub far_marks: u64,
    /// Device address of the gradient of the sinks, `f32`; 0 if it is not wanted.
    pub d_sinks: u64,
    /// Elements from a head's gradient to the next one.
    pub d_sinks_head: i64,
    /// The gradient of the bias, `f32`, where [`Switch::BiasGradient`](super::Switch::BiasGradient) is on: sums where an axis
    /// repeats.
    pub d_bias: PairsRef,
    /// Queries of a head, rounded up to a multiple of [`ROW_PADDING`].
    pub padded_rows: u32,
    /// Columns of the sums of dq: a multiple of 32, at least the head dim.
    pub sum_columns: u32,
    /// 1 if dq is [aligned](TensorRef::is_aligned), else 0.
    pub dq_aligned: u32,
    /// 1 if dk is aligned, else 0.
    pub dk_aligned: u32,
    /// 1 if dv is aligned, else 0.
    pub dv_aligned: u32,
    /// Rows of a head that lie side by side in lse: all, or those of one of the sequences that a head's rows consist of.
    pub lse_rows: Divisor,
}

/// Arguments of the first kernel of a backward pass.
#[repr(C)]
#[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::NoUninit))]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PrepareParams {
    /// The arguments that all kernels of the pass have in common.
    pub backward: BackwardParams,
    /// Device address of the memory that holds zeros before the main kernel, a multiple of 16.
    pub zeros: u64,
    /// Bytes of it: a multiple of 16.
    pub zero_bytes: u64,
}

impl BackwardParams {
    /// Device address of lse of a row of a query head, counted over all batch entries. delta of the row lies
    /// `4 * padded_rows` bytes behind.
    #[inline(always)]
    pub const fn statistics(&self, head: u64, row: u32) -> u64 {
        self.rows + 4 * (2 * head * self.padded_rows as u64 + row as u64)
    }

    /// Index of a row of a query head, counted over all batch entries, in lse and its gradient. If a head's sequences lie apart
    /// there, they are what batch entries were: there is one entry.
    #[inline(always)]
    pub const fn lse_index(&self, head: u64, row: u32) -> u64 {
        let (sequence, row) = self.lse_rows.divide(row);
        let head = sequence as u64 * self.forward.heads as u64 + head;
        head * self.lse_rows.value as u64 + row as u64
    }
}

/// The size from which lse is far: f32 then holds it to 2^-11 at best, and gradients sum the row's exponentials again.
pub const FAR_LSE: f32 = 16384.0;

/// The number of rows whose multiples query heads are padded to in the workspace of a backward pass: a multiple of every
/// query tile.
pub const ROW_PADDING: u32 = 128;
