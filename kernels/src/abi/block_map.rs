//! The argument block of the kernel that finds which blocks a boolean mask shows, and where it writes them.

use super::PairsRef;

/// The map of a boolean mask in device memory: for each tile of queries the blocks of keys in which the mask shows a pair, or
/// for each tile of keys the blocks of queries.
///
/// Each tile of each head that the mask tells apart has `blocks + 1` ranks, `u32`, and behind the next multiple of 8 bytes
/// `blocks` pairs: rank `b` counts the shown blocks before block `b`, and a pair has the number of a shown block, ascending, and two
/// bits for each part of the tile: the [`Coverage`] of its pairs that the mask shows.
#[repr(C)]
#[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::NoUninit))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockMapRef {
    /// Device address of head 0's first tile.
    pub address: u64,
    /// Tiles from a batch entry to the next one; 0 where the mask repeats.
    pub batch_tiles: u64,
    /// Tiles from a head to the next one; 0 where the mask repeats. In the forward pass heads are query heads, in the
    /// backward pass key/value heads.
    pub head_tiles: u64,
}

impl BlockMapRef {
    /// Parts of a tile, at most.
    pub const PARTS: u32 = 4;

    /// Bytes from a tile's ranks to its shown blocks, of so many blocks in all.
    pub const fn rank_bytes(blocks: u32) -> u64 {
        8 * (blocks as u64 + 2).div_euclid(2)
    }

    /// Bytes of a tile, with so many blocks.
    pub const fn tile_bytes(blocks: u32) -> u64 {
        Self::rank_bytes(blocks) + 8 * blocks as u64
    }
}

/// How many of the pairs that exist a mask shows, in two bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// None.
    None,
    /// Some; the mask says which.
    Some,
    /// All.
    All,
}

impl Coverage {
    /// The coverage where the mask shows some pair, and hides some.
    #[inline(always)]
    pub const fn of([shown, hidden]: [bool; 2]) -> Self {
        match (shown, hidden) {
            (false, _) => Coverage::None,
            (true, true) => Coverage::Some,
            (true, false) => Coverage::All,
        }
    }

    /// The coverage in the lowest two bits.
    #[inline(always)]
    pub const fn of_bits(bits: u32) -> Self {
        match bits & 3 {
            0 => Coverage::None,
            1 => Coverage::Some,
            _ => Coverage::All,
        }
    }
}

/// Arguments of the kernel that makes a [map](BlockMapRef): a block of the grid for each tile.
#[repr(C)]
#[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::NoUninit))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockMapParams {
    /// The mask.
    pub mask: PairsRef,
    /// Device address of the map.
    pub map: u64,
    /// 1 if elements of the mask are words of 32 keys, 0 if they are bytes.
    pub bits: u32,
    /// 1 if tiles are of keys and blocks of queries, 0 if tiles are of queries and blocks of keys.
    pub transposed: u32,
    /// Heads of a batch entry that the map tells apart.
    pub heads: u32,
    /// Heads of the mask that such a head stands for, which see what any of them sees.
    pub group: u32,
    /// Tiles of a head.
    pub tiles: u32,
    /// Rows of a tile.
    pub tile_rows: u32,
    /// The first row of the first tile, which may lie before row 0.
    pub first_row: i32,
    /// Blocks of a head.
    pub blocks: u32,
    /// Rows of a block.
    pub block_rows: u32,
    /// Queries of a head that the mask tells apart.
    pub queries: u32,
    /// Keys of a head.
    pub keys: u32,
    /// Rows of a part of a tile, at most [`BlockMapRef::PARTS`] parts.
    pub part_rows: u32,
}
