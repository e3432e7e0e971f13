//! Tiles of 8x8 elements: what the lanes of a warp hold of a matrix in a register, or in two of f32.
//!
//! Lane `4g + t` holds the elements `2t` and `2t + 1` of row `g`. A register of 8-bit elements has two tiles, a row of which
//! are the elements `4t` to `4t + 3` of four lanes.

use super::elements::Element;
use crate::nan::canonical_bits;
use crate::registers::{Row, map_row, row_of};
use std::hint::black_box;

/// Eight rows of eight elements.
pub(super) type Tile<T> = [[T; 8]; 8];

/// The f32 of two registers, the first one of which holds the even columns.
#[inline(always)]
pub(super) fn from_words(even: &Row<u32>, odd: &Row<u32>) -> Tile<f32> {
    let mut tile = Tile::default();
    for (g, row) in tile.iter_mut().enumerate() {
        *row = row_of(|column| f32::from_bits([even, odd][column % 2][4 * g + column / 2]));
    }
    tile
}

/// The two registers of a tile of results.
#[inline(always)]
pub(super) fn to_words(tile: &Tile<f32>) -> [Row<u32>; 2] {
    let (mut even, mut odd) = ([0; 32], [0; 32]);
    for (g, row) in tile.iter().enumerate() {
        for t in 0..4 {
            even[4 * g + t] = canonical_bits(row[2 * t]);
            odd[4 * g + t] = canonical_bits(row[2 * t + 1]);
        }
    }
    [even, odd]
}

/// Eight columns of the elements of a register: all of 16 bits, or of 8 bits the first or second (`part`) eight.
#[inline(always)]
pub(super) fn from_register<E: Element>(words: &Row<u32>, part: usize) -> Tile<u32> {
    let (per_lane, bits) = (4 / E::BYTES, 8 * E::BYTES);
    let mut tile = Tile::default();
    for (g, row) in tile.iter_mut().enumerate() {
        *row = row_of(|column| {
            let column = 8 * part + column;
            words[4 * g + column / per_lane] >> (bits * (column % per_lane))
                & u32::MAX >> (32 - bits)
        });
    }
    tile
}

/// [`from_register`], whose rows become columns.
#[inline(always)]
pub(super) fn from_register_transposed<E: Element>(words: &Row<u32>, part: usize) -> Tile<u32> {
    let (per_lane, bits) = (4 / E::BYTES, 8 * E::BYTES);
    let mut tile = Tile::default();
    for (t, rows) in tile.chunks_exact_mut(per_lane).enumerate() {
        let words: [u32; 8] = row_of(|g| words[4 * g + 8 * part / per_lane + t]);
        for (i, row) in rows.iter_mut().enumerate() {
            *row = map_row(&words, |word| word >> (bits * i) & u32::MAX >> (32 - bits));
        }
    }
    tile
}

/// A tile of elements as f32.
#[inline(always)]
pub(super) fn widened<E: Element>(tile: &Tile<u32>) -> Tile<f32> {
    let mut wide = Tile::default();
    for (wide, row) in wide.iter_mut().zip(tile) {
        *wide = map_row(row, E::widen);
    }
    wide
}

/// `sums += left * right` in order of `k`. The sums of eight rows at a time stay in the host's registers.
#[inline(always)]
pub(super) fn add_products<E: Element, const DEPTH: usize>(
    sums: &mut [Tile<f32>],
    left: &[[f32; DEPTH]],
    right: &[[f32; 8]; DEPTH],
) {
    // Rows in memory: a compiler that sees the registers of lanes behind them carries sums in that order, and shuffles them at
    // each step of bf16, a fifth of the time of tests of wide heads.
    let sums = black_box(sums);
    for (tile, left) in sums.iter_mut().zip(left.as_chunks::<8>().0) {
        let mut sums = *tile;
        for (k, right) in right.iter().enumerate() {
            for (sums, left) in sums.iter_mut().zip(left) {
                for (sum, right) in sums.iter_mut().zip(right) {
                    *sum = E::add_product(*sum, left[k], *right);
                }
            }
        }
        *tile = sums;
    }
    black_box(sums);
}
