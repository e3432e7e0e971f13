//! Head dims above 256: the tiles of each class.

use super::Tile;
use super::class::Class;
use crate::layout::wide::WideMemory;

/// A warp has 32 rows, 32 keys of a step, and 96 or 128 of O's columns: as many warps form a team as hold O.
///
/// `sm_90`: V whole up to 512 (220 KB), above that in slices of 32 keys (212 KB). `sm_80`: 32 keys, with a slice
/// or two ahead (84 to 148 KB). `sm_86`: above 512 slices of 16 keys, so that two buffers fit (92 KB).
///
/// Losers, on an H200: V in slices at 512, -20 %; slices of 64 keys with none ahead at 1024, -15 %.
pub(super) fn tile(class: Class, dim: u32) -> Tile {
    let team = if dim <= 512 { 4 } else { 8 };
    let (stages, v_slices) = match (class, dim) {
        (Class::Sm90 | Class::Sm100, 384 | 512) => (3, 1),
        (Class::Sm90 | Class::Sm100, 768 | 1024) => (3, 8),
        (Class::Sm80 | Class::Sm86, 384) => (3, 4),
        (Class::Sm80 | Class::Sm86, 512) => (2, 4),
        (Class::Sm80, 768 | 1024) => (2, 8),
        (Class::Sm86, 768 | 1024) => (2, 16),
        _ => panic!("no tile for this head dim"),
    };
    Tile {
        q_rows: 256 / team,
        keys: 32 * team,
        warps: 8,
        team,
        stages,
        v_slices,
        q_slices: 0,
        blocks_per_sm: 1,
    }
}

/// Shared memory of a tile's block.
pub(super) fn memory(tile: &Tile, dim: u32) -> WideMemory {
    let keys = [tile.keys, tile.keys / tile.v_slices];
    WideMemory::new(tile.q_rows, keys, tile.team, tile.stages, dim)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::WIDE_DIMS;
    use crate::layout::wide::WINDOW;

    /// Every class has a tile that fits, with a slice on its way while another is in use.
    #[test]
    fn tiles_fit_their_class() {
        for &class in Class::ALL {
            for &dim in WIDE_DIMS {
                let tile = tile(class, dim);
                assert!(memory(&tile, dim).bytes <= class.shared_memory().block);
                assert!(tile.stages >= 2 && tile.keys.is_multiple_of(16 * tile.v_slices));
                // O's columns are in whole slices of 16, at most 8 a warp.
                assert!(dim.is_multiple_of(16 * tile.team) && dim <= 128 * tile.team);
                // The next V is loaded at most so many windows ahead, when the last is done with.
                assert!(tile.stages - 1 <= 256 / WINDOW);
            }
        }
    }
}
