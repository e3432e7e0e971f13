//! The tiles of the kernels for FP8.

use super::kind::Levels;
use super::tile::{Tile, Tiles};
use crate::layout::element::K;
use crate::layout::fp8::Fp8Memory;

/// Rows of a warpgroup of consumers.
const ROWS: u32 = 64;

/// A tile of this many warpgroups that consume, by steps of 128 keys.
const fn of_roles(consumers: u32, stages: u32) -> Tile {
    Tile::new(ROWS * consumers, 128, 4 * (consumers + 1), stages)
}

/// O takes `dim / 2` registers, S 32, and P 16. At 64 there is room for four warpgroups, which hide more of what each waits for; at 128
/// for Q.
pub(super) const SM90: Tiles = &[
    (64, of_roles(4, 8)),
    (
        128,
        Tile {
            q_slices: 128 / K,
            ..of_roles(3, 4)
        },
    ),
    (256, of_roles(2, 3)),
];

/// Where outer sums take a part of the shared memory. At 128 they cost a stage, and Q its second slots: their upper halves in half the
/// memory were 2 to 10 % slower. At 256 there is room for no more, with steps of 64 keys.
pub(super) const TWO_LEVELS: Tiles = &[
    (64, of_roles(4, 8)),
    (
        128,
        Tile {
            q_slices: 128 / K,
            ..of_roles(3, 3)
        },
    ),
    (
        256,
        Tile {
            keys: 64,
            ..of_roles(2, 4)
        },
    ),
];

/// The type of the outer sums of O, and the bytes of one; of one level, where there are none.
pub(super) const fn outer(levels: Levels, dim: u32) -> (&'static str, u32) {
    match (levels, dim) {
        (Levels::One, _) => ("OneLevel", 0),
        (Levels::Two, 256) => ("UpperHalves", 2),
        (Levels::Two, _) => ("Singles", 4),
    }
}

/// How the warpgroups of a tile's block share its registers, and slots for their Q.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Roles {
    /// Warpgroups that consume; one more produces.
    pub consumers: u32,
    /// Slots for a warpgroup's Q: two for each where there is room.
    pub q_slots: u32,
    /// Registers of a producer's thread.
    pub given: u32,
    /// Registers of a consumer's thread.
    pub taken: u32,
}

impl Roles {
    /// The roles in a tile. Together they have no more registers than the launch gave all warpgroups alike.
    pub fn new(tile: &Tile) -> Self {
        let consumers = tile.warps / 4 - 1;
        let (q_slots, given, taken) = match (consumers, tile.stages) {
            (4, _) => (8, 24, 112),
            (3, 4) => (6, 32, 160),
            (3, _) => (3, 32, 160),
            _ => (2, 24, 240),
        };
        Roles {
            consumers,
            q_slots,
            given,
            taken,
        }
    }
}

/// Shared memory of a tile's block.
pub(super) fn memory(levels: Levels, tile: &Tile, dim: u32) -> Fp8Memory {
    let slots = Roles::new(tile).q_slots;
    let (_, outer_bytes) = outer(levels, dim);
    let outer_bytes = tile.q_rows * dim * outer_bytes;
    Fp8Memory::new(0, [slots, tile.keys, dim, tile.stages], outer_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Swizzles begin anew at multiples of 1024.
    #[test]
    fn tiles_begin_where_swizzles_do() {
        for (levels, tiles) in [(Levels::One, SM90), (Levels::Two, TWO_LEVELS)] {
            for (dim, tile) in tiles {
                let memory = memory(levels, tile, *dim);
                for stage in 0..tile.stages {
                    assert!(memory.k(stage).base.is_multiple_of(1024), "{dim}");
                    assert!(memory.v(stage).base.is_multiple_of(1024), "{dim}");
                }
                // What a block of Hopper may have.
                assert!(memory.bytes() <= 227 << 10, "{dim}: {}", memory.bytes());
            }
        }
    }
}
