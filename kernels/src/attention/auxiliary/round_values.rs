//! Values, less the mean of each column, rounded to e4m3 and transposed.
//!
//! The first kernel finds the moments of parts of the keys: sums, least and largest numbers of each column. In the second one a block
//! takes 128 keys of a head. It makes mean and scale of each column, always in one order. Infinities and NaN become 0, and count for
//! neither; where the first kernel saw some, a block looks for them and notes which values they are. Keys that no query sees count for neither, too.
//!
//! Values of e4m3 keep their means: without them they would be rounded again. They are scaled, so that sums in f16 hold.

use super::source::{Rows, Source, is_finite, is_seen};
use crate::abi::{FP8_BLOCK, RoundValuesParams};
use crate::attention::workload::descales::descale;
use crate::layout::element::CHUNK;
use crate::layout::fp8::{
    VALUES_LOG2, inverse_of, row_lanes, scale_of, transposed_column, transposed_rows,
};
use crate::ptx::convert::e4m3;
use crate::ptx::{barrier, global, math, shared, special, vote};
use crate::tile::Element;
use core::hint::cold_path;

/// Columns that a block has room for.
const COLUMNS: u32 = 256;

/// Words of a column of a tile.
const TILE_WORDS: u32 = FP8_BLOCK / 4;

/// Loads of a thread that are on their way at once.
const AT_ONCE: usize = 8;

/// Finds the moments of the block's part of the keys, with `W` warps.
///
/// # Safety
/// Launched as [`RoundValuesParams`] and the kernel's row of the [catalog](crate::catalog) say, with readable values and writable moments.
#[inline(always)]
pub unsafe fn moments<E: Source, const W: u32>(params: &RoundValuesParams) {
    let (head, part) = (
        special::block() / params.parts,
        special::block() % params.parts,
    );
    // SAFETY: the launch has this many threads a block.
    let thread = unsafe { special::thread(32 * W) };
    let lanes = row_lanes(params.dim);
    let (lane, rows) = (thread % lanes, 32 * W / lanes);
    let column = CHUNK * lane;
    let keys = Keys {
        first: part * params.part_keys + thread / lanes,
        end: params.keys.min((part + 1) * params.part_keys),
        step: rows,
    };
    let values = values_of::<E>(params, head, column);
    let mut found = [Moments::NONE; 8];
    if keys.first < keys.end && column < params.dim {
        // SAFETY: elements of the values.
        unsafe {
            let load = |key| values.load::<E>(key);
            let is_seen = |key| is_seen(params.ranges, params.heads, [head, key], params.keys);
            let all = match params.ranges {
                0 => keys.moments::<E>(load),
                _ => None,
            };
            found = all.unwrap_or_else(|| {
                cold_path();
                keys.moments_of_finite::<E>(load, is_seen)
            });
        }
    }
    // Of each moment a row for each group of lanes, and a word for each column.
    let place = |moment: u32, row: u32, column: u32| {
        shared::base() + 4 * ((moment * rows + row) * CHUNK * lanes + column)
    };
    // SAFETY: all threads of the block reach the barrier; one thread alone writes a word.
    unsafe {
        for i in 0..8 {
            let column = CHUNK * lane + i as u32;
            let words = found[i].words();
            for moment in 0..4 {
                let to = place(moment as u32, thread / lanes, column);
                shared::store_u32(to, words[moment]);
            }
        }
        // Values and ranges were there before rows were rounded.
        barrier::launches();
        barrier::block();
        if thread < params.dim {
            let mut found = Moments::NONE;
            for row in 0..rows {
                let words = [0, 1, 2, 3].map(|moment| shared::load_u32(place(moment, row, thread)));
                found = found.add(Moments::of_words(words));
            }
            let to = moments_at(params, head, part, thread);
            let words = found.words();
            for moment in 0..4 {
                let to = to + 4 * moment as u64 * u64::from(params.dim);
                global::store_u32(to, words[moment]);
            }
        }
    }
}

/// The keys of a thread: every `step`th one from `first` on.
#[derive(Clone, Copy)]
struct Keys {
    first: u32,
    end: u32,
    step: u32,
}

impl Keys {
    /// The moments of eight columns; `None` if a sum is not finite, so that a number may not be. All keys are seen.
    #[inline(always)]
    fn moments<E: Source>(self, load: impl Fn(u32) -> E::Eight) -> Option<[Moments; 8]> {
        let mut sums = [0.0; 8];
        let [mut least, mut most] = [E::pairs(load(self.first)); 2];
        let mut first = self.first;
        let load_some = |first: u32| {
            let mut loaded = [E::ZEROS; AT_ONCE];
            for i in 0..AT_ONCE {
                let key = first + self.step * i as u32;
                if key < self.end {
                    loaded[i] = load(key);
                }
            }
            loaded
        };
        let mut loaded = load_some(first);
        while first < self.end {
            // On their way while others are added.
            let next = load_some(first + self.step * AT_ONCE as u32);
            for i in 0..AT_ONCE {
                if first + self.step * (i as u32) < self.end {
                    let pairs = E::pairs(loaded[i]);
                    let numbers = E::widen_pairs(pairs);
                    for column in 0..8 {
                        sums[column] += numbers[column];
                    }
                    for pair in 0..4 {
                        least[pair] = E::smaller(least[pair], pairs[pair]);
                        most[pair] = E::larger(most[pair], pairs[pair]);
                    }
                }
            }
            loaded = next;
            first += self.step * AT_ONCE as u32;
        }
        let [least, most] = [least, most].map(E::widen_pairs);
        let mut found = [Moments::NONE; 8];
        let mut are_finite = true;
        for column in 0..8 {
            are_finite &= is_finite(sums[column]);
            found[column] = Moments {
                sum: sums[column],
                least: least[column],
                most: most[column],
                count: (self.end - self.first).div_ceil(self.step),
                may_be_wrong: false,
            };
        }
        are_finite.then_some(found)
    }

    /// The moments of the finite numbers of keys that queries see.
    #[inline(always)]
    fn moments_of_finite<E: Source>(
        self,
        load: impl Fn(u32) -> E::Eight,
        is_seen: impl Fn(u32) -> bool,
    ) -> [Moments; 8] {
        let mut found = [Moments {
            may_be_wrong: true,
            ..Moments::NONE
        }; 8];
        let mut key = self.first;
        while key < self.end {
            if is_seen(key) {
                let numbers = E::widen(load(key));
                for column in 0..8 {
                    found[column].take(numbers[column]);
                }
            }
            key += self.step;
        }
        found
    }
}

/// Rounds the block's 128 keys, with `W` warps.
///
/// # Safety
/// Launched as [`RoundValuesParams`] and the kernel's row of the [catalog](crate::catalog) say, behind [`moments`], with
/// readable values, and writable rounded values and columns.
#[inline(always)]
pub unsafe fn round_values<E: Source, const W: u32>(params: &RoundValuesParams) {
    let tiles = params.keys.div_ceil(FP8_BLOCK);
    // Last values first: the L2 cache still has them, of the kernel before.
    let block = special::blocks() - 1 - special::block();
    let (head, tile) = (block / tiles, block % tiles);
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
        // On their way while means and scales are found, and read.
        let (mut four, mut seen) = units.load::<E>(params, thread);
        barrier::launches();
        let may_be_wrong = write_columns::<E, W>(params, head, tile, thread);
        let mut unit = thread;
        let mut wrong = 0;
        while unit < units.count() {
            let (next, next_seen) = units.load::<E>(params, unit + 32 * W);
            if column < params.dim {
                let numbers = four.map(E::widen);
                let mut words = [0; 8];
                for i in 0..8 {
                    let [factor, shift] = shared::load_f32x2(of_column(column + i as u32));
                    let [a, b, c, d] = numbers.map(|numbers| math::fma(numbers[i], factor, shift));
                    words[i] = e4m3(a, b, c, d) & seen;
                }
                if may_be_wrong {
                    cold_path();
                    wrong |= words.map(wrong_of).into_iter().fold(0, |a, b| a | b);
                }
                for i in 0..8 {
                    shared::store_u32(word_at(column + i as u32, unit / lanes), words[i]);
                }
            }
            (four, seen) = (next, next_seen);
            unit += 32 * W;
        }
        let is_wrong = barrier::block_any(wrong != 0);
        if thread == 0 {
            let to = params.wrong_blocks + 4 * u64::from(block);
            global::store_u32(to, is_wrong.into());
        }
        if is_wrong {
            cold_path();
            note_wrong::<W>(params, block, thread);
            barrier::block();
        }
        store_tile::<W>(params, [head, tile], thread);
    }
}

/// Address of what multiplies a column, and what is added then. Those of one place in eights are neighbours: a warp's lanes read them at once.
#[inline(always)]
fn of_column(column: u32) -> u32 {
    shared::base() + 8 * (column % CHUNK * (COLUMNS / CHUNK) + column / CHUNK)
}

/// Stores the tile: a thread stores 16 keys of a column at a time.
///
/// # Safety
/// The conditions of [`round_values`]; all threads of the block make the same call, behind a barrier.
#[inline(always)]
unsafe fn store_tile<const W: u32>(
    params: &RoundValuesParams,
    [head, tile]: [u32; 2],
    thread: u32,
) {
    const CHUNKS: u32 = FP8_BLOCK / 16;
    let keys = params.keys.next_multiple_of(16);
    let key = tile * FP8_BLOCK + thread % CHUNKS * 16;
    let rows = transposed_rows(params.dim);
    let mut row = thread / CHUNKS;
    while row < rows {
        let column = transposed_column(row);
        // SAFETY: the caller's promise: one thread alone writes 16 numbers, at a multiple of 16.
        unsafe {
            let words = match column < params.dim {
                true => shared::load_u32x4(word_at(column, thread % CHUNKS * 4)),
                false => [0; 4],
            };
            if key < keys {
                let row = u64::from(head) * u64::from(rows) + u64::from(row);
                let to = params.rounded + row * u64::from(keys) + u64::from(key);
                global::store_u32x4(to, words);
            }
        }
        row += 32 * W / CHUNKS;
    }
}

/// Address of four keys of a column of the tile. Chunks of 16 keys are permuted, so that words of neighbouring eights of columns lie in
/// other banks.
#[inline(always)]
fn word_at(column: u32, word: u32) -> u32 {
    let chunk = word / 4 ^ column / CHUNK % 8;
    shared::base() + 8 * COLUMNS + 4 * (column * TILE_WORDS + 4 * chunk + word % 4)
}

/// The upper bits of those of four numbers of e4m3 that were not finite: NaN, and the largest number, to which infinities are rounded and no
/// value with a scale comes.
#[inline(always)]
fn wrong_of(word: u32) -> u32 {
    const NAN: u32 = 0x7f7f_7f7f;
    const MOST: u32 = 0x7e7e_7e7e;
    ((word & NAN) + (0x8080_8080 - MOST)) & 0x8080_8080
}

/// Notes which numbers of the tile are not finite, and puts 0 in their place: see [`wrong_bits`](crate::layout::fp8::wrong_bits).
///
/// # Safety
/// The conditions of [`round_values`]; all threads of the block make the same call, behind a barrier.
#[inline(always)]
unsafe fn note_wrong<const W: u32>(params: &RoundValuesParams, block: u32, thread: u32) {
    let (lane, mut column) = (thread % 32, thread / 32);
    while column < params.dim {
        let place = word_at(column, lane);
        // SAFETY: the caller's promise: a warp alone has a column, and a lane alone a word.
        unsafe {
            let word = shared::load_u32(place);
            let wrong = wrong_of(word);
            let mut bits = [0; 4];
            for byte in 0..4 {
                bits[byte] = vote::ballot(wrong & 0x80 << (8 * byte) != 0);
            }
            if lane == 0 {
                let place = u64::from(block) * u64::from(params.dim) + u64::from(column);
                global::store_u32x4(params.wrong_values + 16 * place, bits);
            }
            shared::store_u32(place, word & !(wrong / 0x80 * 0xff));
        }
        column += W;
    }
}

/// Writes scales and means of the columns, to shared memory, and in a head's first block for the kernel that multiplies, with descales of
/// e4m3. Numbers are multiplied, and something is added: the factor is a power of two, so that to add behind it rounds as to subtract before.
/// Gives whether a number of the head may not be finite.
///
/// # Safety
/// The conditions of [`round_values`]; all threads of the block make the same call.
#[inline(always)]
unsafe fn write_columns<E: Source, const W: u32>(
    params: &RoundValuesParams,
    head: u32,
    tile: u32,
    thread: u32,
) -> bool {
    let rows = transposed_rows(params.dim);
    let mut may_be_wrong = false;
    let place = u64::from(head) * u64::from(rows) + u64::from(transposed_column(thread));
    let columns = params.columns + 8 * place;
    // SAFETY: one thread alone writes a number; all reach the barrier.
    unsafe {
        if thread < params.dim {
            let column = Column::of::<E>(params, head, thread);
            may_be_wrong = column.may_be_wrong;
            shared::store_f32(of_column(thread), column.factor());
            shared::store_f32(of_column(thread) + 4, -column.mean * column.factor());
            if tile == 0 {
                let descale = match E::IS_E4M3 {
                    true => descale(&params.descale, [head / params.heads, head % params.heads]),
                    false => 1.0,
                };
                global::store_f32x2(columns, [column.scale * descale, column.mean]);
            }
        } else if tile == 0 && thread < rows {
            global::store_f32x2(columns, [0.0; 2]);
        }
        barrier::block_any(may_be_wrong)
    }
}

/// The values of a head from a column on.
#[inline(always)]
fn values_of<E: Source>(params: &RoundValuesParams, head: u32, column: u32) -> Rows {
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

/// The moments of numbers.
#[derive(Clone, Copy)]
struct Moments {
    sum: f32,
    least: f32,
    most: f32,
    /// Keys that queries see, of all columns alike; below 2^31.
    count: u32,
    /// Whether numbers may be left out that are not finite.
    may_be_wrong: bool,
}

impl Moments {
    const NONE: Self = Moments {
        sum: 0.0,
        least: f32::INFINITY,
        most: f32::NEG_INFINITY,
        count: 0,
        may_be_wrong: false,
    };

    /// Takes in a number of a key that a query sees.
    #[inline(always)]
    fn take(&mut self, x: f32) {
        self.count += 1;
        if is_finite(x) {
            self.sum += x;
            self.least = self.least.min(x);
            self.most = self.most.max(x);
        }
    }

    /// The moments of these numbers and others.
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Moments {
            sum: self.sum + other.sum,
            least: self.least.min(other.least),
            most: self.most.max(other.most),
            count: self.count + other.count,
            may_be_wrong: self.may_be_wrong | other.may_be_wrong,
        }
    }

    #[inline(always)]
    fn words(self) -> [u32; 4] {
        let [sum, least, most] = [self.sum, self.least, self.most].map(f32::to_bits);
        [
            sum,
            least,
            most,
            self.count | u32::from(self.may_be_wrong) << 31,
        ]
    }

    #[inline(always)]
    fn of_words([sum, least, most, last]: [u32; 4]) -> Self {
        let [sum, least, most] = [sum, least, most].map(f32::from_bits);
        Moments {
            sum,
            least,
            most,
            count: last & (u32::MAX >> 1),
            may_be_wrong: last >> 31 != 0,
        }
    }
}

/// What a column has.
struct Column {
    /// 0 of e4m3, and if f32 does not hold it, or the distance of a number from it.
    mean: f32,
    scale: f32,
    /// Whether all numbers are the mean.
    is_constant: bool,
    /// Whether a number may not be finite.
    may_be_wrong: bool,
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
            may_be_wrong: found.may_be_wrong,
        }
    }
}

/// Address of the first moment of a part's column.
#[inline(always)]
fn moments_at(params: &RoundValuesParams, head: u32, part: u32, column: u32) -> u64 {
    let part = u64::from(head) * u64::from(params.parts) + u64::from(part);
    params.moments + 4 * (4 * part * u64::from(params.dim) + u64::from(column))
}
