//! Hopper's tiles: a warpgroup searches them, and each warp multiplies by itself, by `mma.sync`.

use super::multiply_guarded;
use crate::attention::options::mask::Interval;
use crate::layout::descriptor::Panels;
use crate::layout::{element, fragment};
use crate::ptx::{barrier, ldmatrix, shared, special, vote};
use crate::tile::registers::{fence, opaque};
use crate::tile::{Accumulator, Element, Operand};
use core::array;

/// Whether a tile of `16 * NT` rows and `16 * DT` columns holds an infinity or a NaN: the same answer for the whole
/// warpgroup, which shares barrier `number` and where the thread is number `thread`.
///
/// # Safety
/// Every lane of the warpgroup makes the same call, with the tile landed.
#[inline(always)]
pub unsafe fn has_non_finite<E: Element, const DT: usize, const NT: usize>(
    tile: Panels,
    thread: u32,
    number: u32,
) -> bool {
    // 16-byte chunks of a thread, a few of which are read at once.
    let chunks = NT * DT / 4;
    let at_once = if chunks.is_multiple_of(4) { 4 } else { 1 };
    let mut found = 0;
    // SAFETY: the caller's promise.
    unsafe {
        // Opaque: unrolled, it spills 28 bytes in latent attention.
        let (mut skipped, end) = (0, opaque(2048 * chunks as u32));
        // The count of rounds and the answer are the same in all lanes, and the assembler sees it. Else it takes the
        // warps for divergent from here on, and moves each word of a descriptor to a uniform register.
        while skipped < end {
            for i in 0..at_once {
                let chunk = tile.base + thread * 16 + skipped + 2048 * i;
                let pairs = shared::load_u32x4(chunk);
                for i in 0..4 {
                    found = E::add_zero_times(found, pairs[i]);
                }
            }
            skipped += 2048 * at_once;
        }
        vote::any(barrier::some_any(number, 128, found != 0))
    }
}

/// Adds the guarded product of P and a tile of V to 16 rows of O, where the lane's two rows see `keys`. In the end P is as
/// before: each slice has had its turn.
///
/// A loop of its own: by [`multiply_guarded`] masked kernels of the forward pass have up to 48 instructions more, and with ALiBi
/// took 4 % longer at D = 64 (H200, docs/diary.md).
///
/// # Safety
/// Every lane of the warp makes the same call, with V landed.
#[inline(always)]
pub unsafe fn add_guarded<E: Element, const DT: usize, const NT: usize>(
    v: Panels,
    o: &mut [Accumulator; DT],
    p: &mut [Operand; NT],
    keys: [impl Interval; 2],
) {
    // Opaque: the loop stays one, 1,250 to 4,700 instructions fewer.
    let (mut row, end) = (0, opaque(16 * NT as u32));
    while row < end {
        let lane = special::lane();
        let (lane_row, chunk) = fragment::ldmatrix_rows_first(lane);
        let seen = Operand::ones::<E>(lane, keys.map(|keys| keys.counted_from(row as i32)));
        for dt in 0..DT {
            let mut count = Accumulator::ZERO;
            // SAFETY: the caller's promise; the address lies in the tile. Without the fence the assembler reads V far ahead: 132
            // bytes of spills in latent attention.
            unsafe {
                fence();
                let column = 16 * dt as u32 + element::CHUNK * chunk;
                let v = Operand(ldmatrix::x4_trans(v.chunk(row + lane_row, column)));
                let (finite, non_finite) = v.split_non_finite::<E>();
                o[dt].mma::<E>(p[0], finite);
                count.mma::<E>(seen, non_finite);
            }
            o[dt].spoil(count);
        }
        Operand::take_turn(p);
        row += 16;
    }
}

/// [`add_guarded`] for gradients: of P or dS, transposed, and a tile of dO or Q, where the lane's two rows see `queries`.
///
/// By [`multiply_guarded`]: here the other loop spills 16 to 24 bytes at D = 128.
///
/// # Safety
/// Every lane of the warp makes the same call, with the tile landed.
#[inline(always)]
pub unsafe fn add_guarded_gradients<E: Element, const DT: usize, const NT: usize>(
    tile: Panels,
    sum: &mut [Accumulator; DT],
    p: &mut [Operand; NT],
    queries: [impl Interval; 2],
) {
    let p = |_| [Operand::take_turn(p)];
    // SAFETY: the caller's promise; the addresses lie in the tile.
    unsafe {
        multiply_guarded::<E, 1, NT, DT>(array::from_mut(sum), p, columns(tile), [queries]);
    }
}

/// Adds the guarded product of 16 rows of dS, from row `row` on, and a tile of K to dQ, where the lane's two rows see `keys`.
///
/// # Safety
/// Every lane of the warp makes the same call, with dS and K landed.
#[inline(always)]
pub unsafe fn add_guarded_rows<E: Element, const DT: usize, const NT: usize>(
    (ds, row): (Panels, u32),
    k: Panels,
    dq: &mut [Accumulator; DT],
    keys: [impl Interval; 2],
) {
    let (lane_row, chunk) = fragment::ldmatrix_rows_first(special::lane());
    // SAFETY: the caller's promise; the addresses lie in the tiles.
    unsafe {
        let ds = |kt| {
            [Operand(ldmatrix::x4(ds.chunk(
                row + lane_row,
                E::K * kt + element::CHUNK * chunk,
            )))]
        };
        multiply_guarded::<E, 1, NT, DT>(array::from_mut(dq), ds, columns(k), [keys]);
    }
}

/// The B operands of a tile, whose columns lie along memory: of a slice of 16 rows, and one of 16 columns.
///
/// # Safety
/// Every lane of the warp makes the same calls, with the tile landed.
#[inline(always)]
unsafe fn columns(tile: Panels) -> impl Fn(u32, usize) -> Operand {
    let (row, chunk) = fragment::ldmatrix_rows_first(special::lane());
    move |slice, column| {
        let at = tile.chunk(
            16 * slice + row,
            16 * column as u32 + element::CHUNK * chunk,
        );
        // SAFETY: the caller's promise.
        unsafe {
            // Else the assembler reads the tile far ahead: 8 bytes of spills with options, 40 more with a mask.
            fence();
            Operand(ldmatrix::x4_trans(at))
        }
    }
}
