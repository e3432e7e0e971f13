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

/// O takes `dim / 2` registers, S 32, and P 16. At 64 there is room for four warpgroups, which hide more of what each waits for; at 128
/// for Q.
pub(super) const SM90: Tiles = &[
    (64, own(4, 128, 8, 0)),
    (128, own(3, 128, 4, 128 / K)),
    (256, own(2, 128, 3, 0)),
];

/// Where outer sums take a part of the shared memory. At 128 they cost a stage, and Q its second slots: their upper halves in half the
/// memory were 2 to 10 % slower. At 256 there is room for no more, with steps of 64 keys.
pub(super) const TWO_LEVELS: Tiles = &[
    (64, own(4, 128, 8, 0)),
    (128, own(3, 128, 3, 128 / K)),
    (256, own(2, 64, 4, 0)),
];

/// The type of the outer sums of O, and the bytes of one; of one level, where there are none.
pub(super) const fn outer(levels: Levels, dim: u32) -> (&'static str, u32) {
    match (levels, dim) {
        (Levels::One, _) => ("OneLevel", 0),
        (Levels::Two, 256) => ("UpperHalves", 2),
        (Levels::Two, _) => ("Singles", 4),
    }
}

pub(super) fn memory(levels: Levels, tile: &Tile, dim: u32) -> Fp8Memory {
    let slots = Roles::new(Loop::Fp8(levels), tile).q_slots;
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
