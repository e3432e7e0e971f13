//! The tiles of head dims above 256.

use super::class::Class;
use super::tile::{Tile, Tiles};

pub(super) const fn tables(class: Class) -> &'static [Tiles] {
    match class {
        Class::Sm80 => &[SM80],
        Class::Sm86 => &[SM86, SM80],
        Class::Sm90 | Class::Sm100 => &[SM90],
    }
}

/// A warp has 32 rows, 32 keys of a step, and 96 or 128 of O's columns: as many warps form a team as hold O.
const fn shared(team: u32, stages: u32, v_slices: u32) -> Tile {
    Tile {
        team,
        v_slices,
        ..Tile::new(256 / team, 32 * team, 8, stages)
    }
}

/// V whole up to 512 (220 KB), above that in slices of 32 keys (212 KB).
///
/// Losers, on an H200: V in slices at 512, -20 %; slices of 64 keys with none ahead at 1024, -15 %.
const SM90: Tiles = &[
    (384, shared(4, 3, 1)),
    (512, shared(4, 3, 1)),
    (768, shared(8, 3, 8)),
    (1024, shared(8, 3, 8)),
];

/// Slices of 32 keys, with one or two ahead (84 to 148 KB).
const SM80: Tiles = &[
    (384, shared(4, 3, 4)),
    (512, shared(4, 2, 4)),
    (768, shared(8, 2, 8)),
    (1024, shared(8, 2, 8)),
];

/// Slices of 16 keys, so that two buffers fit (92 KB).
const SM86: Tiles = &[(768, shared(8, 2, 16)), (1024, shared(8, 2, 16))];
