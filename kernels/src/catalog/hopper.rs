//! The tiles of the main loop on Hopper.

use super::kind::{Loop, MaskKind, Rows};
use super::roles::{ROWS, Roles, of_roles};
use super::tile::{Tile, Tiles};
use crate::layout::sm90::Sm90Memory;

pub(super) const fn tables(rows: Rows, mask: MaskKind) -> &'static [Tiles] {
    match (rows, mask) {
        (Rows::Group, _) => &[GROUP],
        (Rows::Head, MaskKind::Options) => &[OPTIONS, HEAD],
        (Rows::Head, _) => &[HEAD],
    }
}

/// A tile whose O is shared by two blocks: they have half of its columns each, and both compute the scores.
const fn halved(keys: u32) -> Tile {
    Tile {
        team: 2,
        ..of_roles(2, keys, 1)
    }
}

/// O takes `dim / 2` registers, S `keys / 2`, and P half as many. Above 256 O does not fit.
///
/// Losers, on an H200 (`docs/tuning.md`): 32: keys 128, -10 %. 96: keys 64, -3 %; under the causal mask +8 % at 1024
/// queries, -4 % at 4096. 128: two warpgroups and keys 128, -3 to -18 %; keys 80, -2 to -10 %. 192: keys 64, -1
/// to -3 %. 192, 256: a third slot of Q, level. 256: keys 80, -1 to -7 %.
const HEAD: Tiles = &[
    (32, of_roles(4, 64, 8)),
    (64, of_roles(4, 64, 4)),
    (96, of_roles(3, 96, 4)),
    (128, of_roles(3, 64, 4)),
    (192, of_roles(2, 96, 2)),
    (256, of_roles(2, 64, 2)),
    (384, halved(96)),
    (512, halved(64)),
];

/// Options take registers.
const OPTIONS: Tiles = &[(64, of_roles(3, 96, 4)), (96, of_roles(3, 64, 4))];

/// Rows of a group. Device memory is to bound them, so bytes on their way count: 128 to 160 KB of K and V. At 64 two sides
/// of a block share rows.
///
/// Losers, on an H200 (`docs/tuning.md`): 128: keys 64, -2 to -10 %; keys 96, 0 to -5 %; keys 128 in two stages, -4 to
/// -15 %.
const GROUP: Tiles = &[
    (
        64,
        Tile {
            q_rows: 2 * ROWS,
            ..of_roles(4, 64, 4)
        },
    ),
    (128, of_roles(2, 80, 4)),
    (256, of_roles(2, 64, 2)),
];

pub(super) fn memory(tile: &Tile, dim: u32) -> Sm90Memory {
    let q_rows = Roles::new(Loop::Hopper, tile).q_slots * ROWS;
    let sizes = [q_rows, tile.keys, dim, dim / tile.team];
    Sm90Memory::new(0, sizes, tile.stages)
}

/// Bytes of all sides' memory, and of what they tell each other.
pub(super) fn shared_bytes(tile: &Tile, dim: u32) -> u32 {
    let memory = memory(tile, dim);
    match Roles::new(Loop::Hopper, tile).sides {
        1 => memory.bytes(),
        sides => {
            let exchanged = tile.q_rows / ROWS * Sm90Memory::exchange_bytes(dim);
            sides * memory.side_bytes() + exchanged
        }
    }
}
