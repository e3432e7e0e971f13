//! dS and dQ, written to shared memory.

use super::roles::thread;
use crate::layout::descriptor::Panels;
use crate::layout::{fragment, sum};
use crate::ptx::{bulk, shared, special, stmatrix};
use crate::tile::{Accumulator, Operand};

/// Writes dS of a warpgroup's 64 keys, from key `first` of the tile on: a row for each query.
///
/// # Safety
/// All lanes of the warpgroup make the same call, and nothing else uses its columns of the tile meanwhile.
#[inline(always)]
pub unsafe fn write_ds<const NT: usize>(tile: Panels, first: u32, ds: &[Operand; NT]) {
    let (row, chunk) = fragment::ldmatrix_chunks_first(special::lane());
    let key = first + thread() / 32 * 16 + 8 * chunk;
    // SAFETY: the caller's promise; the addresses lie in the tile.
    unsafe {
        for nt in 0..NT {
            stmatrix::x4_trans(tile.chunk(16 * nt as u32 + row, key), ds[nt].0);
        }
        bulk::fence();
    }
}

/// Writes a warpgroup's part of dQ, 64 rows, in the order of the sums in device memory.
///
/// # Safety
/// All lanes of the warpgroup make the same call, with a place of this size that nothing else uses meanwhile.
#[inline(always)]
pub unsafe fn write_dq<const QT: usize>(to: u32, dq: &[Accumulator; QT]) {
    let to = to + thread() / 32 * QT as u32 * sum::BYTES;
    // SAFETY: the caller's promise.
    unsafe {
        for qt in 0..QT {
            for i in 0..8 {
                let place = sum::place(special::lane(), i as u32);
                shared::store_f32(to + qt as u32 * sum::BYTES + 4 * place, dq[qt].0[i]);
            }
        }
        bulk::fence();
    }
}
