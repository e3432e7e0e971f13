//! Operations on all tiles of a warp at once: S, P and O are `[[tile; NT]; MT]`, `MT` tiles of 16 rows by `NT` tiles of
//! 16 columns.
//!
//! Each lane holds two rows of a 16-row tile, `g = lane / 4` and `g + 8`: a number for each row is `[[number; 2]; MT]`.

use super::{Accumulator, Arrangement, Element, Operand, SharedTile};
use crate::layout::interval::Interval;
use crate::ptx::{barrier, shuffle, special};

/// Calls `f` with the number of each of the lane's rows.
#[inline(always)]
pub fn map_rows<T: Copy + Default, const MT: usize>(f: impl Fn(u32) -> T) -> [[T; 2]; MT] {
    let lane = special::lane();
    let mut values = [[T::default(); 2]; MT];
    for mt in 0..MT {
        for r in 0..2 {
            values[mt][r] = f(16 * mt as u32 + lane / 4 + 8 * r as u32);
        }
    }
    values
}

/// The keys that each row sees, counted from key `origin`.
#[inline(always)]
pub fn counted_from<K: Interval, const MT: usize>(keys: [[K; 2]; MT], origin: u32) -> [[K; 2]; MT] {
    keys.map(|rows| rows.map(|keys| keys.counted_from(origin as i32)))
}

/// Puts -inf in the place of scores of keys that the row does not see; keys count from the first column.
#[inline(always)]
pub fn mask<const MT: usize, const NT: usize>(
    s: &mut [[Accumulator; NT]; MT],
    keys: [[impl Interval; 2]; MT],
) {
    let lane = special::lane();
    for mt in 0..MT {
        for nt in 0..NT {
            let keys = keys[mt].map(|keys| keys.counted_from(16 * nt as i32));
            s[mt][nt].mask_columns(lane, keys);
        }
    }
}

/// Puts 0 in the place of elements in columns that the row lacks; columns count from the first one.
#[inline(always)]
pub fn zero<const MT: usize, const NT: usize>(
    x: &mut [[Accumulator; NT]; MT],
    columns: [[impl Interval; 2]; MT],
) {
    let lane = special::lane();
    for mt in 0..MT {
        for nt in 0..NT {
            let columns = columns[mt].map(|columns| columns.counted_from(16 * nt as i32));
            x[mt][nt].zero_columns(lane, columns);
        }
    }
}

/// Multiplies the rows of a row of tiles: row `g` by `factors[0]`, row `g + 8` by `factors[1]`.
#[inline(always)]
pub fn scale_rows<const NT: usize>(tiles: &mut [Accumulator; NT], factors: [f32; 2]) {
    for nt in 0..NT {
        tiles[nt].scale_rows(factors);
    }
}

/// All tiles rounded to `E`, as A operands.
#[inline(always)]
pub fn to_operands<E: Element, const MT: usize, const NT: usize>(
    tiles: [[Accumulator; NT]; MT],
) -> [[Operand; NT]; MT] {
    tiles.map(|row| row.map(Accumulator::to_operand::<E>))
}

/// 8 elements of row `g` (`r = 0`) or `g + 8` (`r = 1`) of two tiles side by side, rounded to `E`: the four lanes of a
/// row exchange pairs, and lane `i` of them gets columns `8 i` to `8 i + 7`.
///
/// # Safety
/// Every lane of the warp makes the same call; `lane` is its own.
#[inline(always)]
pub unsafe fn row_chunk<E: Element>(tiles: [Accumulator; 2], r: usize, lane: u32) -> [u32; 4] {
    let mut pairs = [0; 4];
    for i in 0..2 {
        let [a, b, c, d] = tiles[i].row(r);
        (pairs[2 * i], pairs[2 * i + 1]) = (E::pack(a, b), E::pack(c, d));
    }
    // SAFETY: the caller's promise.
    unsafe { shuffle::transpose::<1, 2>(pairs, lane) }
}

/// Replaces the `MT` times 16 rows of a shared tile by what `f` returns for each 16x16 tile.
///
/// # Safety
/// Every lane of the warp makes the same call, the tile is written and visible, and no other warp uses these rows.
#[inline(always)]
pub unsafe fn map_shared<const MT: usize, const DT: usize, A: Arrangement>(
    tile: SharedTile<DT, A>,
    f: impl Fn(Operand) -> Operand,
) {
    let lane = special::lane();
    for mt in 0..MT {
        for dt in 0..DT {
            // SAFETY: the caller's promise. All lanes have read the 16x16 tile before one writes it.
            unsafe {
                let operand = f(tile.a(lane, mt, dt));
                barrier::warp();
                tile.set(lane, mt, dt, operand);
            }
        }
    }
}
