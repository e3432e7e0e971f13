//! How the warpgroups of a Hopper kernel's block share its registers and its time.

use super::kind::Loop;
use super::tile::Tile;

/// Rows of a warpgroup of consumers.
pub(super) const ROWS: u32 = 64;

/// A tile of this many warpgroups that consume.
pub(super) const fn of_roles(consumers: u32, keys: u32, stages: u32) -> Tile {
    Tile::new(ROWS * consumers, keys, 4 * (consumers + 1), stages)
}

/// What the warpgroups of a tile's block do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Roles {
    /// Warpgroups that consume; one more produces.
    pub consumers: u32,
    /// Sides of a block: groups of warpgroups that have the same rows, and every other block of keys.
    pub sides: u32,
    /// Slots for a warpgroup's Q: two for each where there is room.
    pub q_slots: u32,
    /// Registers of a producer's thread.
    pub given: u32,
    /// Registers of a consumer's thread.
    pub taken: u32,
}

impl Roles {
    /// The roles in a tile. Together they have no more registers than the launch gave all warpgroups alike.
    pub fn new(main_loop: Loop, tile: &Tile) -> Self {
        let consumers = tile.warps / 4 - 1;
        let sides = consumers / (tile.q_rows / ROWS);
        let (q_slots, given, taken) = match (main_loop, consumers, sides, tile.stages) {
            (Loop::Latent, ..) => (1, 24, 240),
            (_, 4, 2, _) => (2, 24, 112),
            (_, 4, ..) => (8, 24, 112),
            (_, 3, _, 3) => (3, 32, 160),
            (_, 3, ..) => (6, 32, 160),
            (Loop::Hopper, ..) => (2, 40, 232),
            _ => (2, 24, 240),
        };
        Roles {
            consumers,
            sides,
            q_slots,
            given,
            taken,
        }
    }
}
