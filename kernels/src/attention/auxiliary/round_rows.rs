//! Rows of q and k, rounded to e4m3.
//!
//! A block takes 128 rows of a head. Each row has a scale, or the block has one: a power of two, so that rounding to e4m3 is all that
//! changes numbers. Infinities and NaN become NaN, and count for no scale.
//!
//! Rows of e4m3 keep their digits, but for numbers that are 2^12 times smaller than the largest. What multiplies them goes into q's scales.

use super::source::{Rows, Source, is_seen, largest_of};
use crate::abi::{FP8_BLOCK, RoundRowsParams};
use crate::attention::workload::descales::descale;
use crate::layout::element::CHUNK;
use crate::layout::fp8::{ROW_THREADS, inverse_of, rotation_signs, row_lanes, scale_of};
use crate::ptx::convert::e4m3;
use crate::ptx::{barrier, global, math, shared, shuffle, special};
use crate::tile::registers::opaque;
use core::hint::cold_path;

/// Rounds the block's 128 rows, with `W` warps.
///
/// # Safety
/// Launched as [`RoundRowsParams`] and the kernel's row of the [catalog](crate::catalog) say, with readable rows, and writable rounded
/// rows and scales that do not overlap them.
#[inline(always)]
pub unsafe fn round_rows<E: Source, const W: u32>(params: &RoundRowsParams) {
    const { assert!(32 * W == ROW_THREADS) }
    // SAFETY: the caller's promise.
    unsafe {
        if params.counter != 0 && special::block() + special::thread(ROW_THREADS) == 0 {
            global::store_u32(params.counter, 0);
        }
        match row_lanes(params.dim) {
            _ if params.rotates != 0 => rotate_block::<E, W>(params),
            8 => round_block::<E, W, 2>(params),
            16 => round_block::<E, W, 4>(params),
            _ => round_block::<E, W, 8>(params),
        }
    }
}

/// Rounds the block's rows, of which each thread has eight elements of `TURNS` rows. All are on their way at once.
///
/// # Safety
/// The conditions of [`round_rows`]; a row has four lanes for each turn.
#[inline(always)]
unsafe fn round_block<E: Source, const W: u32, const TURNS: usize>(params: &RoundRowsParams) {
    // SAFETY: the caller's promise: all threads of the block make the same calls.
    unsafe {
        let block = Block::new::<E, W>(params);
        let hidden = block.hidden(TURNS as u32);
        let mut eight = [E::ZEROS; TURNS];
        for i in 0..TURNS {
            eight[i] = block.load::<E>(i as u32);
        }
        let mut largest = 0.0_f32;
        if params.shares != 0 {
            for i in 0..TURNS {
                let (numbers, of_turn) = E::of_numbers(eight[i]);
                eight[i] = numbers;
                if hidden >> i & 1 == 0 {
                    largest = largest.max(of_turn);
                }
            }
            largest = block.share::<W>(largest);
        }
        for i in 0..TURNS {
            if params.shares == 0 {
                (eight[i], largest) = E::of_numbers(eight[i]);
            }
            block.round(i as u32, E::widen(eight[i]), largest);
        }
    }
}

/// Rotates the block's rows, and rounds them. Rows are read once more where they share a scale: held, they would not leave the registers
/// that a rotation needs.
///
/// # Safety
/// The conditions of [`round_rows`].
#[inline(always)]
unsafe fn rotate_block<E: Source, const W: u32>(params: &RoundRowsParams) {
    // SAFETY: the caller's promise: all threads of the block make the same calls.
    unsafe {
        let block = Block::new::<E, W>(params);
        let turns = FP8_BLOCK / block.step;
        let hidden = block.hidden(turns);
        let numbers = |turn| rotated(E::widen(block.load::<E>(turn)), block.lane, block.lanes);
        let mut largest = 0.0_f32;
        if params.shares != 0 {
            let mut turn = 0;
            while turn < turns {
                // All lanes of a row rotate it.
                let of_turn = largest_of(numbers(turn));
                if hidden >> turn & 1 == 0 {
                    largest = largest.max(of_turn);
                }
                turn += 1;
            }
            largest = block.share::<W>(largest);
        }
        let mut turn = 0;
        while turn < turns {
            let numbers = numbers(turn);
            let of_turn = match params.shares {
                0 => largest_of(numbers),
                _ => largest,
            };
            block.round(turn, nan_for_infinity(numbers), of_turn);
            turn += 1;
        }
    }
}

/// A block's rows. A thread has eight elements of every `step`th one.
struct Block<'a> {
    params: &'a RoundRowsParams,
    thread: u32,
    head: u32,
    /// The block of rows in its head, and how many there are.
    tile: u32,
    tiles: u32,
    /// The thread's lane in a row.
    lane: u32,
    /// Lanes of a row.
    lanes: u32,
    step: u32,
    /// What q is multiplied by beyond its scale.
    factor: f32,
    /// The rows from the thread's column on.
    rows: Rows,
}

/// The functions share their condition: all threads of the block make the same calls.
impl<'a> Block<'a> {
    #[inline(always)]
    unsafe fn new<E: Source, const W: u32>(params: &'a RoundRowsParams) -> Self {
        let tiles = params.row_count.div_ceil(FP8_BLOCK);
        let (head, tile) = (special::block() / tiles, special::block() % tiles);
        // SAFETY: the launch has this many threads a block.
        let thread = unsafe { special::thread(32 * W) };
        let lanes = row_lanes(params.dim);
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
        Block {
            params,
            thread,
            head,
            tile,
            tiles,
            lane,
            lanes,
            step: 32 * W / lanes,
            factor,
            rows: Rows::new::<E>(
                &params.rows,
                [params.heads, head],
                [CHUNK * lane, params.dim],
            ),
        }
    }

    /// The thread's row of a turn, in its head.
    #[inline(always)]
    fn row(&self, turn: u32) -> u32 {
        self.tile * FP8_BLOCK + self.thread / self.lanes + self.step * turn
    }

    /// The thread's elements of a turn; zeros behind the rows.
    #[inline(always)]
    unsafe fn load<E: Source>(&self, turn: u32) -> E::Eight {
        let row = self.row(turn);
        match row < self.params.row_count && CHUNK * self.lane < self.params.dim {
            // SAFETY: elements of the rows.
            true => unsafe { self.rows.load::<E>(row) },
            false => E::ZEROS,
        }
    }

    /// In which of so many turns no query sees the thread's row, a bit each. What such rows become does not matter, for their scores are
    /// hidden, but they count for no scale.
    #[inline(always)]
    unsafe fn hidden(&self, turns: u32) -> u32 {
        let params = self.params;
        let mut hidden = 0;
        if params.ranges != 0 {
            cold_path();
            let mut turn = 0;
            while turn < turns {
                let row = self.row(turn).min(params.row_count - 1);
                // SAFETY: the row exists.
                let is_seen = unsafe {
                    is_seen(
                        params.ranges,
                        params.heads,
                        [self.head, row],
                        params.row_count,
                    )
                };
                hidden |= if is_seen { 0 } else { 1 << turn };
                // Opaque: the loop stays one, 4 KB of PTX less.
                turn = opaque(turn + 1);
            }
        }
        hidden
    }

    /// The largest number of all rows; the block's scale is written.
    #[inline(always)]
    unsafe fn share<const W: u32>(&self, largest: f32) -> f32 {
        // SAFETY: all threads make this call; one writes.
        unsafe {
            let largest = of_block::<W>(largest, self.thread);
            if self.thread == 0 {
                let place = u64::from(self.head) * u64::from(self.tiles) + u64::from(self.tile);
                let scale = scale_of(largest, self.params.most_log2);
                global::store_f32(self.params.scales + 4 * place, scale);
            }
            largest
        }
    }

    /// Rounds the numbers of a turn, none infinite, by the scale of what is `largest` in the block, or of these in the row.
    #[inline(always)]
    unsafe fn round(&self, turn: u32, numbers: [f32; 8], largest: f32) {
        let (params, row) = (self.params, self.row(turn));
        let shares = params.shares != 0;
        // SAFETY: all lanes of a row make this call; one thread alone writes a number.
        unsafe {
            let largest = match shares {
                true => largest,
                false => of_row(largest, self.lanes),
            };
            let scale = scale_of(largest, params.most_log2);
            let place = u64::from(self.head) * u64::from(params.row_count) + u64::from(row);
            if !shares && self.lane == 0 && row < params.row_count {
                global::store_f32(params.scales + 4 * place, scale * self.factor.abs());
            }
            let column = CHUNK * self.lane;
            if row < params.row_count && column < params.row_bytes {
                let is_negative = (params.negates != 0) != (self.factor < 0.0);
                let inverse = match is_negative {
                    true => -inverse_of(scale),
                    false => inverse_of(scale),
                };
                // A factor of NaN is one of the row.
                let inverse = math::fma(self.factor, 0.0, inverse);
                let place = place * u64::from(params.row_bytes) + u64::from(column);
                let rounded = four_and_four(numbers.map(|x| x * inverse));
                global::store_u32x2(params.rounded + place, rounded);
            }
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

/// The largest number of all threads, through a word for each warp.
///
/// # Safety
/// Every thread of the block makes the same call, once.
#[inline(always)]
unsafe fn of_block<const W: u32>(number: f32, thread: u32) -> f32 {
    let words = shared::base();
    // SAFETY: the caller's promise; the launch has these words.
    unsafe {
        let number = shuffle::reduce::<32>(number, f32::max);
        if thread.is_multiple_of(32) {
            shared::store_f32(words + thread / 8, number);
        }
        barrier::block();
        let mut largest = 0.0_f32;
        for warp in 0..W {
            largest = largest.max(shared::load_f32(words + 4 * warp));
        }
        largest
    }
}
