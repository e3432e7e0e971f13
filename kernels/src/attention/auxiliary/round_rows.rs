//! Rows of q and k, rounded to e4m3.
//!
//! A tile has 128 rows of a head. Each row has a scale, or the tile has one: a power of two, so that rounding to e4m3 is all that
//! changes numbers. Infinities and NaN become NaN, and count for no scale.
//!
//! A block takes one tile or more, so that each thread has elements of eight rows, whatever the dim: fewer rows leave more instructions than
//! memory has time for. Of e4m3 it has four, for addresses take more registers.
//!
//! Rows of e4m3 keep their digits, but for numbers that are 2^12 times smaller than the largest. What multiplies them goes into q's scales.

use super::source::{Rows, Source, is_seen, largest_of};
use crate::abi::{FP8_BLOCK, RoundRowsParams};
use crate::attention::workload::descales::descale;
use crate::layout::element::CHUNK;
use crate::layout::fp8::{ROW_PIECES, inverse_of, rotation_signs, row_lanes, row_tiles, scale_of};
use crate::ptx::convert::e4m3;
use crate::ptx::{barrier, global, math, shared, shuffle, special};
use crate::tile::registers::opaque;
use core::hint::cold_path;

/// Rounds the block's tiles, with `W` warps.
///
/// # Safety
/// Launched as [`RoundRowsParams`] and the kernel's row of the [catalog](crate::catalog) say, with readable rows, and writable rounded
/// rows and scales that do not overlap them.
#[inline(always)]
pub unsafe fn round_rows<E: Source, const W: u32>(params: &RoundRowsParams) {
    const { assert!(W == 16 || W == 32) }
    // SAFETY: the caller's promise.
    unsafe {
        match W {
            16 => round_tiles::<E, 8>(params),
            _ => round_tiles::<E, 4>(params),
        }
    }
}

/// Rounds the block's tiles, where each thread has elements of `TURNS` rows.
///
/// # Safety
/// The conditions of [`round_rows`].
#[inline(always)]
unsafe fn round_tiles<E: Source, const TURNS: usize>(params: &RoundRowsParams) {
    // SAFETY: the caller's promise.
    unsafe {
        let tile = Tile::<TURNS>::new::<E>(params);
        if params.counter != 0 && special::block() + tile.thread == 0 {
            global::store_u32(params.counter, 0);
        }
        match params.rotates {
            0 => tile.round::<E>(),
            _ => tile.rotate::<E>(),
        }
    }
}

/// 128 rows of a head. A thread has eight elements of every `step`th one, `TURNS` in all.
struct Tile<'a, const TURNS: usize> {
    params: &'a RoundRowsParams,
    thread: u32,
    head: u32,
    /// Its number in its head, and how many there are.
    number: u32,
    count: u32,
    /// The thread's lane in a row.
    lane: u32,
    /// Lanes of a row.
    lanes: u32,
    step: u32,
    /// The thread's first row, and how many rows of the head are left from it on.
    row: u32,
    left: u32,
    /// What q is multiplied by beyond its scale.
    factor: f32,
    /// The thread's rows, from its column on.
    rows: Rows,
}

/// The functions share their condition: all threads of the block make the same calls.
impl<'a, const TURNS: usize> Tile<'a, TURNS> {
    /// The thread's tile. Behind the last one there are no rows.
    #[inline(always)]
    unsafe fn new<E: Source>(params: &'a RoundRowsParams) -> Self {
        // SAFETY: the launch has this many threads a block.
        let thread = unsafe { special::thread(ROW_PIECES / TURNS as u32) };
        let lanes = row_lanes(params.dim);
        let step = FP8_BLOCK / TURNS as u32;
        let of_block = thread / (step * lanes);
        let tile = special::block() * row_tiles(params.dim) + of_block;
        let count = params.row_count.div_ceil(FP8_BLOCK);
        let exists = tile < params.tiles;
        let tile = if exists { tile } else { 0 };
        let (head, number) = (tile / count, tile % count);
        // The rotation takes a power of two out of both q and k.
        let width = match params.rotates != 0 && params.shares == 0 {
            true => (CHUNK * lanes) as f32,
            false => 1.0,
        };
        // SAFETY: the caller's promise.
        let factor = match E::IS_E4M3 {
            true => unsafe { width * descale_of(params, head) },
            false => width,
        };
        let lane = thread % lanes;
        let row = number * FP8_BLOCK + thread / lanes % step;
        let left = params.row_count.saturating_sub(row);
        Tile {
            params,
            thread,
            head,
            number,
            count,
            lane,
            lanes,
            step,
            row,
            left: if exists { left } else { 0 },
            factor,
            rows: Rows::new::<E>(
                &params.rows,
                [params.heads, head],
                [CHUNK * lane, params.dim],
            )
            .every(row, step),
        }
    }

    /// Whether the head has the thread's row of a turn.
    #[inline(always)]
    fn has(&self, turn: u32) -> bool {
        self.step * turn < self.left
    }

    /// The thread's elements of a turn; zeros behind the rows.
    #[inline(always)]
    unsafe fn load<E: Source>(&self, turn: u32) -> E::Eight {
        match self.has(turn) && CHUNK * self.lane < self.params.dim {
            // SAFETY: elements of the rows.
            true => unsafe { self.rows.load::<E>(turn) },
            false => E::ZEROS,
        }
    }

    /// Rounds the rows. All are on their way at once.
    #[inline(always)]
    unsafe fn round<E: Source>(&self) {
        // SAFETY: the condition of all functions here.
        unsafe {
            let mut eight = [E::ZEROS; TURNS];
            for i in 0..TURNS {
                eight[i] = self.load::<E>(i as u32);
            }
            if self.params.shares == 0 {
                for i in 0..TURNS {
                    let mut row = [eight[i]];
                    let largest = E::numbers(&mut row);
                    let inverse = self.scale_row(i as u32, largest);
                    self.store(i as u32, E::widen(row[0]), inverse);
                }
                return;
            }
            let hidden = self.hidden();
            if hidden != 0 {
                cold_path();
                for i in 0..TURNS {
                    if hidden >> i & 1 != 0 {
                        eight[i] = E::ZEROS;
                    }
                }
            }
            let largest = E::numbers(&mut eight);
            let inverse = self.scale_tile(largest);
            for i in 0..TURNS {
                self.store(i as u32, E::widen(eight[i]), inverse);
            }
        }
    }

    /// Rotates the rows, and rounds them. Rows are read once more where they share a scale: held, they would not leave the registers that a
    /// rotation needs.
    #[inline(always)]
    unsafe fn rotate<E: Source>(&self) {
        // SAFETY: the condition of all functions here.
        unsafe {
            let numbers = |turn| rotated(E::widen(self.load::<E>(turn)), self.lane, self.lanes);
            let shares = self.params.shares != 0;
            let mut inverse = 0.0;
            if shares {
                let hidden = self.hidden();
                let (mut turn, mut largest) = (0, 0.0_f32);
                while turn < TURNS as u32 {
                    // All lanes of a row rotate it.
                    let of_turn = largest_of(numbers(turn));
                    if hidden >> turn & 1 == 0 {
                        largest = largest.max(of_turn);
                    }
                    turn = opaque(turn + 1);
                }
                inverse = self.scale_tile(largest);
            }
            let mut turn = 0;
            while turn < TURNS as u32 {
                let numbers = numbers(turn);
                if !shares {
                    inverse = self.scale_row(turn, largest_of(numbers));
                }
                self.store(turn, nan_for_infinity(numbers), inverse);
                turn = opaque(turn + 1);
            }
        }
    }

    /// In which turns no query sees the thread's row, a bit each. What such rows become does not matter, for their scores are
    /// hidden, but they count for no scale.
    #[inline(always)]
    unsafe fn hidden(&self) -> u32 {
        let params = self.params;
        let mut hidden = 0;
        if params.ranges != 0 {
            cold_path();
            let mut turn = 0;
            while turn < TURNS as u32 {
                let row = (self.row + self.step * turn).min(params.row_count - 1);
                let place = [self.head, row];
                // SAFETY: the row exists.
                let is_seen =
                    unsafe { is_seen(params.ranges, params.heads, place, params.row_count) };
                hidden |= if is_seen { 0 } else { 1 << turn };
                // Opaque: the loop stays one, 4 KB of PTX less.
                turn = opaque(turn + 1);
            }
        }
        hidden
    }

    /// Writes the tile's scale. Gives what numbers are multiplied by.
    #[inline(always)]
    unsafe fn scale_tile(&self, largest: f32) -> f32 {
        let warps = self.step * self.lanes / 32;
        // SAFETY: all threads make this call; one of a tile writes.
        unsafe {
            let largest = of_tile(largest, warps, self.thread);
            let scale = scale_of(largest, self.params.most_log2);
            if self.thread.is_multiple_of(32 * warps) && self.left > 0 {
                let place = u64::from(self.head) * u64::from(self.count) + u64::from(self.number);
                global::store_f32(self.params.scales + 4 * place, scale);
            }
            inverse_of(scale)
        }
    }

    /// Writes the scale of a turn's row. Gives what numbers are multiplied by.
    #[inline(always)]
    unsafe fn scale_row(&self, turn: u32, largest: f32) -> f32 {
        // SAFETY: all lanes of a row make this call; one of them writes.
        unsafe {
            let scale = scale_of(of_row(largest, self.lanes), self.params.most_log2);
            if self.lane == 0 && self.has(turn) {
                let to = self.params.scales + 4 * self.place(turn);
                global::store_f32(to, scale * self.factor.abs());
            }
            let is_negative = (self.params.negates != 0) != (self.factor < 0.0);
            let inverse = match is_negative {
                true => -inverse_of(scale),
                false => inverse_of(scale),
            };
            // A factor of NaN is one of the row.
            math::fma(self.factor, 0.0, inverse)
        }
    }

    /// The number of a turn's row among those of all heads.
    #[inline(always)]
    fn place(&self, turn: u32) -> u64 {
        let first = u64::from(self.head) * u64::from(self.params.row_count);
        first + u64::from(self.row) + u64::from(self.step * turn)
    }

    /// Stores the numbers of a turn, none infinite, times `inverse`.
    #[inline(always)]
    unsafe fn store(&self, turn: u32, numbers: [f32; 8], inverse: f32) {
        let (params, column) = (self.params, CHUNK * self.lane);
        if self.has(turn) && column < params.row_bytes {
            let first = self.place(0) * u64::from(params.row_bytes) + u64::from(column);
            let place = first + u64::from(turn * self.step * params.row_bytes);
            let rounded = four_and_four(numbers.map(|x| x * inverse));
            // SAFETY: one thread alone writes a number.
            unsafe { global::store_u32x2(params.rounded + place, rounded) };
        }
    }
}

/// What rows of e4m3 of a query head, and the keys that they meet, are multiplied by.
///
/// # Safety
/// The descales are readable.
#[inline(always)]
unsafe fn descale_of(params: &RoundRowsParams, head: u32) -> f32 {
    let [q, k] = &params.descales;
    let of_kv_head = [head / params.heads, head % params.heads / params.group];
    // SAFETY: the caller's promise.
    unsafe { descale(q, of_kv_head) * descale(k, of_kv_head) }
}

/// A row's numbers, of which each lane has eight, rotated: the signs of some change, and a Hadamard matrix divided by their count multiplies
/// them. What is not finite makes the row NaN.
///
/// # Safety
/// Every lane of the warp makes the same call.
#[inline(always)]
unsafe fn rotated(mut numbers: [f32; 8], lane: u32, lanes: u32) -> [f32; 8] {
    let share = 1.0 / (CHUNK * lanes) as f32;
    let signs = rotation_signs(lane);
    for i in 0..8 {
        let number = numbers[i] * share;
        numbers[i] = if signs >> i & 1 != 0 { -number } else { number };
    }
    for log2 in 0..3 {
        let step = 1 << log2;
        for i in 0..8 {
            if i & step == 0 {
                let (a, b) = (numbers[i], numbers[i + step]);
                (numbers[i], numbers[i + step]) = (a + b, a - b);
            }
        }
    }
    // SAFETY: the caller's promise.
    unsafe {
        numbers = exchanged::<1>(numbers, lane);
        numbers = exchanged::<2>(numbers, lane);
        numbers = exchanged::<4>(numbers, lane);
        if lanes > 8 {
            numbers = exchanged::<8>(numbers, lane);
        }
        if lanes > 16 {
            numbers = exchanged::<16>(numbers, lane);
        }
    }
    numbers
}

/// Sums of the numbers of two lanes, or their differences in the upper one.
///
/// # Safety
/// Every lane of the warp makes the same call.
#[inline(always)]
unsafe fn exchanged<const STEP: u32>(mut numbers: [f32; 8], lane: u32) -> [f32; 8] {
    for i in 0..8 {
        // SAFETY: the caller's promise.
        let other = unsafe { shuffle::xor::<STEP>(numbers[i]) };
        numbers[i] = match lane & STEP {
            0 => numbers[i] + other,
            _ => other - numbers[i],
        };
    }
    numbers
}

/// The numbers, with NaN for infinities, which rounding would make 448.
#[inline(always)]
fn nan_for_infinity(numbers: [f32; 8]) -> [f32; 8] {
    numbers.map(|x| math::fma(x - x, 1.0, x))
}

/// Eight numbers as e4m3.
#[inline(always)]
fn four_and_four([a, b, c, d, e, f, g, h]: [f32; 8]) -> [u32; 2] {
    [e4m3(a, b, c, d), e4m3(e, f, g, h)]
}

/// The largest number of a row's lanes.
///
/// # Safety
/// Every lane of the warp makes the same call.
#[inline(always)]
unsafe fn of_row(number: f32, lanes: u32) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        let mut number = shuffle::reduce::<4>(number, f32::max);
        number = number.max(shuffle::xor::<4>(number));
        if lanes > 8 {
            number = number.max(shuffle::xor::<8>(number));
        }
        if lanes > 16 {
            number = number.max(shuffle::xor::<16>(number));
        }
        number
    }
}

/// The largest number of a tile's threads, so many warps, through a word for each.
///
/// # Safety
/// Every thread of the block makes the same call, once.
#[inline(always)]
unsafe fn of_tile(number: f32, warps: u32, thread: u32) -> f32 {
    let (words, warp) = (shared::base(), thread / 32);
    // SAFETY: the caller's promise; the launch has these words.
    unsafe {
        let number = shuffle::reduce::<32>(number, f32::max);
        if thread.is_multiple_of(32) {
            shared::store_f32(words + 4 * warp, number);
        }
        barrier::block();
        let of_tile = warp / warps * warps + thread % warps;
        // Lanes behind read some again.
        shuffle::reduce::<32>(shared::load_f32(words + 4 * of_tile), f32::max)
    }
}
