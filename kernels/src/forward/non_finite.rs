//! Infinities and NaN in V that some rows must not see.
//!
//! A block of keys on the edge of the causal mask is seen whole by some rows and in part by others,
//! and the product P V takes it whole for all: what a row does not see, it multiplies by P = 0. That
//! is exact unless V holds an infinity or a NaN there, for 0 times it is NaN. Blocks at the edge are
//! few, so they are searched for such elements, and one that holds any takes a slower product.

use super::warp::Warp;
use crate::ptx::{special, vote};
use crate::tile::{Accumulator, Element, Operand, SharedTile};

/// Whether a tile of V holds an infinity or a NaN: the same answer in all lanes.
///
/// # Safety
/// Every lane of the warp makes the same call, and the tile is written and visible.
#[inline(always)]
pub unsafe fn has_non_finite<E: Element, const DT: usize, const OT: usize, const NT: usize>(
    v_tile: SharedTile<DT>,
) -> bool {
    let lane = special::lane();
    // A product of zeros is 0, but NaN where V is not finite; two sums, so that one need not wait for the
    // other.
    let mut sums = [Accumulator::ZERO; 2];
    for nt in 0..NT {
        for dt in 0..OT {
            // SAFETY: the caller's promise.
            unsafe { sums[dt % 2].mma::<E>(Operand::ZERO, v_tile.b_trans(lane, nt, dt)) }
        }
    }
    let mut sum = 0.0;
    for i in 0..8 {
        sum += sums[0].0[i] + sums[1].0[i];
    }
    // SAFETY: the caller's promise.
    unsafe { vote::any(sum != 0.0) }
}

impl<const MT: usize, const DT: usize, const OT: usize, const QT: usize> Warp<MT, DT, OT, QT> {
    /// `O += P V` with the elements of V that are not finite taken as 0; then O becomes NaN where a
    /// row sees one: where the product of visibility and non-finiteness, both 0 or 1, is not 0.
    ///
    /// # Safety
    /// As [`Warp::new`].
    #[inline(always)]
    pub unsafe fn accumulate_guarded<E: Element, const NT: usize>(
        &mut self,
        mut p: [[Operand; NT]; MT],
        v_tile: SharedTile<DT>,
        visible: [[i32; 2]; MT],
    ) {
        // Opaque, so that the loop is not unrolled: what it holds is little then, at the price of
        // spilled registers in the whole kernel.
        let end = special::opaque(NT as u32);
        let mut nt = 0;
        while nt < end {
            let lane = special::lane();
            let seen = visible.map(|rows| {
                let limits = rows.map(|v| v - 16 * nt as i32);
                Operand::ones_below::<E>(lane, limits)
            });
            for dt in 0..OT {
                // SAFETY: the caller's promise.
                unsafe {
                    let v = v_tile.skip(16 * nt).b_trans(lane, 0, dt);
                    let (finite, non_finite) = v.split_non_finite::<E>();
                    for mt in 0..MT {
                        let mut count = Accumulator::ZERO;
                        count.mma::<E>(seen[mt], non_finite);
                        self.o[mt][dt].mma::<E>(p[mt][0], finite);
                        for i in 0..8 {
                            if count.0[i] != 0.0 {
                                self.o[mt][dt].0[i] = f32::NAN;
                            }
                        }
                    }
                }
            }
            for mt in 0..MT {
                p[mt].rotate_left(1);
            }
            nt += 1;
        }
    }
}
