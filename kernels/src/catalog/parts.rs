//! What the numbers of a tile are in 16-wide slices.

use super::Tile;

/// Slices of a main loop.
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    /// 16-row tiles of a warp.
    pub mt: u32,
    /// 16-wide slices of the head dim.
    pub dt: u32,
    /// Slices of the head dim that a warp has of O.
    pub ot: u32,
    /// 16-wide slices of a key block.
    pub kt: u32,
    /// Slices of a key block that a warp computes scores of.
    pub nt: u32,
}

impl Parts {
    /// The slices of a kernel with this tile and head dim.
    pub fn new(tile: Tile, dim: u32) -> Self {
        Parts {
            mt: tile.q_rows * tile.team / tile.warps / 16,
            dt: dim / 16,
            ot: dim / 16 / tile.team,
            kt: tile.keys / 16,
            nt: tile.keys / 16 / tile.team,
        }
    }
}
