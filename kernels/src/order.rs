//! In which order the blocks of a grid take the query tiles.
//!
//! Blocks start in the order of their index, as many at a time as the GPU holds. Under the causal
//! mask the last tile of a head has the most keys, and one that starts last leaves the GPU idle
//! beside it; so the heaviest tiles come first. Heads go in waves, so that the keys and values that
//! the running blocks share still fit the L2 cache: in a wave, all heads' last tiles, then all
//! heads' last but one.

/// The query tile of a block, and its head counted over all batches.
///
/// Blocks `0..heads * q_tiles` take every pair once; `wave_heads` is at least 1.
#[must_use]
#[inline(always)]
pub const fn tile_of_block(block: u32, heads: u32, q_tiles: u32, wave_heads: u32) -> (u32, u32) {
    let wave = block / (wave_heads * q_tiles);
    let first_head = wave * wave_heads;
    let in_wave = block - first_head * q_tiles;
    // The last wave may have fewer heads.
    let left = heads - first_head;
    let wave_heads = if left < wave_heads { left } else { wave_heads };
    let tile = q_tiles - 1 - in_wave / wave_heads;
    (tile, first_head + in_wave % wave_heads)
}

#[cfg(test)]
mod tests {
    use super::tile_of_block;
    use proptest::prelude::*;
    extern crate std;
    use std::collections::HashSet;

    proptest! {
        #[test]
        fn every_tile_of_every_head_has_one_block(
            heads in 1u32..20, q_tiles in 1u32..20, wave_heads in 1u32..25,
        ) {
            let tiles: HashSet<_> = (0..heads * q_tiles)
                .map(|block| tile_of_block(block, heads, q_tiles, wave_heads.min(heads)))
                .collect();
            prop_assert_eq!(tiles.len() as u32, heads * q_tiles);
            prop_assert!(tiles.iter().all(|&(tile, head)| tile < q_tiles && head < heads));
        }

        #[test]
        fn a_wave_takes_heavier_tiles_first(heads in 1u32..20, q_tiles in 1u32..20) {
            let tiles: std::vec::Vec<_> = (0..heads * q_tiles)
                .map(|block| tile_of_block(block, heads, q_tiles, heads).0)
                .collect();
            prop_assert!(tiles.is_sorted_by(|a, b| a >= b));
        }
    }
}
