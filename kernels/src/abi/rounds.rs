//! In which order the key tiles of a head begin in a backward pass.

use super::Divisor;

/// Rounds of key tiles: one descends, the next one ascends.
#[repr(C)]
#[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::NoUninit))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rounds {
    /// Tiles of a round.
    tiles: Divisor,
    padding: u32,
}

impl Rounds {
    /// From the first tile to the last.
    pub const ASCENDING: Self = Rounds::new(1);

    /// Rounds of so many tiles, not 0.
    pub const fn new(tiles: u32) -> Self {
        let tiles = Divisor::new(tiles);
        Rounds { tiles, padding: 0 }
    }

    /// The tile that begins after `begun` others of `count`.
    #[inline(always)]
    pub const fn tile(self, begun: u32, count: u32) -> u32 {
        self.turned(begun, count)
    }

    /// How many of the first `seen` tiles begin before one of them.
    #[inline(always)]
    pub const fn before(self, tile: u32, seen: u32) -> u32 {
        self.turned(tile, seen)
    }

    /// Within the round: the other end's.
    #[inline(always)]
    const fn turned(self, number: u32, count: u32) -> u32 {
        let (round, in_round) = self.tiles.divide(number);
        if round % 2 == 1 {
            return number;
        }
        let first = number - in_round;
        let end = match count < first + self.tiles.value {
            true => count,
            false => first + self.tiles.value,
        };
        end - 1 - in_round
    }
}
