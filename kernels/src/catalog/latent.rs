//! The tile of latent attention, where values are the first part of the keys.

use super::tile::{Tile, Tiles};
use crate::layout::latent::LatentMemory as Memory;

/// A step is a stage of each of two warpgroups; a third one produces.
pub(super) const SM90: Tiles = &[(
    Memory::DIM,
    Tile {
        q_slices: 12,
        ..Tile::new(Memory::ROWS, 2 * Memory::KEYS, 12, Memory::STAGES)
    },
)];
