//! The two products of attention, on 16x16 tiles: the caller provides the left factor, and the right one lies in
//! shared memory.

use super::{Accumulate, Accumulator, Arrangement, Element, Operand, SharedTile};

/// `S += Q K^T` of the head dims `0..K * DT` of a tile of K. `q(dt)`: Q's fragments for columns
/// `K * dt..K * dt + K`, where `K` is [`Element::K`].
///
/// # Safety
/// The conditions of all products: every lane of the warp makes the same call, and the shared tile is written and
/// visible.
#[inline(always)]
pub unsafe fn multiply_transposed<
    E: Element,
    Acc: Accumulate<E>,
    A: Arrangement,
    const MT: usize,
    const NT: usize,
    const DT: usize,
>(
    s: &mut [[Acc; NT]; MT],
    q: impl Fn(usize) -> [Operand; MT],
    k_tile: SharedTile<DT, A>,
    lane: u32,
) {
    for dt in 0..DT {
        let q = q(dt);
        for nt in 0..NT {
            // SAFETY: the caller's promise.
            unsafe {
                let k = k_tile.b(lane, nt, dt);
                for mt in 0..MT {
                    s[mt][nt].mma(q[mt], k);
                }
            }
        }
    }
}

/// `O += P V` of the keys `0..16 * NT` of a tile of V. `p(nt)`: P's fragments for keys
/// `16 * nt..16 * nt + 16`. `column(ot)`: the slice of V's columns that slice `ot` of O has.
///
/// # Safety
/// The conditions of [`multiply_transposed`].
#[inline(always)]
pub unsafe fn multiply<
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
    lane: u32,
    column: impl Fn(usize) -> usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        for nt in 0..NT {
            let p = p(nt);
            for ot in 0..OT {
                let v = v_tile.b_trans(lane, nt, column(ot));
                for mt in 0..MT {
                    o[mt][ot].mma::<E>(p[mt], v);
                }
            }
        }
    }
}
