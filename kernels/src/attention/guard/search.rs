//! The search of a warp for infinities and NaN.

use crate::ptx::{shuffle, special};
use crate::tile::{Arrangement, Element, SharedTile};

/// Whether a tile holds an infinity or a NaN in the slices `column(0..OT)` of 16 columns; all lanes get the
/// same answer.
///
/// # Safety
/// Every lane of the warp makes the same call, and the tile is written and visible.
#[inline(always)]
pub unsafe fn has_non_finite<
    E: Element,
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
        for ot in 0..OT {
            // SAFETY: the caller's promise.
            found |= unsafe { tile.b_trans(lane, nt, column(ot)) }.non_finite::<E>();
        }
    }
    // SAFETY: the caller's promise.
    unsafe { shuffle::or(found) != 0 }
}
