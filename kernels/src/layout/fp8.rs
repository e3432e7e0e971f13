//! FP8: where e4m3 numbers lie, and the shared memory of the kernel that multiplies them.
//!
//! Panels and maps count in pairs of e4m3, which take the place of elements of two bytes.

use super::descriptor::Panels;
use super::element::BYTES;
use crate::abi::FP8_BLOCK;

/// Numbers of e4m3 in the place of an element of two bytes.
pub const PAIR: u32 = 2;

/// The base-2 logarithm of what rounded values are below. Their sums, weighted by probabilities, are f16, up to 65504.
pub const VALUES_LOG2: i32 = 1;

/// The base-2 logarithm of what rounded keys are below. Products of q and k are summed in f16, up to 65504.
pub const KEYS_LOG2: i32 = 4;

/// The base-2 logarithm of what rounded queries are below: no sum of products with keys passes 32768.
#[must_use]
pub const fn queries_log2(dim: u32) -> i32 {
    let dim_log2 = dim.next_power_of_two().trailing_zeros() as i32;
    15 - KEYS_LOG2 - if dim_log2 < 3 { 3 } else { dim_log2 }
}

/// Threads of a block that rounds v.
pub const ROUND_THREADS: u32 = 256;

/// Pieces of eight elements that the threads of a block that rounds q or k have together.
pub const ROW_PIECES: u32 = 4096;

/// Threads that have a row, eight elements each: a power of two.
#[must_use]
#[inline(always)]
pub const fn row_lanes(dim: u32) -> u32 {
    match dim {
        0..=64 => 8,
        65..=128 => 16,
        _ => 32,
    }
}

/// Tiles of 128 rows that a block rounds at once.
#[must_use]
#[inline(always)]
pub const fn row_tiles(dim: u32) -> u32 {
    ROW_PIECES / row_lanes(dim) / FP8_BLOCK
}

/// Which of a lane's eight numbers change their sign before a rotation: a bit each, of multiples of the golden ratio.
#[must_use]
#[inline(always)]
pub const fn rotation_signs(lane: u32) -> u32 {
    (lane + 1).wrapping_mul(0x9e37_79b9) >> 24
}

/// Into how many parts keys are divided to find the moments of columns, and how many keys a part has: a multiple of 128.
#[must_use]
pub const fn parts_of(keys: u32) -> [u32; 2] {
    let most = keys.div_ceil(1024);
    let parts = if most > 32 { 32 } else { most };
    let of_part = keys.div_ceil(parts).next_multiple_of(FP8_BLOCK);
    [keys.div_ceil(of_part), of_part]
}

/// The scale of numbers up to `largest`, finite and not negative, that puts them below `2^most_log2`, and the largest one not below
/// its half: a power of two. Numbers below 2^-96 count as that.
#[must_use]
#[inline(always)]
pub const fn scale_of(largest: f32, most_log2: i32) -> f32 {
    let exponent = (largest.to_bits() >> 23) as i32 - 127;
    let exponent = if exponent < -96 { -96 } else { exponent };
    power_of_two(exponent + 1 - most_log2)
}

/// The inverse of a [scale](scale_of).
#[must_use]
#[inline(always)]
pub const fn inverse_of(scale: f32) -> f32 {
    f32::from_bits((254 << 23) - scale.to_bits())
}

#[inline(always)]
const fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

/// The place of a key in a row of the transposed v.
///
/// In groups of 16, position `4t + b` holds key `8 (b / 2) + 2t + b % 2`: the accumulators of S in a lane, two neighbours of each
/// half, are then four neighbours of an operand P.
#[must_use]
#[inline(always)]
pub const fn transposed_key(key: u32) -> u32 {
    let (half, t, odd) = (key / 8 % 2, key / 2 % 4, key % 2);
    key / 16 * 16 + 4 * t + 2 * half + odd
}

/// The row of the transposed v that has a column, of so many rows as a multiple of 32; and the column that a row has.
///
/// In groups of 32, row `8g + 2t + b` has column `8t + 2g + b`: the accumulators of O in a lane are then eight neighbours of a row, which it
/// stores at once.
#[must_use]
#[inline(always)]
pub const fn transposed_column(column: u32) -> u32 {
    let (t, g, odd) = (column / 8 % 4, column / 2 % 4, column % 2);
    column / 32 * 32 + 8 * g + 2 * t + odd
}

/// Rows of the transposed v of so many columns.
#[must_use]
#[inline(always)]
pub const fn transposed_rows(columns: u32) -> u32 {
    columns.next_multiple_of(32)
}

/// The bits of keys `start..end` of a block, both at most 128, in word `byte` of four. Bit `l` of word `b` is position `4 l + b` of a row of
/// the [transposed](transposed_key) v.
#[must_use]
#[inline(always)]
pub const fn wrong_bits(start: u32, end: u32, byte: u32) -> u32 {
    below(end, byte) & !below(start, byte)
}

/// The bits of keys below `key`.
#[inline(always)]
const fn below(key: u32, byte: u32) -> u32 {
    // Of 16 keys, bit `t` has key `2 t + first`.
    let first = 8 * (byte / 2) + byte % 2;
    let rest = key.saturating_sub(first);
    let of_group = (rest % 16).div_ceil(2);
    let count = rest / 16 * 4 + if of_group < 4 { of_group } else { 4 };
    match count {
        32.. => u32::MAX,
        _ => (1 << count) - 1,
    }
}

/// Slots for the 64 rows of Q of each warpgroup, K and V of each stage, barriers, and what belongs to slots, stages and the tile.
///
/// ```text
/// Q | K, V of stage 0 | K, V of stage 1 | ... | barriers | jobs | scales of rows | columns | whether values are wrong | scales of keys
/// ```
///
/// Rows of Q of 16 bits are *wide*: they pass through stages, one for two warpgroups, and are rounded on the way to their slot, or to registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fp8Memory {
    base: u32,
    slots: u32,
    keys: u32,
    dim: u32,
    stages: u32,
}

impl Fp8Memory {
    /// The memory of a block from shared address `base` on, a multiple of 1024.
    #[must_use]
    #[inline(always)]
    pub const fn new(base: u32, [slots, keys, dim, stages]: [u32; 4]) -> Self {
        Fp8Memory {
            base,
            slots,
            keys,
            dim,
            stages,
        }
    }

    /// The 64 rows of Q in a slot.
    #[must_use]
    #[inline(always)]
    pub const fn q(&self, slot: u32) -> Panels {
        panels(self.base + slot * self.q_bytes(), 64, self.dim)
    }

    /// K of a stage.
    #[must_use]
    #[inline(always)]
    pub const fn k(&self, stage: u32) -> Panels {
        panels(self.stage(stage), self.keys, self.dim)
    }

    /// 64 rows of wide Q in a stage, the first or the second ones.
    #[must_use]
    #[inline(always)]
    pub const fn wide_q(&self, stage: u32, half: u32) -> Panels {
        Panels {
            base: self.stage(stage) + half * PAIR * self.q_bytes(),
            rows: 64,
            width: Panels::width_for(self.dim),
        }
    }

    /// V of a stage, transposed: a row for each column.
    #[must_use]
    #[inline(always)]
    pub const fn v(&self, stage: u32) -> Panels {
        panels(
            self.stage(stage) + self.stage_bytes() / 2,
            self.dim,
            self.keys,
        )
    }

    /// Bytes of a slot of Q.
    #[must_use]
    #[inline(always)]
    pub const fn q_bytes(&self) -> u32 {
        64 * self.dim
    }

    /// Bytes of a stage.
    #[must_use]
    #[inline(always)]
    pub const fn stage_bytes(&self) -> u32 {
        2 * self.keys * self.dim
    }

    /// The barrier of a slot of Q that says that it has landed; the next one, 8 bytes behind it, says that it is read.
    #[must_use]
    #[inline(always)]
    pub const fn q_full(&self, slot: u32) -> u32 {
        self.stage(self.stages) + 16 * slot
    }

    /// The barrier of a stage, like [`q_full`](Self::q_full).
    #[must_use]
    #[inline(always)]
    pub const fn full(&self, stage: u32) -> u32 {
        self.q_full(self.slots) + 16 * stage
    }

    /// The barrier of the [columns](Self::columns), like [`q_full`](Self::q_full).
    #[must_use]
    #[inline(always)]
    pub const fn columns_full(&self) -> u32 {
        self.full(self.stages)
    }

    /// Four numbers that say to which tile a slot of Q belongs.
    #[must_use]
    #[inline(always)]
    pub const fn job(&self, slot: u32) -> u32 {
        self.columns_full() + 16 * (1 + slot)
    }

    /// The scales of the 64 rows of Q in a slot.
    #[must_use]
    #[inline(always)]
    pub const fn row_scales(&self, slot: u32) -> u32 {
        self.job(self.slots) + 4 * 64 * slot
    }

    /// Scales and means of V's columns, for the tile that ends next.
    #[must_use]
    #[inline(always)]
    pub const fn columns(&self) -> u32 {
        self.row_scales(self.slots)
    }

    /// Whether that tile has values that are not finite, 1 or 0.
    #[must_use]
    #[inline(always)]
    pub const fn wrong(&self) -> u32 {
        self.columns() + 8 * self.dim
    }

    /// The scale of a stage's keys.
    #[must_use]
    #[inline(always)]
    pub const fn key_scale(&self, stage: u32) -> u32 {
        self.wrong() + 4 + 4 * stage
    }

    /// Bytes of all.
    #[must_use]
    #[inline(always)]
    pub const fn bytes(&self) -> u32 {
        self.key_scale(self.stages) - self.base
    }

    #[inline(always)]
    const fn stage(&self, stage: u32) -> u32 {
        self.base + self.slots * self.q_bytes() + stage * self.stage_bytes()
    }
}

/// Panels of rows of so many e4m3.
#[inline(always)]
const fn panels(base: u32, rows: u32, columns: u32) -> Panels {
    Panels {
        base,
        rows,
        width: Panels::width_for(columns / PAIR),
    }
}

const _: () = assert!(BYTES == PAIR, "a pair is as large as an element");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::fragment;
    extern crate std;
    use std::collections::HashSet;

    #[test]
    fn every_key_has_its_place() {
        let places: HashSet<_> = (0..64).map(transposed_key).collect();
        assert_eq!(places.len(), 64);
        assert!((0..64).all(|key| transposed_key(key) / 16 == key / 16));
    }

    /// A lane's accumulators of 32 columns are eight neighbours of a row of O.
    #[test]
    fn a_lane_has_neighbours() {
        for lane in 0..32 {
            for i in 0..8 {
                let (tile, half, odd) = (i / 4, i / 2 % 2, i % 2);
                let (_, row) = fragment::accumulator(lane, 4 * half + odd);
                let column = 8 * (lane % 4) + i;
                assert_eq!(transposed_column(column), 16 * tile + row);
                assert_eq!(transposed_column(transposed_column(column)), column);
            }
        }
    }

    /// An operand of e4m3 holds, in a lane, four neighbours of a row of 16: the keys of its accumulators.
    #[test]
    fn accumulators_are_operands() {
        for lane in 0..32 {
            for (place, i) in [0, 1, 4, 5].into_iter().enumerate() {
                let (_, key) = fragment::accumulator(lane, i);
                assert_eq!(transposed_key(key), 4 * (lane % 4) + place as u32);
            }
        }
    }

    #[test]
    fn bits_are_of_keys() {
        for (start, end) in [
            (0, 128),
            (0, 0),
            (1, 2),
            (9, 10),
            (7, 120),
            (17, 19),
            (128, 128),
            (5, 3),
        ] {
            let mut bits = [0_u32; 4];
            for place in (start..end).map(transposed_key) {
                bits[place as usize % 4] |= 1 << (place / 4);
            }
            assert_eq!(
                [0, 1, 2, 3].map(|byte| wrong_bits(start, end, byte)),
                bits,
                "{start}..{end}"
            );
        }
        for key in 0..128 {
            let place = transposed_key(key);
            assert_eq!(wrong_bits(key, key + 1, place % 4), 1 << (place / 4));
        }
    }

    #[test]
    fn scales_are_powers_of_two() {
        for (largest, most_log2, scale) in [
            (1.0, 4, 0.125),
            (1.999, 4, 0.125),
            (16.0, 4, 2.0),
            (448.0, 8, 2.0),
            (0.0, 4, f32::powi(2.0, -99)),
            (f32::MAX, 8, f32::powi(2.0, 120)),
        ] {
            assert_eq!(scale_of(largest, most_log2), scale, "{largest}");
            assert_eq!(scale_of(largest, most_log2) * inverse_of(scale), 1.0);
            assert!(largest * inverse_of(scale) < f32::powi(2.0, most_log2));
        }
    }

    #[test]
    fn parts_have_all_keys() {
        for keys in [1, 127, 1024, 1025, 4096, 40_000, 1 << 20] {
            let [parts, of_part] = parts_of(keys);
            assert!((1..=32).contains(&parts) && of_part.is_multiple_of(128));
            assert!((parts - 1) * of_part < keys && keys <= parts * of_part);
        }
    }

    #[test]
    fn sums_of_scores_fit_f16() {
        for dim in [1, 8, 64, 72, 128, 256] {
            // What e4m3 holds.
            assert!(queries_log2(dim) <= 8);
            let most = f32::powi(2.0, queries_log2(dim) + KEYS_LOG2) * dim as f32;
            assert!(most <= 32768.0, "{dim}");
        }
    }
}
