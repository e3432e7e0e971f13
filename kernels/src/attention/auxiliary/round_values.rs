//! Values, less the mean of each column, rounded to e4m3 and transposed.
//!
//! The first kernel finds the moments of parts of the keys: sums, least and largest numbers of each column. In the second one a block
//! takes 128 keys of a head. It makes mean and scale of each column, always in one order. Infinities and NaN become NaN, and count for
//! neither.

use super::round_rows::{is_finite, load};
use crate::abi::{FP8_BLOCK, RoundValuesParams};
use crate::layout::element::{self, CHUNK};
use crate::layout::fp8::{VALUES_LOG2, inverse_of, row_lanes, scale_of};
use crate::ptx::convert::e4m3;
use crate::ptx::{barrier, global, math, shared, special, vote};
use crate::tile::Element;

/// Columns that a block has room for.
const COLUMNS: u32 = 256;

/// Words of a column of a tile, of which one keeps columns in banks of their own.
const TILE_WORDS: u32 = FP8_BLOCK / 4 + 1;

/// Finds the moments of the block's part of the keys, with `W` warps.
///
/// # Safety
/// Launched as [`RoundValuesParams`] and the kernel's row of the [catalog](crate::catalog) say, with readable values and writable moments.
#[inline(always)]
pub unsafe fn moments<E: Element, const W: u32>(params: &RoundValuesParams) {
    let (head, part) = (
        special::block() / params.parts,
        special::block() % params.parts,
    );
    // SAFETY: the launch has this many threads a block.
    let thread = unsafe { special::thread(32 * W) };
    let lanes = row_lanes(params.dim);
    let (lane, rows) = (thread % lanes, 32 * W / lanes);
    let (mut sums, mut least, mut most) =
        ([0.0_f32; 8], [f32::INFINITY; 8], [f32::NEG_INFINITY; 8]);
    let end = params.keys.min((part + 1) * params.part_keys);
    let mut key = part * params.part_keys + thread / lanes;
    while key < end && CHUNK * lane < params.dim {
        // SAFETY: elements of the values.
        let numbers = unsafe { load::<E>(at(params, head, key, CHUNK * lane)) };
        for i in 0..8 {
            let x = numbers[i];
            if is_finite(x) {
                sums[i] += x;
                least[i] = least[i].min(x);
                most[i] = most[i].max(x);
            }
        }
        key += rows;
    }
    // Of each moment a row for each group of lanes, and a number for each column.
    let place = |moment: u32, row: u32, column: u32| {
        shared::base() + 4 * ((moment * rows + row) * CHUNK * lanes + column)
    };
    // SAFETY: all threads of the block reach the barrier; one thread alone writes a number.
    unsafe {
        for (moment, numbers) in [sums, least, most].into_iter().enumerate() {
            for i in 0..8 {
                let column = CHUNK * lane + i as u32;
                shared::store_f32(place(moment as u32, thread / lanes, column), numbers[i]);
            }
        }
        barrier::block();
        if thread < params.dim {
            let mut found = Moments::NONE;
            for row in 0..rows {
                let [sum, least, most] =
                    [0, 1, 2].map(|moment| shared::load_f32(place(moment, row, thread)));
                found = found.add(Moments { sum, least, most });
            }
            let to = moments_at(params, head, part, thread);
            let next = 4 * u64::from(params.dim);
            global::store_f32(to, found.sum);
            global::store_f32(to + next, found.least);
            global::store_f32(to + 2 * next, found.most);
        }
    }
}

/// Rounds the block's 128 keys, with `W` warps.
///
/// # Safety
/// Launched as [`RoundValuesParams`] and the kernel's row of the [catalog](crate::catalog) say, behind [`moments`], with readable values, and
/// writable rounded values, columns and blocks of keys.
#[inline(always)]
pub unsafe fn round_values<E: Element, const W: u32>(params: &RoundValuesParams) {
    let tiles = params.keys.div_ceil(FP8_BLOCK);
    let (head, tile) = (special::block() / tiles, special::block() % tiles);
    // SAFETY: the launch has this many threads a block.
    let thread = unsafe { special::thread(32 * W) };
    let of_column = |column: u32| shared::base() + 8 * column;
    let word_at =
        |column: u32, word: u32| shared::base() + 8 * COLUMNS + 4 * (column * TILE_WORDS + word);
    let guard_at = |warp: u32| word_at(COLUMNS, 0) + 4 * warp;
    // SAFETY: all threads of the block reach the barriers; one thread alone writes a number.
    unsafe {
        if thread < params.dim {
            let (mean, scale) = column(params, head, thread);
            shared::store_f32(of_column(thread), mean);
            shared::store_f32(of_column(thread) + 4, inverse_of(scale));
            if tile == 0 {
                let place = u64::from(head) * u64::from(params.dim) + u64::from(thread);
                global::store_f32x2(params.columns + 8 * place, [scale, mean]);
            }
        }
        barrier::block();
        let lanes = row_lanes(params.dim);
        let mut guards = false;
        let mut unit = thread;
        // Four keys, which are neighbours in a row, and eight columns.
        while unit < lanes * FP8_BLOCK / 4 {
            let (first, word) = (CHUNK * (unit % lanes), unit / lanes);
            if first < params.dim {
                let key = word / 4 * 16 + 2 * (word % 4);
                let keys = [key, key + 1, key + 8, key + 9];
                let numbers = keys.map(|key| {
                    let key = tile * FP8_BLOCK + key;
                    (key < params.keys).then(|| load::<E>(at(params, head, key, first)))
                });
                for i in 0..8 {
                    let column = first + i as u32;
                    let [mean, inverse] = shared::load_f32x2(of_column(column));
                    let [a, b, c, d] = numbers.map(|numbers| match numbers {
                        Some(numbers) => {
                            let x = numbers[i];
                            math::fma(x - mean, inverse, x - x)
                        }
                        None => 0.0,
                    });
                    guards |= !(is_finite(a) & is_finite(b) & is_finite(c) & is_finite(d));
                    shared::store_u32(word_at(column, word), e4m3(a, b, c, d));
                }
            }
            unit += 32 * W;
        }
        let guards = vote::any(guards);
        if thread.is_multiple_of(32) {
            shared::store_u32(guard_at(thread / 32), u32::from(guards));
        }
        barrier::block();
        let keys = params.keys.next_multiple_of(16);
        let (lane, mut column) = (thread % 32, thread / 32);
        let key = tile * FP8_BLOCK + 4 * lane;
        while column < params.dim {
            if key < keys {
                let row = u64::from(head) * u64::from(params.dim) + u64::from(column);
                let to = params.rounded + row * u64::from(keys) + u64::from(key);
                global::store_u32(to, shared::load_u32(word_at(column, lane)));
            }
            column += W;
        }
        if thread == 0 {
            let mut guards = 0;
            for warp in 0..W {
                guards |= shared::load_u32(guard_at(warp));
            }
            let block = u64::from(head) * u64::from(tiles) + u64::from(tile);
            global::store_u32(params.key_blocks + 8 * block + 4, guards);
        }
    }
}

/// The moments of numbers.
#[derive(Clone, Copy)]
struct Moments {
    sum: f32,
    least: f32,
    most: f32,
}

impl Moments {
    const NONE: Self = Moments {
        sum: 0.0,
        least: f32::INFINITY,
        most: f32::NEG_INFINITY,
    };

    /// The moments of these numbers and others.
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Moments {
            sum: self.sum + other.sum,
            least: self.least.min(other.least),
            most: self.most.max(other.most),
        }
    }
}

/// Mean and scale of a column: 0 stands for a mean that f32 does not hold.
///
/// # Safety
/// The moments are readable.
#[inline(always)]
unsafe fn column(params: &RoundValuesParams, head: u32, column: u32) -> (f32, f32) {
    let mut found = Moments::NONE;
    for part in 0..params.parts {
        let from = moments_at(params, head, part, column);
        let next = 4 * u64::from(params.dim);
        // SAFETY: the caller's promise.
        found = found.add(unsafe {
            Moments {
                sum: global::load_f32(from),
                least: global::load_f32(from + next),
                most: global::load_f32(from + 2 * next),
            }
        });
    }
    let mean = found.sum / params.keys as f32;
    let mean = if is_finite(mean) { mean } else { 0.0 };
    let spread = (found.most - mean).max(mean - found.least).max(0.0);
    (mean, scale_of(spread.min(f32::MAX), VALUES_LOG2))
}

/// Address of the first moment of a part's column.
#[inline(always)]
fn moments_at(params: &RoundValuesParams, head: u32, part: u32, column: u32) -> u64 {
    let part = u64::from(head) * u64::from(params.parts) + u64::from(part);
    params.moments + 4 * (3 * part * u64::from(params.dim) + u64::from(column))
}

/// Address of an element of the values.
#[inline(always)]
fn at(params: &RoundValuesParams, head: u32, key: u32, column: u32) -> u64 {
    let (batch, head) = (head / params.heads, head % params.heads);
    let values = &params.values;
    let offset = i64::from(batch) * values.batch_stride
        + i64::from(head) * values.head_stride
        + i64::from(key) * values.row_stride
        + i64::from(column);
    element::at(values.address, offset)
}
