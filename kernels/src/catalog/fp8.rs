//! The tiles of the kernels for FP8.

use super::kind::{Levels, Loop};
use super::roles::{Roles, of_roles};
use super::tile::{Tile, Tiles};
use crate::layout::element::K;
use crate::layout::fp8::Fp8Memory;

/// A tile of this many warpgroups that consume.
const fn own(consumers: u32, keys: u32, stages: u32, q_slices: u32) -> Tile {
    Tile {
        q_slices,
        ..of_roles(consumers, keys, stages)
    }
}

/// O takes `dim / 4` registers, S 32, and P 16. Up to 128 there is room for four warpgroups, which hide more of what each waits for; at 64 for
/// Q, too, 11 % there. At 256 three warpgroups leave room for two stages, 25 % slower than two warpgroups, which have registers for Q: 1 %.
pub(super) const SM90: Tiles = &[
    (64, own(4, 128, 8, 64 / K)),
    (128, own(4, 128, 4, 0)),
    (256, own(2, 128, 3, 256 / K)),
];

/// The type of the outer sums of O, by its slices of 16 columns.
pub(super) const fn outer(levels: Levels, dim: u32) -> &'static str {
    match (levels, dim) {
        (Levels::One, _) => "OneLevel",
        (Levels::Two, 64) => "TwoLevels<4>",
        (Levels::Two, 128) => "TwoLevels<8>",
        (Levels::Two, _) => "TwoLevels<16>",
    }
}

/// Outer sums take as many registers as O.
pub(super) const TWO_LEVELS: Tiles = &[
    (64, own(4, 128, 8, 0)),
    (128, own(3, 128, 4, 128 / K)),
    (256, own(2, 128, 3, 0)),
];

pub(super) fn memory(tile: &Tile, dim: u32) -> Fp8Memory {
    let roles = Roles::new(Loop::Fp8(Levels::One), tile);
    Fp8Memory::new(0, [roles.q_slots, tile.keys, dim, tile.stages])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Swizzles begin anew at multiples of 1024.
    #[test]
    fn tiles_begin_where_swizzles_do() {
        for (dim, tile) in SM90 {
            let memory = memory(tile, *dim);
            for stage in 0..tile.stages {
                assert!(memory.k(stage).base.is_multiple_of(1024), "{dim}");
                assert!(memory.v(stage).base.is_multiple_of(1024), "{dim}");
            }
            // What a block of Hopper may have.
            assert!(memory.bytes() <= 227 << 10, "{dim}: {}", memory.bytes());
        }
    }
}
