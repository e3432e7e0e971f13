//! The tiles of the main loop for all devices.

use super::class::Class;
use super::kind::{MaskKind, Rows};
use super::tile::{Tile, Tiles};

pub(super) fn tables(rows: Rows, mask: MaskKind, class: Class) -> &'static [Tiles] {
    match (rows, mask, class) {
        (Rows::Group, _, Class::Sm80 | Class::Sm100) => &[GROUP],
        (Rows::Group, _, Class::Sm86) => &[GROUP_SM86, SM86, SM90],
        (Rows::Group, _, Class::Sm90) => &[GROUP_SM90, GROUP],
        // One for all classes.
        (_, MaskKind::Options, _) => &[OPTIONS, SM86, SM90],
        (_, MaskKind::Full, Class::Sm80) => &[SM80, FULL, SM90],
        (_, MaskKind::Full, Class::Sm90) => &[FULL, SM90],
        (_, _, Class::Sm80) => &[SM80, SM90],
        (_, _, Class::Sm86) => &[SM86, SM90],
        (_, _, Class::Sm90) => &[SM90],
        (_, _, Class::Sm100) => &[SM100, SM90],
    }
}

/// A tile whose warps have rows of their own: eight warps on a multiprocessor, K and V double-buffered.
const fn own(q_rows: u32, keys: u32, warps: u32, q_slices: u32) -> Tile {
    Tile {
        q_slices,
        blocks_per_sm: 8 / warps,
        ..Tile::new(q_rows, keys, warps, 2)
    }
}

/// A tile whose warps share rows, two by two. K and V have a buffer each.
const fn shared(q_slices: u32) -> Tile {
    Tile {
        team: 2,
        stages: 1,
        ..own(64, 64, 4, q_slices)
    }
}

/// Two m16 tiles a warp (`q_rows * team / warps = 32`) let every K and V fragment feed two products. O
/// then takes `dim / team` registers a lane, at most 128.
///
/// Losers, on an H200 (`docs/tuning.md`): 64: keys 32 in three blocks, -1 %; two slices of Q in registers,
/// -10 %; three, level, but spills under the mask. 128: keys 64, +6 %, but spills; no slices or four
/// without a mask, level, but spills. 256: teams of one, -9 to -15 %.
const SM90: Tiles = &[
    (32, own(128, 64, 4, 2)),
    (64, own(128, 64, 4, 4)),
    (96, own(128, 32, 4, 0)),
    (128, own(128, 32, 4, 0)),
    (192, own(64, 32, 4, 12)),
    (256, shared(3)),
];

/// Without a mask registers are left for a part of Q.
const FULL: Tiles = &[(128, own(128, 32, 4, 2))];

/// Two blocks of the tiles of `sm_90` fit up to D = 192 (2 * 73 of 164 KB). At 256 one block of 96 KB
/// fits: eight warps, each with the work of a warp on `sm_90`.
///
/// Losers, by reasoning: 256: 64 x 16 in two blocks reads Q twice as often for each key, and shared memory bounds these tiles.
const SM80: Tiles = &[(256, own(128, 32, 8, 7))];

/// Two blocks share 100 KB if each has 49 or less: the tiles of `sm_90` up to D = 96, of 48 KB. Of these 64 and 96 spill on
/// `sm_120`: they have three quarters of the keys, or half the rows. At 128 and 192 half the tile has 48 KB again; at 256 one
/// block of eight warps has 96. Barriers and `ldmatrix` cost less here than a warp that waits alone, since tensor cores are a
/// quarter to a half as fast as an A100's.
///
/// Losers, by reasoning: 64: the tile of `sm_90` with two slices of Q costs 10 % on an H200. 128: one block of `sm_90`'s tile;
/// 128 x 16, two blocks, rescales O twice as often, and 64 rows fill up better. 256: `sm_90`'s causal tile, one block.
const SM86: Tiles = &[
    (64, own(128, 48, 4, 4)),
    (96, own(64, 32, 4, 6)),
    (128, own(64, 32, 4, 8)),
    (192, own(64, 16, 4, 12)),
    (256, own(128, 16, 8, 0)),
];

/// The tiles of `sm_90` where these do not spill. At D = 128 half the keys, with registers to keep half
/// of Q in. At 256 the tile of `sm_86`.
///
/// Losers, by reasoning: 128: 64 x 32 with Q in registers reads a third more for each key, and
/// shared memory bounds these tiles.
const SM100: Tiles = &[(128, own(128, 16, 4, 4)), (256, own(128, 16, 8, 0))];

/// With options, one table for all classes. Windows and options take registers, so that a warp has one
/// 16-row tile: with two, 64, 128 and 192 spill.
const OPTIONS: Tiles = &[(64, own(64, 64, 4, 4)), (192, own(64, 16, 4, 6))];

/// Rows of a group: the causal kernels' tiles where these do not spill. Which keys a row sees depends on its head too, so
/// no register serves all rows of a lane. Fewer slices of Q in registers; half the keys at D = 128 and 256, as on `sm_100`.
const GROUP: Tiles = &[
    (32, own(128, 64, 4, 2)),
    (64, own(128, 64, 4, 3)),
    (96, own(128, 32, 4, 0)),
    (128, own(128, 16, 4, 2)),
    (192, own(64, 32, 4, 8)),
    (256, own(128, 16, 8, 0)),
];

/// All keys, which do not spill here.
const GROUP_SM90: Tiles = &[(128, own(128, 32, 4, 0)), (256, shared(1))];

/// Half the rows, since 8 warps would spill on `sm_120`.
const GROUP_SM86: Tiles = &[(256, Tile::new(64, 16, 4, 2))];
