//! Rows of a gradient, rounded and stored.

use super::roles::thread;
use crate::layout::element;
use crate::layout::rows::{Rows, Strided};
use crate::ptx::global;
use crate::tile::whole::row_chunk;
use crate::tile::{Accumulator, Element};

/// Stores a warpgroup's rows of dQ, dK or dV, of which the first `count` exist. `aligned` is 1 if the tensor is
/// [aligned](crate::abi::TensorRef::is_aligned), else 0.
///
/// # Safety
/// Every lane of the warpgroup makes the same call; the rows are writable, by this warpgroup alone.
#[inline(always)]
pub unsafe fn store<E: Element, const DT: usize>(
    tiles: &[Accumulator; DT],
    rows: Strided,
    count: u32,
    aligned: u32,
) {
    // SAFETY: the caller's promise. No branch on a row or column holds an instruction of a warp.
    unsafe {
        let thread = thread();
        let lane = thread % 32;
        for pair in 0..DT / 2 {
            for r in 0..2 {
                let chunk = row_chunk::<E>([tiles[2 * pair], tiles[2 * pair + 1]], r, lane);
                let row = thread / 32 * 16 + lane / 4 + 8 * r as u32;
                let column = 32 * pair as u32 + 8 * (lane % 4);
                if row < count && column < rows.elements() {
                    let address = element::at(rows.at(row), column);
                    match aligned {
                        0 => global::store_elements(address, chunk, rows.elements() - column),
                        _ => global::store_u32x4(address, chunk),
                    }
                }
            }
        }
    }
}
