//! The first four products: of K or V on the left, then of P or dS.

use super::block::{Block, QueryTile};
use super::kernel::Kernel;
use crate::attention::guard::{has_non_finite, in_turn};
use crate::attention::options::mask::{Mask, Visible};
use crate::ptx::{barrier, special};
use crate::tile::registers::opaque_in;
use crate::tile::{Accumulator, Fixed, Operand, multiply, multiply_transposed};

/// # Safety
/// All functions here: all lanes of the warp make the same call, and the tiles are written and visible.
impl<K: Kernel, const MT: usize, const DT: usize, const NT: usize> Block<'_, K, MT, DT, NT> {
    /// The fragments of the warp's rows of K or V that stay in registers; zeros in place of the others.
    #[inline(always)]
    pub unsafe fn kept(&self) -> [[Operand; DT]; MT] {
        let mut kept = [[Operand::ZERO; DT]; MT];
        for mt in 0..MT {
            for dt in 0..K::KEPT {
                // SAFETY: the caller's promise.
                kept[mt][dt] = unsafe { self.own(0).a(special::lane(), mt, dt) };
            }
        }
        kept
    }

    /// Whether the causal mask may hide an infinity or a NaN of K from some rows.
    #[inline(always)]
    pub unsafe fn spoiled(&self) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            barrier::block_any(
                !K::Mask::UNIFORM
                    && self.side(0) == 0
                    && has_non_finite::<K::Element, Fixed, MT, DT, DT>(self.own(0), |dt| dt),
            )
        }
    }

    /// 1. Sᵀ = K Qᵀ on side 0; 2. dPᵀ = V dOᵀ on side 1.
    #[inline(always)]
    pub unsafe fn multiply_transposed(
        &self,
        kept: &[[Operand; DT]; MT],
        tile: QueryTile<DT>,
    ) -> [[Accumulator; NT]; MT] {
        let mut x = [[Accumulator::ZERO; NT]; MT];
        // Held over the loop, addresses of fragments spill 8 bytes with options.
        let lane = opaque_in(special::lane(), tile.first);
        let own = self.own(tile.first);
        let a = |dt: usize| {
            let mut a = [Operand::ZERO; MT];
            for mt in 0..MT {
                a[mt] = if dt < K::KEPT {
                    kept[mt][dt]
                } else {
                    // SAFETY: the caller's promise.
                    unsafe { own.a(lane, mt, dt) }
                };
            }
            a
        };
        // SAFETY: the caller's promise.
        unsafe {
            multiply_transposed::<K::Element, Accumulator, Fixed, MT, NT, DT>(
                &mut x, a, tile.near, lane,
            );
        }
        x
    }

    /// 3. dV += Pᵀ dO on side 0; 4. dK += dSᵀ Q on side 1.
    #[inline(always)]
    pub unsafe fn add_product(
        &self,
        sum: &mut [[Accumulator; DT]; MT],
        x: [[Operand; NT]; MT],
        tile: QueryTile<DT>,
    ) {
        let right = tile.far;
        // SAFETY: the caller's promise.
        unsafe {
            if tile.masked
                && !K::Mask::UNIFORM
                && has_non_finite::<K::Element, Fixed, NT, DT, DT>(right, |dt| dt)
            {
                <K::Mask as Mask>::Queries::multiply_seen::<K::Element, MT, NT, DT>(
                    sum,
                    |mt, nt| x[mt][nt],
                    in_turn(x),
                    |nt, dt| right.skip(16 * nt).b_trans(special::lane(), 0, dt),
                    self.seen::<MT>(tile, 0),
                );
            } else {
                let a = |nt: usize| {
                    let mut a = [Operand::ZERO; MT];
                    for mt in 0..MT {
                        a[mt] = x[mt][nt];
                    }
                    a
                };
                // Held over the loop, addresses of fragments spill 12 bytes at D = 128.
                let lane = opaque_in(special::lane(), tile.first);
                multiply::<K::Element, Fixed, MT, NT, DT, DT>(sum, a, right, lane, |dt| dt);
            }
        }
    }
}
