//! Infinities and NaN in V that some rows must not see.
//!
//! A block of keys on the edge of the causal mask is seen whole by some rows and in part by others,
//! and the product P V takes it whole for all: what a row does not see, it multiplies by P = 0. That
//! is exact unless V holds an infinity or a NaN there, for 0 times it is NaN. Blocks at the edge are
//! few, so they are searched for such elements, and one that holds any takes a slower product.

use crate::ptx::{barrier, shuffle, special};
use crate::tile::{Accumulator, Arrangement, Element, Operand, SharedTile, Sum};

/// Whether a tile of V holds an infinity or a NaN in the slices of 16 columns `column(0..OT)`: the same
/// answer in all lanes. `SHORT` says that registers are: then V is not read far ahead.
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
    const SHORT: bool,
>(
    v_tile: SharedTile<VT, A>,
    column: impl Fn(usize) -> usize,
) -> bool {
    let lane = special::lane();
    let mut found = 0;
    for nt in 0..NT {
        for ot in 0..OT {
            if SHORT {
                // SAFETY: the caller's promise.
                unsafe { barrier::warp() }
            }
            // SAFETY: the caller's promise.
            found |= unsafe { v_tile.b_trans(lane, nt, column(ot)) }.non_finite::<E>();
        }
    }
    // SAFETY: the caller's promise.
    unsafe { shuffle::or(found) != 0 }
}

/// `O += P V` with the elements of V that are not finite taken as 0; then O becomes NaN where a
/// row sees one: where the product of visibility and non-finiteness, both 0 or 1, is not 0. A row sees
/// only the first `visible` keys of the tile.
///
/// # Safety
/// As [`multiply`](crate::tile::multiply).
#[inline(always)]
pub unsafe fn multiply_guarded<
    E: Element,
    A: Arrangement,
    const MT: usize,
    const NT: usize,
    const OT: usize,
    const VT: usize,
>(
    o: &mut [[Accumulator; OT]; MT],
    p: impl Fn(usize) -> [Operand; MT],
    v_tile: SharedTile<VT, A>,
    visible: [[i32; 2]; MT],
    column: impl Fn(usize) -> usize,
) {
    let lane = special::lane();
    for ot in 0..OT {
        for mt in 0..MT {
            let mut count = Accumulator::ZERO;
            // SAFETY: the caller's promise. The barrier keeps the assembler from reading V far
            // ahead here, at the price of spilled registers in the whole kernel.
            unsafe { barrier::warp() }
            for nt in 0..NT {
                let limits = visible[mt].map(|v| v - 16 * nt as i32);
                let seen = Operand::ones_below::<E>(lane, limits);
                // SAFETY: the caller's promise.
                unsafe {
                    let v = v_tile.b_trans(lane, nt, column(ot));
                    let (finite, non_finite) = v.split_non_finite::<E>();
                    o[mt][ot].mma::<E>(p(nt)[mt], finite);
                    count.mma::<E>(seen, non_finite);
                }
            }
            for i in 0..8 {
                if count.0[i] != 0.0 {
                    o[mt][ot].0[i] = f32::NAN;
                }
            }
        }
    }
}
