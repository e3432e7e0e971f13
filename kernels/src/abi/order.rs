//! In which order the blocks of a grid take the query tiles.
//!
//! Blocks start in the order of their index, as many at a time as the GPU holds. Under the causal
//! mask the last tile of a head has the most keys, and one that starts last leaves the GPU idle
//! beside it; so the heaviest tiles come first. Heads go in waves, so that the keys and values that
//! the running blocks share still fit the L2 cache: in a wave, all heads' last tiles, then all
//! heads' last but one. In small waves tiles that read new keys run beside others that read them from the cache. The
//! last wave is larger, so that its light tiles fill the time until the last block is done.

use super::Divisor;

/// The order of a grid of `heads * q_tiles` blocks for each split of the keys.
#[repr(C)]
#[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::NoUninit))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Order {
    /// Blocks of a split.
    split: Divisor,
    /// Blocks of a wave.
    wave: Divisor,
    /// Heads of a wave, and of the last one, which may have more or fewer.
    heads: Divisor,
    last_heads: Divisor,
    last_wave: u32,
    q_tiles: u32,
}

impl Order {
    /// Waves of `wave_heads` heads of `heads` in all, each with `q_tiles` query tiles; none of them 0. The last wave has at
    /// least `last_heads`, from 1 to `heads`.
    pub const fn new(heads: u32, q_tiles: u32, [wave_heads, last_heads]: [u32; 2]) -> Self {
        let last_wave = (heads - last_heads) / wave_heads;
        Order {
            split: Divisor::new(heads * q_tiles),
            wave: Divisor::new(wave_heads * q_tiles),
            heads: Divisor::new(wave_heads),
            last_heads: Divisor::new(heads - last_wave * wave_heads),
            last_wave,
            q_tiles,
        }
    }

    /// Blocks of a split.
    pub const fn blocks(&self) -> u32 {
        self.split.value
    }

    /// The split of a block, its query tile, and its head counted over all batches, where no wave has more heads than the
    /// first one.
    ///
    /// The blocks of a split take every pair of tile and head once.
    #[inline(always)]
    pub const fn place(&self, block: u32) -> (u32, u32, u32) {
        let (split, in_split) = self.split.divide(block);
        let (wave, in_wave) = self.wave.divide(in_split);
        let heads = if wave == self.last_wave {
            self.last_heads
        } else {
            self.heads
        };
        self.place_in(split, wave, in_wave, heads)
    }

    /// A block's place where the last wave may have more heads. In [`place`](Self::place) this would cost kernels by
    /// `mma.sync` registers, and some a spill.
    #[inline(always)]
    pub const fn place_in_uneven(&self, block: u32) -> (u32, u32, u32) {
        let (split, in_split) = self.split.divide(block);
        let (wave, _) = self.wave.divide(in_split);
        let (wave, heads) = if wave < self.last_wave {
            (wave, self.heads)
        } else {
            (self.last_wave, self.last_heads)
        };
        self.place_in(split, wave, in_split - wave * self.wave.value, heads)
    }

    /// The place of a block in its wave, which has so many heads.
    #[inline(always)]
    const fn place_in(
        &self,
        split: u32,
        wave: u32,
        in_wave: u32,
        heads: Divisor,
    ) -> (u32, u32, u32) {
        let (tile, head) = heads.divide(in_wave);
        let head = wave * self.heads.value + head;
        (split, self.q_tiles - 1 - tile, head)
    }
}

#[cfg(test)]
mod tests {
    use super::Order;
    use proptest::prelude::*;
    extern crate std;
    use std::collections::HashSet;

    proptest! {
        #[test]
        fn every_tile_of_every_head_has_one_block_a_split(
            heads in 1u32..20,
            q_tiles in 1u32..20,
            waves in [1u32..25, 1u32..25],
            splits in 1u32..4,
        ) {
            let order = Order::new(heads, q_tiles, waves.map(|wave| wave.min(heads)));
            let places: HashSet<_> = (0..splits * heads * q_tiles)
                .map(|block| order.place_in_uneven(block))
                .collect();
            prop_assert_eq!(places.len() as u32, splits * heads * q_tiles);
            let exists = |&(split, tile, head): &(u32, u32, u32)| {
                split < splits && tile < q_tiles && head < heads
            };
            prop_assert!(places.iter().all(exists));
        }

        #[test]
        fn a_wave_takes_heavier_tiles_first(
            heads in 1u32..20, q_tiles in 1u32..20, waves in [1u32..25, 1u32..25],
        ) {
            let [wave_heads, last_heads] = waves.map(|wave| wave.min(heads));
            let order = Order::new(heads, q_tiles, [wave_heads, last_heads]);
            let tiles: std::vec::Vec<_> = (0..heads * q_tiles)
                .map(|block| order.place_in_uneven(block))
                .map(|(_, tile, head)| (head, q_tiles - tile))
                .collect();
            let waves = (heads - last_heads) / wave_heads;
            let wave = |head: u32| (head / wave_heads).min(waves);
            prop_assert!(tiles.is_sorted_by_key(|&(head, tile)| (wave(head), tile)));
            let last = tiles.iter().filter(|&&(head, _)| wave(head) == waves).count() as u32;
            prop_assert!((last_heads..last_heads + wave_heads).contains(&(last / q_tiles)));
        }

        #[test]
        fn waves_that_shrink_have_both_places(
            heads in 1u32..20, q_tiles in 1u32..20, wave_heads in 1u32..25, splits in 1u32..4,
        ) {
            let order = Order::new(heads, q_tiles, [wave_heads.min(heads), 1]);
            for block in 0..splits * heads * q_tiles {
                prop_assert_eq!(order.place(block), order.place_in_uneven(block));
            }
        }
    }
}
