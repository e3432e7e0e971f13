//! The tile of latent attention, where values are the first part of the keys.

use super::tile::{Tile, Tiles};
use crate::layout::latent::LatentMemory;

/// A step is a stage of each of two warpgroups; a third one produces.
pub(super) const SM90: Tiles = &[(
    LatentMemory::DIM,
    Tile {
        q_slices: 8,
        ..Tile::new(
            LatentMemory::ROWS,
            2 * LatentMemory::KEYS,
            12,
            LatentMemory::STAGES,
        )
    },
)];

/// Registers of a thread that produces.
pub(super) const GIVEN: u32 = 24;

/// Registers of a thread that consumes.
pub(super) const TAKEN: u32 = 240;
