//! dS, written to shared memory.

use super::roles::thread;
use crate::layout::descriptor::Panels;
use crate::layout::{element, fragment};
use crate::ptx::{bulk, special, stmatrix};
use crate::tile::Operand;

/// Writes dS of a warpgroup's 64 keys, from key `first` of the tile on: a row for each query.
///
/// # Safety
/// All lanes of the warpgroup make the same call, and nothing else uses its columns of the tile meanwhile.
#[inline(always)]
pub unsafe fn write_ds<const NT: usize>(tile: Panels, first: u32, ds: &[Operand; NT]) {
    let (row, chunk) = fragment::ldmatrix_chunks_first(special::lane());
    let key = first + thread() / 32 * 16 + element::CHUNK * chunk;
    // SAFETY: the caller's promise; the addresses lie in the tile.
    unsafe {
        for nt in 0..NT {
            stmatrix::x4_trans(tile.chunk(16 * nt as u32 + row, key), ds[nt].0);
        }
        bulk::fence();
    }
}
