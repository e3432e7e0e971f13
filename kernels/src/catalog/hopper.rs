//! A query tile for each query head, on Hopper: the tiles.

use super::Tile;
use crate::layout::sm90::Sm90Memory;

/// Rows of a warpgroup of consumers.
pub(super) const ROWS: u32 = 64;

/// How the warpgroups of a tile's block share its registers and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roles {
    /// Warpgroups that consume; one more produces.
    pub consumers: u32,
    /// Slots for a warpgroup's Q: two for each where there is room.
    pub q_slots: u32,
    /// Registers of a producer's thread.
    pub given: u32,
    /// Registers of a consumer's thread.
    pub taken: u32,
}

/// Head dims of the Hopper kernels, ascending.
pub(super) const DIMS: &[u32] = &[32, 64, 96, 128, 192, 256, 384, 512];

/// The tile for a head dim. O takes `dim / 2` registers, S `keys / 2`, and P half as many. Above 256 O does not fit:
/// two blocks have half of its columns each, and both compute the scores.
///
/// Losers, on an H200 (`docs/tuning.md`): 32: keys 128, -10 %. 96: keys 64, -3 %; under the causal mask +8 % at 1024
/// queries, -4 % at 4096. 128: two warpgroups and keys 128, -3 to -18 %; keys 80, -2 to -10 %. 192: keys 64, -1
/// to -3 %. 192, 256: a third slot of Q, level. 256: keys 80, -1 to -7 %.
pub(super) fn tile(dim: u32) -> Tile {
    let (consumers, keys, stages) = match dim {
        32 => (4, 64, 8),
        64 => (4, 64, 4),
        96 => (3, 96, 4),
        128 => (3, 64, 4),
        192 => (2, 96, 2),
        256 => (2, 64, 2),
        384 => (2, 96, 1),
        512 => (2, 64, 1),
        _ => panic!("no tile for this head dim"),
    };
    Tile {
        team: if dim > 256 { 2 } else { 1 },
        ..of_roles(consumers, keys, stages)
    }
}

/// The tile of a kernel with options, which take registers.
pub(super) fn optional_tile(dim: u32) -> Tile {
    match dim {
        64 => of_roles(3, 96, 4),
        96 => of_roles(3, 64, 4),
        _ => tile(dim),
    }
}

/// Head dims of [`packed_tile`], ascending.
pub(super) const PACKED_DIMS: &[u32] = &[64, 128, 256];

/// The tile of rows of all heads that share keys. Device memory is to bound it, so bytes on their way count: 128 to 160
/// KB of K and V.
///
/// Losers, on an H200 (`docs/tuning.md`): 128: keys 64, -2 to -10 %; keys 96, 0 to -5 %; keys 128 in two stages, -4 to
/// -15 %.
pub(super) fn packed_tile(dim: u32) -> Tile {
    match dim {
        64 => Tile {
            q_rows: 2 * ROWS,
            ..of_roles(4, 64, 4)
        },
        128 => of_roles(2, 80, 4),
        256 => of_roles(2, 64, 2),
        _ => panic!("no tile for this head dim"),
    }
}

/// A tile of this many warpgroups that consume.
fn of_roles(consumers: u32, keys: u32, stages: u32) -> Tile {
    Tile {
        q_rows: ROWS * consumers,
        keys,
        warps: 4 * (consumers + 1),
        team: 1,
        stages,
        v_slices: 1,
        q_slices: 0,
        blocks_per_sm: 1,
    }
}

/// Sides of a block: groups of warpgroups that have the same rows, and every other block of keys.
pub(super) fn sides(tile: &Tile) -> u32 {
    (tile.warps / 4 - 1) / (tile.q_rows / ROWS)
}

impl Roles {
    /// The roles in a tile. Together they have no more registers than the launch gave all warpgroups alike.
    #[must_use]
    pub fn new(tile: &Tile) -> Self {
        let consumers = tile.warps / 4 - 1;
        let (q_slots, given, taken) = match consumers {
            4 if sides(tile) == 2 => (2, 24, 112),
            4 => (8, 24, 112),
            3 => (6, 32, 160),
            _ => (2, 40, 232),
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
pub(super) fn memory(tile: &Tile, dim: u32) -> Sm90Memory {
    let q_rows = Roles::new(tile).q_slots * ROWS;
    let sizes = [q_rows, tile.keys, dim, dim / tile.team];
    Sm90Memory::new(0, sizes, tile.stages)
}

/// Bytes of all sides' memory, and of what they tell each other.
pub(super) fn shared_bytes(tile: &Tile, dim: u32) -> u32 {
    let memory = memory(tile, dim);
    match sides(tile) {
        1 => memory.bytes(),
        sides => {
            let exchanged = tile.q_rows / ROWS * Sm90Memory::exchange_bytes(dim);
            sides * memory.side_bytes() + exchanged
        }
    }
}

/// Products of a block behind hidden ones, and of the block before them.
pub(super) fn products_of_masks(tile: &Tile, dim: u32) -> u32 {
    dim / 16 + tile.keys / 16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::class::Class;

    /// Every tile, with its head dim.
    fn tiles() -> impl Iterator<Item = (u32, Tile)> {
        let plain = DIMS.iter().map(|&dim| (dim, tile(dim)));
        plain.chain(PACKED_DIMS.iter().map(|&dim| (dim, packed_tile(dim))))
    }

    /// The registers of a multiprocessor, in the granularity of an allocation.
    #[test]
    fn registers_suffice() {
        for (dim, tile) in tiles() {
            let roles = Roles::new(&tile);
            let at_launch = (65536 / (32 * tile.warps)).min(255) / 8 * 8;
            let needed = roles.given + roles.consumers * roles.taken;
            assert!(needed <= at_launch * (roles.consumers + 1), "{dim}");
            assert!(roles.given < at_launch && at_launch < roles.taken, "{dim}");
        }
    }

    #[test]
    fn tiles_fit_their_class() {
        for (dim, tile) in tiles() {
            let bytes = shared_bytes(&tile, dim);
            assert!(bytes <= Class::Sm90.shared_memory().block, "{dim}: {bytes}");
        }
    }
}
