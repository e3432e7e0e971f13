//! A query tile for each query head, on Hopper: the tiles, and what the main loop contains.

use super::Tile;
use super::collectives::{Collectives, Parts};
use crate::abi::Sm90Params;
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

/// Scores of the first block, of masked ones and of whole ones; the product of a block before the latter two, and of
/// the last block. By `mma`, scores that do not fit, unless K passes in chunks, and products with infinities that the
/// mask hides.
pub(super) fn collectives(parts: &Parts, causal: bool) -> Collectives {
    let counts = counts(parts, causal);
    if !Sm90Params::stores_by_map(parts.dim) {
        return counts;
    }
    // O, a panel at a time, behind a barrier, and sums of P once more. Q is released at three places: during the next
    // tile, where a tile has no keys, and at the end.
    Collectives {
        stmatrix: parts.ot,
        tensor_store: parts.ot / 4,
        bar: counts.bar + 1,
        shfl: counts.shfl + 4,
        mbarrier_arrive: counts.mbarrier_arrive + 1,
        ..counts
    }
}

/// [`collectives`] where O is stored from registers.
fn counts(parts: &Parts, causal: bool) -> Collectives {
    let (dt, ot, nt, stages) = (parts.dt, parts.ot, parts.kt, parts.tile.stages);
    let memory = memory(&parts.tile, parts.dim);
    let (k, v) = (memory.k_chunks(), memory.v_chunks());
    let causal = u32::from(causal);
    let roles = Roles::new(&parts.tile);
    let again = u32::from(stages > 1);
    // Q, V, and K of the first block and of others.
    let loads = 1 + v + 2 * k;
    Collectives {
        mma: again * 2 * nt + causal * 2 * 4 * ot,
        ldmatrix: again * (1 + nt) + causal * 2 * ot,
        // The block's, and before a negated Q; on V of the first block, and of other masked ones.
        bar: 2 + causal * 2,
        // Whether scores fit; as the barriers on V.
        vote: 1 + causal * 2,
        // The numbers of the warpgroup, the side and the tile; maxima at three places and sums, in two rounds for two rows; O
        // transposed.
        shfl: 3 + 4 * 4 + 4 * ot,
        wgmma: 3 * dt + 3 * nt,
        wgmma_fence: 6,
        wgmma_commit: 3 * (k + v),
        wgmma_wait: 3 * (k + v),
        setmaxnreg: 2,
        tensor_load: loads,
        mbarrier_init: 2 * roles.q_slots + 2 * memory.chunks(),
        // Loads, and no more tiles; a block passed by; K and V released three times, Q twice.
        mbarrier_arrive: loads + 1 + 4 * (k + v) + 2,
        // The compiler writes the consumers' wait for Q twice, before the loop over tiles and at its end.
        mbarrier_wait: loads + 1 + 2 + 4 * (k + v) + causal * 2 * v,
        ..Collectives::NONE
    }
}

/// Products of a block behind hidden ones, and of the block before them.
pub(super) fn products_of_masks(parts: &Parts) -> u32 {
    parts.dt + parts.kt
}

/// [`collectives`] of kernels with options, all of the causal code. Blocks are passed by at both edges and, where a boolean mask
/// hides them, between. Behind these is a masked block without a product before it, and before them a product without scores.
/// Scores of these masked blocks, of the first, of the whole and of recomputed ones may gain a bias.
pub(super) fn optional_collectives(parts: &Parts) -> Collectives {
    let causal = collectives(parts, true);
    let memory = memory(&parts.tile, parts.dim);
    let (ot, k, v) = (parts.ot, memory.k_chunks(), memory.v_chunks());
    let biases = 4 + u32::from(parts.tile.stages > 1);
    Collectives {
        mma: causal.mma + 4 * ot,
        ldmatrix: causal.ldmatrix + ot,
        bar: causal.bar + 1,
        vote: causal.vote + 1,
        shfl: causal.shfl + 4 + biases * 4 * 2 * parts.kt.div_ceil(2),
        wgmma: causal.wgmma + products_of_masks(parts),
        wgmma_fence: causal.wgmma_fence + 2,
        wgmma_commit: causal.wgmma_commit + k + v,
        wgmma_wait: causal.wgmma_wait + k + v,
        mbarrier_arrive: causal.mbarrier_arrive + 3 * (k + v),
        mbarrier_wait: causal.mbarrier_wait + 3 * (k + v) + v,
        ..causal
    }
}

/// [`counts`] of packed kernels, all of the causal code; but consumers copy Q, before a barrier, and two sides exchange O
/// between two more.
pub(super) fn packed_collectives(parts: &Parts) -> Collectives {
    let (causal, sides) = (counts(parts, true), sides(&parts.tile));
    Collectives {
        tensor_load: causal.tensor_load - 1,
        bar: causal.bar + 1 + 2 * (sides - 1),
        mbarrier_init: causal.mbarrier_init * sides,
        ..causal
    }
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
