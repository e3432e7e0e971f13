//! Where the sums of dq lie: 16x16 tiles, each in the order of the accumulators that are added to it.
//!
//! A warp adds number `i` of all its lanes with one instruction, to 128 consecutive bytes. Row-major sums would spread
//! them over eight rows.

/// Rows and columns of a tile.
pub const TILE: u32 = 16;

/// Bytes of a tile.
pub const BYTES: u32 = TILE * TILE * 4;

/// Place, in its tile of 256 numbers, of element `i` (0..8) of a lane's
/// [accumulator](super::fragment::accumulator).
#[inline(always)]
pub const fn place(lane: u32, i: u32) -> u32 {
    32 * i + lane
}

/// Number of the tile of row `16 * row16` and column `16 * column16`, among tiles of `columns` columns in all.
#[inline(always)]
pub const fn tile(row16: u64, column16: u32, columns: u32) -> u64 {
    row16 * (columns / TILE) as u64 + column16 as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::collections::HashSet;

    #[test]
    fn every_element_has_its_place() {
        let places = (0..32).flat_map(|lane| (0..8).map(move |i| place(lane, i)));
        let places: HashSet<_> = places.collect();
        assert!(places.len() == 256 && places.into_iter().all(|place| place < 256));
        let tiles = (0..4).flat_map(|row16| (0..6).map(move |column16| tile(row16, column16, 96)));
        assert!(tiles.eq(0..24));
    }
}
