//! Tiles of 16 rows, in shared memory and in registers.

use super::PART;
use crate::layout::fragment;
use crate::layout::rows::Strided;
use crate::ptx::{barrier, cp_async, shared, special};
use crate::tile::{Accumulator, Copier, Element, Operand, SharedTile};

/// Rows and columns of a tile.
pub const TILE: u32 = 16;

/// 16-column slices of the widest rows.
const SLICES: usize = 16;

/// The numbers of the block's tiles of q, k, v and d_o in shared memory.
pub const Q: u32 = 0;
pub const K: u32 = 1;
pub const V: u32 = 2;
pub const D_O: u32 = 3;

#[inline(always)]
pub fn tile(number: u32) -> SharedTile<SLICES> {
    SharedTile::new(shared::base()).skip(TILE * number)
}

#[inline(always)]
pub fn ds_tile() -> SharedTile<2> {
    SharedTile::new(tile(4).base)
}

/// The slice of a tile's columns that has slice `nt` of a part.
#[inline(always)]
pub fn slice(part: u32, nt: usize) -> usize {
    PART * part as usize + nt
}

/// Calls `f` with the row in the tile, the column and the value of each of the lane's elements in columns that exist.
#[inline(always)]
pub fn for_each_element(
    tiles: [[Accumulator; PART]; 1],
    part: u32,
    dim: u32,
    f: impl Fn(u32, u32, f32),
) {
    let lane = special::lane();
    for nt in 0..PART {
        for i in 0..8 {
            let (row, column) = fragment::accumulator(lane, i as u32);
            let column = 16 * slice(part, nt) as u32 + column;
            if column < dim {
                f(row, column, tiles[0][nt].0[i]);
            }
        }
    }
}

/// Loads 16 of `all` rows of a tensor into a tile.
///
/// # Safety
/// Every lane of the warp makes the same call; the rows are readable and aligned, and no lane uses the tile.
#[inline(always)]
pub unsafe fn load(rows: Strided, number: u32, first: u32, all: u32) {
    let copier = Copier::new(rows, special::lane(), 32);
    // SAFETY: the caller's promise.
    unsafe { copier.load(tile(number), first, TILE, all - first) }
}

/// The product of a tile's rows with another's.
///
/// # Safety
/// Both are written and visible. Every lane of the warp makes the same call.
#[inline(always)]
pub unsafe fn product<E: Element>(a: u32, b: u32, dim: u32) -> Accumulator {
    let mut product = Accumulator::ZERO;
    let lane = special::lane();
    let mut column = 0;
    while column < dim {
        let slice = (column / E::K) as usize;
        // SAFETY: the caller's promise.
        unsafe {
            let a: Operand = tile(a).a(lane, 0, slice);
            product.mma::<E>(a, tile(b).b(lane, 0, slice));
        }
        column += E::K;
    }
    product
}

/// Waits until the warp's copies are there.
///
/// # Safety
/// Every lane of the warp makes the same call.
#[inline(always)]
pub unsafe fn land() {
    // SAFETY: the caller's promise.
    unsafe {
        cp_async::commit();
        cp_async::wait::<0>();
        barrier::warp();
    }
}
