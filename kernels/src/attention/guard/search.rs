//! The search of a warp for infinities and NaN.

use crate::ptx::{shuffle, special};
use crate::tile::{Arrangement, Numbers, SharedTile};

/// Whether a tile holds an infinity or a NaN in the slices `column(vt)` of 32 bytes, which are `OT` slices of 16 columns; all lanes get the
/// same answer.
///
/// # Safety
/// Every lane of the warp makes the same call, and the tile is written and visible.
#[inline(always)]
pub unsafe fn has_non_finite<
    B: Numbers,
    A: Arrangement,
    const NT: usize,
    const OT: usize,
    const VT: usize,
>(
    tile: SharedTile<VT, A>,
    column: impl Fn(usize) -> usize,
) -> bool {
    let lane = special::lane();
    let mut found = 0;
    for nt in 0..NT {
        for vt in 0..OT / B::SLICES {
            // SAFETY: the caller's promise.
            let values = unsafe { B::values(tile, lane, nt, column(vt)) };
            for i in 0..B::SLICES {
                found |= values[i].non_finite::<B::Values>();
            }
        }
    }
    // SAFETY: the caller's promise.
    unsafe { shuffle::or(found) != 0 }
}
