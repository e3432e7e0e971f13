//! The argument block of the kernel that appends keys and values to a cache.

use super::{PagesRef, TensorRef};

/// Arguments of an append kernel, which copies new keys and values to where a cache has them, and rotates the keys, and queries
/// beside them, on the way.
///
/// The grid is one-dimensional, with a warp for each row of q, k and v of all heads and batch entries.
///
/// Rows whose place the cache does not have are not written: behind its last key, in a page that does not exist, or at a slot
/// that is negative or too large.
#[repr(C)]
#[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::NoUninit))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AppendParams {
    /// Queries, `[batch, heads, rows, dim]`.
    pub q: RowsRef,
    /// New keys, `[batch, kv_heads, rows, dim]`, and the cache, `[entries or pages, kv_heads, keys, dim]`.
    pub k: RowsRef,
    /// New values, and their cache, in the shapes of [`k`](Self::k), with rows of their own length.
    pub v: RowsRef,
    /// Device address of the table of pages or of the `i32[batch]` entries of the cache; 0 where each batch entry has its own.
    pub table: u64,
    /// The pages of each batch entry: one page of 2^31 keys, of which the cache has some, where there is no table of pages.
    pub pages: PagesRef,
    /// Device address of `i32[batch]`: keys that each batch entry has before; 0 if none has any.
    pub lengths: u64,
    /// Device address of `i32[batch]`, to write: keys that each batch entry has behind; 0 if they are not wanted.
    pub new_lengths: u64,
    /// Device address of `i64[batch, rows]`: where each new key goes, counted through all pages or entries; 0 where new keys lie
    /// behind those that are there.
    pub slots: u64,
    /// Slots from a batch entry to the next one.
    pub slots_stride: i64,
    /// Device address of `i32[batch, rows]`: the position of each row; 0 where it follows from the lengths.
    pub positions: u64,
    /// Positions from a batch entry to the next one.
    pub positions_stride: i64,
    /// Device address of the cosines, `[positions, rotary_dim / 2]`.
    pub cos: u64,
    /// Device address of the sines, of the cosines' shape.
    pub sin: u64,
    /// Elements from a position's cosines to the next one's.
    pub cos_stride: i64,
    /// Elements from a position's sines to the next one's.
    pub sin_stride: i64,
    /// Positions that there are; rows behind them take the last one.
    pub rotated_positions: u32,
    /// Elements of a row that are rotated: even, 0 if none are.
    pub rotary_dim: u32,
    /// 1 if neighbours are a pair, 0 if element `i` and `i + rotary_dim / 2` are.
    pub interleaved: u32,
    /// 1 if cosines and sines are f32, 0 if they have the type of the rows.
    pub wide: u32,
    /// 1 if all queries of an entry have the position of the first one, else 0.
    pub q_at_first: u32,
    /// Batch entries.
    pub batch: u32,
    /// Entries or pages of the cache.
    pub entries: u32,
    /// Keys of one.
    pub keys: u32,
}

/// Rows and where they go.
#[repr(C)]
#[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::NoUninit))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowsRef {
    /// The rows.
    pub from: TensorRef,
    /// Where they go.
    pub to: TensorRef,
    /// Heads of a batch entry.
    pub heads: u32,
    /// Rows of a head.
    pub rows: u32,
    /// Elements of a row.
    pub dim: u32,
    /// 1 if rows are whole pieces of 16 bytes at multiples of 16 bytes, from and to, else 0.
    pub aligned: u32,
}
