//! Values, less the mean of each column, rounded to e4m3 and transposed.
//!
//! A block finds the [moments](super::moments) of a part of a head's keys, or rounds 128 keys of a head whose moments are there: so that these are
//! in the L2 cache still, it is some heads behind. Half as far behind a block makes mean and scale of each column, always in one order. Infinities and NaN become 0, and count for neither; a block that has some notes which values they are. Keys that no query sees count for
//! neither, too.
//!
//! Values of e4m3 keep their means: without them they would be rounded again. They are scaled, so that sums in f16 hold.

use super::moments::{Moments, counter_of, find_moments, moments_at};
use super::source::{Rows, Source, is_finite, is_seen};
use crate::abi::{FP8_BLOCK, RoundValuesParams};
use crate::attention::workload::descales::descale;
use crate::layout::element::CHUNK;
use crate::layout::fp8::{
    VALUES_LOG2, inverse_of, row_lanes, scale_of, transposed_column, transposed_rows,
};
use crate::ptx::convert::e4m3;
use crate::ptx::{barrier, global, math, shared, shuffle, special, vote};
use crate::tile::Element;
use core::hint::cold_path;

/// Columns that a block has room for.
const COLUMNS: u32 = 256;

/// Words of a column of a tile.
const TILE_WORDS: u32 = FP8_BLOCK / 4;

/// Finds moments or rounds 128 keys, with `W` warps.
///
/// # Safety
/// Launched as [`RoundValuesParams`] and the kernel's row of the [catalog](crate::catalog) say, with readable values, and all else writable.
#[inline(always)]
pub unsafe fn round_values<E: Source, const W: u32>(params: &RoundValuesParams) {
    let of_turn = params.parts + 1 + params.keys.div_ceil(FP8_BLOCK);
    let heads = special::blocks() / of_turn - params.lag;
    // SAFETY: all threads of a block make the same calls. Blocks that a block waits for have smaller numbers, so that they run.
    unsafe {
        let number = take_number::<W>(params);
        let (turn, place) = (number / of_turn, number % of_turn);
        let lag = if place > params.parts { params.lag } else { params.lag.div_ceil(2) };
        let head = turn.wrapping_sub(if place < params.parts { 0 } else { lag });
        if head >= heads {
            return;
        }
        if place < params.parts {
            find_moments::<E, W>(params, head, place);
        } else if place == params.parts {
            write_columns::<E, W>(params, head);
        } else {
            round_tile::<E, W>(params, head, place - params.parts - 1);
        }
    }
}

/// The number of the block in the order in which blocks begin.
///
/// # Safety
/// The conditions of [`round_values`]; all threads of the block make the same call first.
#[inline(always)]
unsafe fn take_number<const W: u32>(params: &RoundValuesParams) -> u32 {
    // SAFETY: the launch has this many threads a block, and the counter is the launch's.
    unsafe {
        if special::thread(32 * W) == 0 {
            let number = global::count(params.counters, special::blocks() - 1);
            shared::store_u32(shared::base(), number);
        }
        barrier::block();
        let number = shuffle::first(shared::load_u32(shared::base()));
        barrier::block();
        number
    }
}

/// Rounds 128 keys of a head, with `W` warps.
///
/// # Safety
/// The conditions of [`round_values`]; all threads of the block make the same call.
#[inline(always)]
unsafe fn round_tile<E: Source, const W: u32>(params: &RoundValuesParams, head: u32, tile: u32) {
    let tiles = params.keys.div_ceil(FP8_BLOCK);
    let number = head * tiles + tile;
    // SAFETY: the launch has this many threads a block.
    let thread = unsafe { special::thread(32 * W) };
    let lanes = row_lanes(params.dim);
    let column = CHUNK * (thread % lanes);
    let units = Units {
        lanes,
        head,
        first: tile * FP8_BLOCK,
        column,
        values: values_of::<E>(params, head, column),
    };
    // SAFETY: all threads of the block reach the barriers; one thread alone writes a number.
    unsafe {
        // On their way while means and scales are read.
        let (mut four, mut seen) = units.load::<E>(params, thread);
        read_columns::<E>(params, head, thread);
        let mut unit = thread;
        let mut wrong = 0;
        while unit < units.count() {
            let (next, next_seen) = units.load::<E>(params, unit + 32 * W);
            if column < params.dim {
                let numbers = four.map(E::widen);
                for i in 0..8 {
                    let column = column + i as u32;
                    let [factor, shift] = shared::load_f32x2(of_column(column));
                    let [a, b, c, d] = numbers.map(|numbers| math::fma(numbers[i], factor, shift));
                    let rounded = e4m3(a, b, c, d) & seen;
                    wrong |= wrong_of(rounded);
                    shared::store_u32(word_at(lanes, column, unit / lanes), rounded);
                }
            }
            (four, seen) = (next, next_seen);
            unit += 32 * W;
        }
        let is_wrong = barrier::block_any(wrong != 0);
        store_tile::<W>(params, [head, tile], is_wrong, thread);
        // Behind the votes: before them, the compiler lets this thread's warp stay apart.
        if thread == 0 {
            let to = params.wrong_blocks + 4 * u64::from(number);
            global::store_u32(to, is_wrong.into());
        }
    }
}

/// Stores a tile of 128 keys, of which each warp has every `W`th row, and what is wrong in it.
///
/// # Safety
/// The conditions of [`round_values`]; all threads of the block make the same call, with the tile in shared memory.
#[inline(always)]
unsafe fn store_tile<const W: u32>(
    params: &RoundValuesParams,
    [head, tile]: [u32; 2],
    is_wrong: bool,
    thread: u32,
) {
    const { assert!(W == 8) }
    let (lanes, rows) = (row_lanes(params.dim), transposed_rows(params.dim));
    let (lane, mut row) = (thread % 32, thread / 32);
    let keys = params.keys.next_multiple_of(16);
    let key = tile * FP8_BLOCK + 4 * lane;
    let first = u64::from(head) * u64::from(rows) + u64::from(row);
    let mut to = params.rounded + first * u64::from(keys) + u64::from(key);
    let block = u64::from(head) * u64::from(params.keys.div_ceil(FP8_BLOCK)) + u64::from(tile);
    while row < rows {
        let column = transposed_column(row);
        let mut word = 0;
        // SAFETY: the caller's promise: one lane alone writes a word.
        unsafe {
            if column < params.dim {
                word = shared::load_u32(word_at(lanes, column, lane));
                if is_wrong {
                    cold_path();
                    let place = block * u64::from(params.dim) + u64::from(column);
                    note_wrong(params.wrong_values + 16 * place, word);
                    word &= !(wrong_of(word) / 0x80 * 0xff);
                }
            }
            if key < keys {
                global::store_u32(to, word);
            }
        }
        to += u64::from(W) * u64::from(keys);
        row += W;
    }
}

/// Address of what multiplies a column, and what is added then. Those of one place in eights are neighbours: a warp's lanes read them at once.
#[inline(always)]
fn of_column(column: u32) -> u32 {
    shared::base() + 8 * (column % CHUNK * (COLUMNS / CHUNK) + column / CHUNK)
}

/// Address of four keys of a column of the tile, of rows of so many lanes. Words that a warp writes at once lie in banks of their own.
#[inline(always)]
fn word_at(lanes: u32, column: u32, word: u32) -> u32 {
    let word = (word + column / CHUNK * (32 / lanes)) % TILE_WORDS;
    shared::base() + 8 * COLUMNS + 4 * (column * TILE_WORDS + word)
}

/// The upper bits of those of four numbers of e4m3 that were not finite: NaN, and the largest number, to which infinities are rounded and no
/// value with a scale comes.
#[inline(always)]
fn wrong_of(word: u32) -> u32 {
    const NAN: u32 = 0x7f7f_7f7f;
    const MOST: u32 = 0x7e7e_7e7e;
    ((word & NAN) + (0x8080_8080 - MOST)) & 0x8080_8080
}

/// Notes which numbers of a column were not finite, of which each lane has four: see [`wrong_bits`](crate::layout::fp8::wrong_bits).
///
/// # Safety
/// Every lane of the warp makes the same call; the 16 bytes at `to` are writable by it alone.
#[inline(always)]
unsafe fn note_wrong(to: u64, word: u32) {
    let wrong = wrong_of(word);
    let mut bits = [0; 4];
    for byte in 0..4 {
        // SAFETY: the caller's promise.
        bits[byte] = unsafe { vote::ballot(wrong & 0x80 << (8 * byte) != 0) };
    }
    if special::lane() == 0 {
        // SAFETY: as above.
        unsafe { global::store_u32x4(to, bits) }
    }
}

/// Makes scales and means of a head's columns, of moments, and writes them for the kernel that multiplies, with descales of e4m3. What rounds takes the
/// place of the first part's moments: a factor, and what is added. As the factor is a power of two, to add behind it rounds as to subtract before.
///
/// # Safety
/// The conditions of [`round_values`]; all threads of the block make the same call.
#[inline(always)]
unsafe fn write_columns<E: Source, const W: u32>(params: &RoundValuesParams, head: u32) {
    // SAFETY: the launch has this many threads a block.
    let thread = unsafe { special::thread(32 * W) };
    let rows = transposed_rows(params.dim);
    let place = u64::from(head) * u64::from(rows) + u64::from(transposed_column(thread));
    let columns = params.columns + 8 * place;
    // SAFETY: one thread alone writes a number; all reach the barriers. A warp has waited for what blocks with smaller numbers write.
    unsafe {
        wait::<0>(params, head, thread);
        if thread < params.dim {
            let column = Column::of::<E>(params, head, thread);
            let descale = match E::IS_E4M3 {
                true => descale(&params.descale, [head / params.heads, head % params.heads]),
                false => 1.0,
            };
            global::store_f32x2(columns, [column.scale * descale, column.mean]);
            let [factor, shift] = rounding_at(params, head, thread);
            global::store_f32(factor, column.factor());
            global::store_f32(shift, -column.mean * column.factor());
        } else if thread < rows {
            global::store_f32x2(columns, [0.0; 2]);
        }
        barrier::block();
        if thread < 32 {
            global::count_once(counter_of(params, head));
        }
    }
}

/// Reads what rounds a head's columns to shared memory.
///
/// # Safety
/// The conditions of [`round_values`]; all threads of the block make the same call.
#[inline(always)]
unsafe fn read_columns<E: Source>(params: &RoundValuesParams, head: u32, thread: u32) {
    // SAFETY: one thread alone writes a number; all reach the barriers.
    unsafe {
        wait::<1>(params, head, thread);
        if thread < params.dim {
            let rounding = rounding_at(params, head, thread).map(|at| global::load_f32(at));
            shared::store_f32(of_column(thread), rounding[0]);
            shared::store_f32(of_column(thread) + 4, rounding[1]);
        }
        barrier::block();
    }
}

/// Addresses of a column's factor, and of what is added then.
#[inline(always)]
fn rounding_at(params: &RoundValuesParams, head: u32, column: u32) -> [u64; 2] {
    let first = moments_at(params, head, 0, column);
    [first, first + 4 * u64::from(params.dim)]
}

/// Waits for the moments of a head and, if `MORE` is 1, for its columns.
///
/// # Safety
/// The conditions of [`round_values`]; all threads of the block make the same call.
#[inline(always)]
unsafe fn wait<const MORE: u32>(params: &RoundValuesParams, head: u32, thread: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        if thread < 32 {
            global::wait_for_count(counter_of(params, head), params.parts + MORE);
        }
        barrier::block();
    }
}

/// The values of a head from a column on.
#[inline(always)]
pub fn values_of<E: Source>(params: &RoundValuesParams, head: u32, column: u32) -> Rows {
    let dim = if E::IS_E4M3 {
        params.row_dim
    } else {
        params.dim
    };
    Rows::new::<E>(&params.values, [params.heads, head], [column, dim])
}

/// A thread's units of a tile of 128 keys: four keys that are neighbours in a row of the rounded values, and eight columns.
struct Units {
    /// Lanes of a row.
    lanes: u32,
    head: u32,
    /// The first key.
    first: u32,
    /// The first column, and the values from it on.
    column: u32,
    values: Rows,
}

impl Units {
    /// How many all threads have.
    #[inline(always)]
    fn count(&self) -> u32 {
        self.lanes * FP8_BLOCK / 4
    }

    /// The keys of a word of a column of the tile.
    #[inline(always)]
    fn keys(&self, word: u32) -> [u32; 4] {
        let key = self.first + word / 4 * 16 + 2 * (word % 4);
        [key, key + 1, key + 8, key + 9]
    }

    /// The elements of a unit, of each key eight, and a word of all bits of keys that are seen. Behind the last key, and of keys that no
    /// query sees, elements are zeros.
    ///
    /// # Safety
    /// The values are readable.
    #[inline(always)]
    unsafe fn load<E: Source>(
        &self,
        params: &RoundValuesParams,
        unit: u32,
    ) -> ([E::Eight; 4], u32) {
        let keys = self.keys(unit / self.lanes);
        let (mut four, mut seen) = ([E::ZEROS; 4], 0);
        for i in 0..4 {
            let place = [self.head, keys[i]];
            let exists = unit < self.count() && keys[i] < params.keys && self.column < params.dim;
            // SAFETY: elements of the values.
            unsafe {
                if exists && is_seen(params.ranges, params.heads, place, params.keys) {
                    four[i] = self.values.load::<E>(keys[i]);
                    seen |= 0xff << (8 * i);
                }
            }
        }
        (four, seen)
    }
}

/// What a column has.
struct Column {
    /// 0 of e4m3, and if f32 does not hold it, or the distance of a number from it.
    mean: f32,
    scale: f32,
    /// Whether all numbers are the mean.
    is_constant: bool,
}

impl Column {
    /// What multiplies numbers: 0 if all are the mean, whose product may be too large.
    #[inline(always)]
    fn factor(&self) -> f32 {
        match self.is_constant {
            true => 0.0,
            false => inverse_of(self.scale),
        }
    }

    /// The column of all parts.
    ///
    /// # Safety
    /// The moments are readable.
    #[inline(always)]
    unsafe fn of<E: Source>(params: &RoundValuesParams, head: u32, column: u32) -> Self {
        let mut found = Moments::NONE;
        let mut part = 0;
        while part < params.parts {
            let words = [0, 1, 2, 3].map(|i| {
                // The last part once more, which is not added.
                let from = moments_at(params, head, (part + i).min(params.parts - 1), column);
                let next = 4 * u64::from(params.dim);
                // SAFETY: the caller's promise.
                [0, 1, 2, 3].map(|moment| unsafe { global::load_u32(from + moment * next) })
            });
            for i in 0..4 {
                if part + (i as u32) < params.parts {
                    found = found.add(Moments::of_words(words[i]));
                }
            }
            part += 4;
        }
        let spread = |mean: f32| (found.most - mean).max(mean - found.least).max(0.0);
        let mean = found.sum / found.count as f32;
        let is_held = !E::IS_E4M3 && is_finite(mean) && is_finite(spread(mean));
        let mean = if is_held { mean } else { 0.0 };
        Column {
            mean,
            scale: scale_of(spread(mean), VALUES_LOG2),
            is_constant: spread(mean) == 0.0,
        }
    }
}
