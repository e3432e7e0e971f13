//! What is added to scores: ALiBi's distances and a bias.

use super::{Corner, Optional, place};
use crate::abi::Switch;
use crate::attention::options::ranges::load_range;
use crate::ptx::{convert, global, math, shuffle, special, switch};
use crate::tile::Accumulator;
use crate::tile::registers::{fence, opaque};
use core::f32::consts::LOG2_E;

const BIAS_F16: u32 = Switch::BiasF16.constant().1;
pub(super) const BIAS_F32: u32 = Switch::BiasF32.constant().1;
pub(in crate::attention::options) const ALIBI_ROWS: u32 = Switch::AlibiRows.constant().1;

/// A slope, in base 2.
///
/// # Safety
/// The address is readable.
#[inline(always)]
pub(in crate::attention::options) unsafe fn slope_at(address: u64) -> f32 {
    // SAFETY: the caller's promise.
    math::mul_rz(LOG2_E, unsafe { global::load_f32(address) })
}

/// Whether there is a bias.
#[inline(always)]
pub(super) fn has_bias() -> bool {
    switch::bias() != 0
}

/// A bias of 16 bits.
#[inline(always)]
fn widen(bits: u16) -> f32 {
    match switch::bias() {
        BIAS_F16 => convert::any_f16(bits),
        _ => f32::from_bits(u32::from(bits) << 16),
    }
}

/// Adds a lane's pairs of keys of a bias of 16 bits to tiles `2 * pair` and `2 * pair + 1`, in one `half` of their rows.
#[inline(always)]
fn add_words<const NT: usize>(
    tiles: &mut [Accumulator; NT],
    words: [u32; 4],
    pair: usize,
    half: usize,
    bias: u32,
) {
    for i in 0..4 {
        let (nt, column) = (2 * pair + i / 2, 4 * (i % 2) + 2 * half);
        if nt < NT {
            let halves = [words[i] as u16, (words[i] >> 16) as u16];
            for j in 0..2 {
                // Both, so that the choice is no branch.
                let f16 = convert::any_f16(halves[j]);
                let bf16 = f32::from_bits(u32::from(halves[j]) << 16);
                let bias = if bias == BIAS_F16 { f16 } else { bf16 };
                let score = &mut tiles[nt].0[column + j];
                *score = math::fma_rz(bias, LOG2_E, *score);
            }
        }
    }
}

impl Optional {
    /// Brings the bias of so many queries and keys from a corner on to the L2 cache, by a warp.
    ///
    /// # Safety
    /// A launch with a bias has one for each pair.
    #[inline(always)]
    pub(super) unsafe fn prefetch_bias(self, corner: Corner, [queries, keys]: [u32; 2]) {
        if !has_bias() {
            return;
        }
        // Keys of a line of the cache.
        let line = 128 / if switch::bias() == BIAS_F32 { 4 } else { 2 };
        let before = self.keys - self.queries - corner.diagonal;
        let mut row = special::lane();
        while row < queries {
            let mut column = 0;
            while column < keys {
                let key = corner.key + before + column as i32;
                // SAFETY: the caller's promise, for the nearest pair that exists.
                unsafe { global::prefetch(self.nearest(corner.query + row as i32, key)) }
                column += line;
            }
            // Opaque: the loop stays one, up to 150 instructions fewer.
            row = opaque(row + 32);
        }
    }

    /// Address of the bias of a pair, or of the nearest one that exists.
    #[inline(always)]
    fn nearest(self, query: i32, key: i32) -> u64 {
        let query = query.max(0).min(self.queries - 1);
        self.bias
            .at(query as u32, key.max(0).min(self.keys - 1) as u32)
    }

    /// Turns the scores of a transposed tile into base 2, and adds what depends on the pair: ALiBi's distance and the bias.
    ///
    /// Switches and the lane are read for each element, not held: gradients have no registers left.
    #[inline(always)]
    pub(super) fn add_to_transposed(self, tile: &mut Accumulator, corner: Corner) {
        self.scale_to_base2(tile);
        if switch::alibi() != 0 {
            let has_slopes = || switch::alibi() == ALIBI_ROWS;
            self.subtract_distances::<true>(
                tile,
                corner,
                special::lane(),
                switch::ranges,
                has_slopes,
            );
        }
        if has_bias() {
            for i in 0..8 {
                let address = self.bias_at::<true>(corner, special::lane(), i);
                // SAFETY: a launch with a bias has one for each pair.
                let bias = unsafe {
                    match switch::bias() {
                        BIAS_F32 => global::load_f32(address),
                        _ => widen(global::load_u16(address)),
                    }
                };
                tile.0[i] = math::fma_rz(bias, LOG2_E, tile.0[i]);
            }
        }
    }

    /// Turns scores into base 2, and adds what depends on the pair: ALiBi's distance, and the bias if no vectors have it.
    ///
    /// Fences keep the assembler from mixing tiles, whose distances and loads take more registers than there are.
    #[inline(always)]
    pub(super) fn add_to_rows<const MT: usize, const NT: usize>(
        self,
        s: &mut [[Accumulator; NT]; MT],
        corner: Corner,
        alibi: u32,
        bias: u32,
    ) {
        let lane = special::lane();
        let (has_ranges, has_slopes) = (switch::ranges(), alibi == ALIBI_ROWS);
        for mt in 0..MT {
            for nt in 0..NT {
                let (tile, corner) = (&mut s[mt][nt], corner.skip::<false>(mt, nt));
                self.scale_to_base2(tile);
                if alibi != 0 {
                    // Else the assembler mixes the tiles: 52 bytes of spills on Hopper.
                    // SAFETY: all lanes of the warp add to their scores together.
                    unsafe { fence() }
                    let (ranges, slopes) = (|| has_ranges, || has_slopes);
                    self.subtract_distances::<false>(tile, corner, lane, ranges, slopes);
                }
            }
        }
        if bias != 0 && !switch::bias_vectors() {
            for mt in 0..MT {
                for nt in 0..NT {
                    // Else the assembler mixes the tiles, whose biases take registers: 104 bytes of spills on Hopper.
                    // SAFETY: as above.
                    unsafe { fence() }
                    let corner = corner.skip::<false>(mt, nt);
                    self.add_bias(&mut s[mt][nt], corner, lane, bias);
                }
            }
        }
    }

    /// Adds the bias, two elements at a time, without a branch.
    #[inline(always)]
    fn add_bias(self, tile: &mut Accumulator, corner: Corner, lane: u32, bias: u32) {
        for pair in 0..4 {
            let places = [2 * pair, 2 * pair + 1];
            let [a, b] = places.map(|i| self.bias_at::<false>(corner, lane, i));
            // SAFETY: a launch with a bias has one for each pair.
            let numbers = unsafe { global::load_numbers(a, b, bias) };
            for j in 0..2 {
                let score = &mut tile.0[places[j]];
                *score = math::fma_rz(numbers[j], LOG2_E, *score);
            }
        }
    }

    /// The address of the bias of element `i` of a tile's lane.
    #[inline(always)]
    fn bias_at<const TRANSPOSED: bool>(self, corner: Corner, lane: u32, i: usize) -> u64 {
        let [query, key] = place::<TRANSPOSED>(lane, i as u32);
        let before = self.keys - self.queries - corner.diagonal;
        self.nearest(
            corner.query + query as i32,
            corner.key + before + key as i32,
        )
    }

    /// Adds the bias, of 16 bits: the four lanes of a row load 32 neighbouring keys, 8 each, and exchange them.
    ///
    /// A load of one element for each lane takes as long, since the lines of 8 rows pass the cache one by one: with these a
    /// step of 128 keys takes 64 loads for each row's 128.
    #[inline(always)]
    pub(super) fn add_vectors<const MT: usize, const NT: usize>(
        self,
        s: &mut [[Accumulator; NT]; MT],
        corner: Corner,
        bias: u32,
    ) {
        let lane = special::lane();
        let before = self.keys - self.queries - corner.diagonal;
        let first_key = corner.key + before + 8 * (lane % 4) as i32;
        for mt in 0..MT {
            for half in 0..2 {
                let row = corner.query + (16 * mt + 8 * half) as i32 + (lane / 4) as i32;
                let row = row.max(0).min(self.queries - 1) as u32;
                for pair in 0..NT.div_ceil(2) {
                    // Vectors behind the last key are not used.
                    let key = (first_key + 32 * pair as i32).min(self.keys - 8) as u32;
                    // SAFETY: a launch with vectors has whole ones for each query; all lanes are here.
                    let words = unsafe {
                        let words = global::load_u32x4(self.bias.at(row, key));
                        shuffle::transpose::<1, 2>(words, lane)
                    };
                    add_words(&mut s[mt], words, pair, half, bias);
                }
            }
        }
    }

    /// Subtracts the slope times the distance of query and key, aligned bottom-right, from scores in base 2.
    #[inline(always)]
    fn subtract_distances<const TRANSPOSED: bool>(
        self,
        tile: &mut Accumulator,
        corner: Corner,
        lane: u32,
        has_ranges: impl Fn() -> bool,
        has_slopes: impl Fn() -> bool,
    ) {
        let [query, key] = place::<TRANSPOSED>(lane, 0).map(|place| place as i32);
        let first = corner.query + corner.diagonal - corner.key + query - key;
        // Elements of one query share its place.
        let queries: &[u32] = if TRANSPOSED { &[0, 1, 8, 9] } else { &[0, 8] };
        for &of_tile in queries {
            let (mut first, mut slope) = (first, self.slope);
            if has_ranges() {
                let query = corner.query + query + of_tile as i32;
                // SAFETY: a launch with ranges has one for each query.
                let [.., offset, _] = unsafe { load_range(self.ranges, self.queries, query) };
                first += offset as i32 - (self.keys - self.queries);
                if has_slopes() {
                    let query = query.max(0).min(self.queries - 1) as u64;
                    // SAFETY: a launch with slopes of sequences has one for each query.
                    slope = unsafe { slope_at(self.slopes + 4 * query) };
                }
            }
            for i in 0..8 {
                let [query, key] = place::<TRANSPOSED>(0, i as u32);
                if query == of_tile {
                    let distance = (first as f32 + (query as f32 - key as f32)).abs();
                    tile.0[i] = math::fma_rz(-slope, distance, tile.0[i]);
                }
            }
        }
    }
}
