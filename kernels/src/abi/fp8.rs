//! Arguments of the kernels for FP8: those that round to e4m3, and the one that multiplies it.

use super::{DescalesRef, ForwardParams, TensorMap, TensorRef};

/// Rows of a tile of a kernel that rounds, and keys that share a scale.
pub const FP8_BLOCK: u32 = 128;

/// Arguments of the kernel that rounds rows of q or k to e4m3. Scales are powers of two, so that they round nothing.
///
/// The grid is one-dimensional: a block takes as many [tiles](crate::layout::fp8::row_tiles) as its threads have room for.
#[repr(C)]
#[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::NoUninit))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundRowsParams {
    /// The rows, `[batch, heads, rows, dim]`; of 16 bits [aligned](TensorRef::is_aligned).
    pub rows: TensorRef,
    /// Of rows of e4m3, what multiplies q and k; it goes into the scales of q.
    pub descales: [DescalesRef; 2],
    /// Device address of the rounded rows, e4m3 `[batch, heads, rows, row_bytes]`, row-major, with zeros behind `dim`.
    pub rounded: u64,
    /// Device address of the scales: `f32[batch, heads, rows]`, or `f32[batch, heads, ceil(rows / 128)]` of blocks of 128 rows.
    pub scales: u64,
    /// Device address of the queries that see each row of k, [`QueryRange`](super::QueryRange) `[batch, rows]`: rows that none sees count
    /// for no scale. 0 where rows are of queries, or all count.
    pub ranges: u64,
    /// Device address of a counter of a later launch, `u32`, which this one sets to 0; 0 if there is none.
    pub counter: u64,
    /// Heads.
    pub heads: u32,
    /// Rows of a head.
    pub row_count: u32,
    /// Heads that share a key/value head.
    pub group: u32,
    /// Elements of a row, at most 256; of 16 bits a multiple of 8.
    pub dim: u32,
    /// Numbers of a rounded row, a multiple of 16; of rotated ones a power of two from 64 on.
    pub row_bytes: u32,
    /// The base-2 logarithm of what rounded numbers are below, or at: see [`scale_of`](crate::layout::fp8::scale_of).
    pub most_log2: i32,
    /// 1 if blocks of 128 rows share a scale; 0 if each row has one.
    pub shares: u32,
    /// 1 if numbers change their sign, else 0.
    pub negates: u32,
    /// 1 if rows are rotated by a Hadamard matrix, else 0.
    pub rotates: u32,
    /// Tiles: `batch * heads * ceil(rows / 128)`.
    pub tiles: u32,
}

/// Arguments of the two kernels that round v to e4m3: the one that finds the moments of its columns, and the one that rounds.
///
/// The grid of the first one has `batch * heads * parts` blocks, that of the second one `batch * heads * ceil(keys / 128)`.
#[repr(C)]
#[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::NoUninit))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundValuesParams {
    /// The values, `[batch, heads, keys, dim]`; of 16 bits [aligned](TensorRef::is_aligned).
    pub values: TensorRef,
    /// Of values of e4m3, what multiplies them.
    pub descale: DescalesRef,
    /// Device address of the queries that see each key: see [`RoundRowsParams::ranges`].
    pub ranges: u64,
    /// Device address of the moments of each part of the keys, `[batch, heads, parts, 4, dim]` words: sums, least and largest numbers,
    /// and how many keys queries see.
    pub moments: u64,
    /// Device address of the rounded values, e4m3 `[batch, heads, rows, keys16]`: keys are [transposed](crate::layout::fp8::transposed_key),
    /// and so are [columns](crate::layout::fp8::transposed_column), with [rows](crate::layout::fp8::transposed_rows) of 0 behind them. `keys16`
    /// is `keys` rounded up to a multiple of 16, with any finite numbers behind them, whose probabilities are 0.
    pub rounded: u64,
    /// Device address of [scales and means](Fp8Params::columns).
    pub columns: u64,
    /// Device address of [blocks](Fp8Params::wrong_blocks) with values that are not finite.
    pub wrong_blocks: u64,
    /// Device address of [these values](Fp8Params::wrong_values).
    pub wrong_values: u64,
    /// Heads.
    pub heads: u32,
    /// Keys of a head.
    pub keys: u32,
    /// Columns: a multiple of 8, at most 256.
    pub dim: u32,
    /// Parts of the keys, each of a multiple of 128 keys.
    pub parts: u32,
    /// Keys of a part, but for the last one.
    pub part_keys: u32,
    /// Elements of a row of e4m3, of as many columns or fewer.
    pub row_dim: u32,
}

/// Arguments of a forward kernel that multiplies e4m3. The kernel's parameter lies at a multiple of 64.
///
/// The grid is one-dimensional, with at most a block for each tile; blocks take tiles until none is left.
#[repr(C)]
#[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::NoUninit))]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fp8Params {
    /// Boxes of 64 rows of q: of 16 bits, or rounded, in pairs of e4m3.
    pub q: TensorMap,
    /// Boxes of Bc rows of the rounded k, in pairs of e4m3.
    pub k: TensorMap,
    /// Boxes of Bc keys of all rows of the transposed v, in pairs of e4m3.
    pub v: TensorMap,
    /// Sizes, o and lse; q, k and v are unused.
    pub forward: ForwardParams,
    /// Device address of the scales of q, `f32[batch, heads, seqlen_q]`; 0 if q is of 16 bits, which the kernel rounds.
    pub q_scales: u64,
    /// Device address of the scales of blocks of 128 keys, `f32[batch, kv_heads, blocks]`.
    pub key_scales: u64,
    /// Device address of the columns of v, `f32[batch, kv_heads, rows, 2]`: the scale, and the mean that is taken out of v. They lie like
    /// [rows of v](RoundValuesParams::rounded).
    pub columns: u64,
    /// Device address of whether a block of 128 keys has values that are not finite, 1 or 0, `u32[batch, kv_heads, blocks]`.
    pub wrong_blocks: u64,
    /// Device address of which values these are, `u32[batch, kv_heads, blocks, dim_v, 4]`, of blocks that have some:
    /// [bits](crate::layout::fp8::wrong_bits) of each column.
    pub wrong_values: u64,
    /// A counter: see [`Sm90Params::counter`](super::Sm90Params::counter).
    pub counter: u64,
    /// Tiles.
    pub tiles: u32,
    /// Blocks of 128 keys of a head.
    pub blocks: u32,
    /// Columns of o, where [`Switch::F32Output`](super::Switch::F32Output) is on. Then strides count two elements of 16 bits for one,
    /// and [`o_aligned`](ForwardParams::o_aligned) says that fours of columns lie at multiples of 16 bytes, none beyond a row.
    pub o_columns: u32,
    /// Of q of 16 bits, [what it is rounded below](RoundRowsParams::most_log2).
    pub q_most_log2: i32,
    /// Of q of 16 bits, 1 if numbers change their sign, else 0.
    pub negates_q: u32,
    /// Zero: rounds the size up to a multiple of 8 bytes.
    pub padding: u32,
}
