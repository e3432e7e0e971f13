//! Rows of q and k, rounded to e4m3.
//!
//! A block takes 128 rows of a head. Each row has a scale, or the block has one: a power of two, so that rounding to e4m3 is all that
//! changes numbers. Infinities and NaN become NaN, and count for no scale.

use crate::abi::{FP8_BLOCK, RoundRowsParams, TensorRef};
use crate::layout::element::{self, CHUNK};
use crate::layout::fp8::{ROUND_THREADS, inverse_of, row_lanes, scale_of};
use crate::ptx::convert::e4m3;
use crate::ptx::{barrier, global, math, shared, shuffle, special};
use crate::tile::Element;

/// Rounds the block's 128 rows, with `W` warps.
///
/// # Safety
/// Launched as [`RoundRowsParams`] and the kernel's row of the [catalog](crate::catalog) say, with readable rows, and writable rounded
/// rows and scales that do not overlap them.
#[inline(always)]
pub unsafe fn round_rows<E: Element, const W: u32>(params: &RoundRowsParams) {
    const { assert!(32 * W == ROUND_THREADS) }
    // SAFETY: the caller's promise.
    unsafe {
        match row_lanes(params.dim) {
            8 => round_block::<E, W, 4>(params),
            16 => round_block::<E, W, 8>(params),
            _ => round_block::<E, W, 16>(params),
        }
    }
}

/// Rounds the block's rows, of which each thread has eight elements of `TURNS` rows. All are on their way at once.
///
/// # Safety
/// The conditions of [`round_rows`]; a row has two lanes for each turn.
#[inline(always)]
unsafe fn round_block<E: Element, const W: u32, const TURNS: usize>(params: &RoundRowsParams) {
    let tiles = params.row_count.div_ceil(FP8_BLOCK);
    let (head, tile) = (special::block() / tiles, special::block() % tiles);
    // SAFETY: the launch has this many threads a block.
    let thread = unsafe { special::thread(32 * W) };
    let lanes = 2 * TURNS as u32;
    let (lane, step) = (thread % lanes, 32 * W / lanes);
    let (first, column) = (tile * FP8_BLOCK + thread / lanes, CHUNK * lane);
    let mut pairs = [[0; 4]; TURNS];
    for i in 0..TURNS {
        let row = first + step * i as u32;
        if row < params.row_count && column < params.dim {
            // SAFETY: an element of the rows.
            pairs[i] =
                unsafe { global::load_u32x4(at(&params.rows, params.heads, head, row, column)) };
        }
    }
    // SAFETY: all threads of the block make the same calls; one thread alone writes a number.
    unsafe {
        let mut largest = 0.0_f32;
        if params.shares != 0 {
            for i in 0..TURNS {
                largest = largest.max(largest_of(widen::<E>(pairs[i])));
            }
            largest = of_block::<W>(largest, thread);
            if thread == 0 {
                let place = u64::from(head) * u64::from(tiles) + u64::from(tile);
                let scale = scale_of(largest, params.most_log2);
                global::store_f32(params.scales + 4 * place, scale);
            }
        }
        for i in 0..TURNS {
            let numbers = widen::<E>(pairs[i]);
            if params.shares == 0 {
                largest = of_row(largest_of(numbers), lanes);
            }
            let scale = scale_of(largest, params.most_log2);
            let row = first + step * i as u32;
            let place = u64::from(head) * u64::from(params.row_count) + u64::from(row);
            if params.shares == 0 && lane == 0 && row < params.row_count {
                global::store_f32(params.scales + 4 * place, scale);
            }
            let row_bytes = params.dim.next_multiple_of(16);
            if row < params.row_count && column < row_bytes {
                let inverse = inverse_of(scale);
                let factor = if params.negates != 0 {
                    -inverse
                } else {
                    inverse
                };
                let place = place * u64::from(row_bytes) + u64::from(column);
                global::store_u32x2(params.rounded + place, rounded(numbers, factor));
            }
        }
    }
}

/// Eight elements as f32.
#[inline(always)]
pub fn widen<E: Element>(pairs: [u32; 4]) -> [f32; 8] {
    let mut numbers = [0.0; 8];
    for i in 0..8 {
        numbers[i] = E::widen((pairs[i / 2] >> (16 * (i % 2))) as u16);
    }
    numbers
}

/// Whether a number is finite.
#[inline(always)]
pub fn is_finite(x: f32) -> bool {
    x.abs() <= f32::MAX
}

/// The largest magnitude of finite numbers.
#[inline(always)]
fn largest_of(numbers: [f32; 8]) -> f32 {
    let mut largest = 0.0_f32;
    for i in 0..8 {
        let magnitude = numbers[i].abs();
        largest = largest.max(if is_finite(magnitude) { magnitude } else { 0.0 });
    }
    largest
}

/// Eight numbers times a factor, as e4m3. What is not finite becomes NaN, which rounding would make 448.
#[inline(always)]
fn rounded(numbers: [f32; 8], factor: f32) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = numbers.map(|x| math::fma(x, factor, x - x));
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

/// Address of an element of a tensor, of which each entry has so many heads; `head` counts over all entries.
#[inline(always)]
pub fn at(tensor: &TensorRef, heads: u32, head: u32, row: u32, column: u32) -> u64 {
    let (batch, head) = (head / heads, head % heads);
    let offset = i64::from(batch) * tensor.batch_stride
        + i64::from(head) * tensor.head_stride
        + i64::from(row) * tensor.row_stride
        + i64::from(column);
    element::at(tensor.address, offset)
}
