//! The tiles of few queries on many keys.

use super::class::Class;
use super::kind::MaskKind;
use super::tile::{Tile, Tiles};

pub(super) fn tables(mask: MaskKind, class: Class) -> &'static [Tiles] {
    match (class, mask.has_options()) {
        (Class::Sm80, false) => &[SM80, SM90],
        (Class::Sm80, true) => &[SM80, OPTIONS, SM90],
        (Class::Sm86, _) => &[SM86, SM90],
        (Class::Sm90 | Class::Sm100, false) => &[SM90],
        (Class::Sm90 | Class::Sm100, true) => &[OPTIONS, SM90],
    }
}

/// A tile of warps with 16 rows each: its keys, stages, slices of Q in registers, and blocks on a multiprocessor.
const fn of_warps(warps: u32, [keys, stages, q_slices, blocks_per_sm]: [u32; 4]) -> Tile {
    Tile {
        q_slices,
        blocks_per_sm,
        ..Tile::new(16 * warps, keys, warps, stages)
    }
}

/// Bytes on their way count, and blocks that hide the latency of each other's steps, in which often one
/// warp alone has rows. All of a block's buffers but one are being filled: 72 to 144 KB for the blocks
/// that fit an H100's multiprocessor.
///
/// With fewer registers these would spill: 64 with 64 keys or all of Q in registers, 128 with Q in
/// registers, 192 with three blocks; on `sm_100` 192 with all of Q in registers.
///
/// Losers, on an H200 (`docs/tuning.md`): 64: 64 keys in three blocks, -7 to -20 % where blocks nearly
/// fill the GPU, level elsewhere.
const SM90: Tiles = &[
    (32, of_warps(4, [64, 4, 2, 4])),
    (64, of_warps(4, [48, 4, 2, 4])),
    (96, of_warps(4, [32, 4, 6, 3])),
    (128, of_warps(4, [32, 3, 0, 3])),
    (192, of_warps(4, [32, 3, 8, 2])),
    (256, of_warps(4, [16, 4, 0, 2])),
];

/// Tiles with options, where spans and rows' places take more registers than four blocks leave.
const OPTIONS: Tiles = &[(64, of_warps(4, [48, 4, 2, 3]))];

/// A cache of e4m3, on Hopper. Numbers become elements of 16 bits by half the instructions of a step, so more blocks have fewer
/// warps: those with rows lie on more of a multiprocessor's schedulers. Four blocks leave a thread 255 registers, with more of them a
/// scheduler has three warps. 128 to 144 KB are on their way.
///
/// A row of a shared tile has at least four chunks, which is 64 numbers.
pub(super) const E4M3: Tiles = &[
    (64, of_warps(2, [64, 5, 4, 4])),
    (128, of_warps(2, [48, 4, 0, 4])),
    (256, of_warps(2, [16, 5, 0, 4])),
];

/// An A100's multiprocessor gets half the bytes a second of an H200's, so two blocks are enough: the
/// tiles of `sm_90` up to D = 128. Above 128 less is on its way: 72 and 64 KB.
const SM80: Tiles = &[
    (192, of_warps(4, [16, 4, 12, 2])),
    (256, of_warps(4, [16, 3, 0, 2])),
];

/// A multiprocessor gets about 10 bytes a nanosecond, a third of an H200's: 24 KB on their way are
/// enough. Two blocks of 49 KB or less; at D = 256 the 32 KB of Q leave room for one block of `sm_90`'s tile.
const SM86: Tiles = &[
    (64, of_warps(4, [32, 4, 4, 2])),
    (96, of_warps(4, [32, 3, 6, 2])),
    (128, of_warps(4, [16, 4, 8, 2])),
    (192, of_warps(4, [16, 2, 12, 2])),
];
