//! P on its way from side 0 to side 1: each lane reads what the same lane of the pair's other warp wrote.

use crate::ptx::{shared, special};
use crate::tile::{Accumulator, Element, Operand};

/// Writes operands for [`multiply_by`] of the same lane of another warp.
///
/// # Safety
/// No other lane uses the lane's bytes at the shared address `to`.
#[inline(always)]
pub unsafe fn pass<const MT: usize, const NT: usize>(to: u32, operands: [[Operand; NT]; MT]) {
    let to = to + 16 * special::lane();
    for mt in 0..MT {
        for nt in 0..NT {
            // SAFETY: the caller's promise.
            unsafe { shared::store_u32x4(to + 512 * (mt * NT + nt) as u32, operands[mt][nt].0) }
        }
    }
}

/// Multiplies each element by its operand, which the same lane of another warp has [passed](pass).
///
/// # Safety
/// The operands at the shared address `from` are written and visible.
#[inline(always)]
pub unsafe fn multiply_by<E: Element, const MT: usize, const NT: usize>(
    x: &mut [[Accumulator; NT]; MT],
    from: u32,
) {
    let from = from + 16 * special::lane();
    for mt in 0..MT {
        for nt in 0..NT {
            // SAFETY: the caller's promise.
            let operand = unsafe { shared::load_u32x4(from + 512 * (mt * NT + nt) as u32) };
            x[mt][nt].multiply_by::<E>(Operand(operand));
        }
    }
}
