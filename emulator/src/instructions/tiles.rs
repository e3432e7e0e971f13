//! Tiles of 8x8 elements: what the lanes of a warp hold of a matrix in a register, or in two of f32.
//!
//! Lane `4g + t` holds the elements `2t` and `2t + 1` of row `g`.

use super::elements::Element;
use super::float::canonical_bits;
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

/// The elements of 16 bits of a register.
#[inline(always)]
pub(super) fn from_pairs(pairs: &Row<u32>) -> Tile<u32> {
    let mut tile = Tile::default();
    for (g, row) in tile.iter_mut().enumerate() {
        *row = row_of(|column| pairs[4 * g + column / 2] >> (16 * (column % 2)) & 0xffff);
    }
    tile
}

/// The elements of 16 bits of a register, whose rows become columns.
#[inline(always)]
pub(super) fn from_pairs_transposed(pairs: &Row<u32>) -> Tile<u32> {
    let mut tile = Tile::default();
    for (t, rows) in tile.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        let pairs: [u32; 8] = row_of(|g| pairs[4 * g + t]);
        *rows = [
            pairs.map(|pair| pair & 0xffff),
            pairs.map(|pair| pair >> 16),
        ];
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

/// `sums += left * right` in order of `k`, where `left` has `right.len()` columns or more. The sums of eight rows at a time
/// stay in the host's registers.
#[inline(always)]
pub(super) fn add_products<E: Element>(
    sums: &mut [Tile<f32>],
    left: &[[f32; 16]],
    right: &[[f32; 8]],
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
