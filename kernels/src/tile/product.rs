//! The two products of attention, on 16x16 tiles: the caller provides the left factor, and the right one lies in
//! shared memory.

use super::{Accumulate, Accumulator, Arrangement, Numbers, Operand, SharedTile};

/// `S += Q K^T` of a tile of K with `KT` slices of 32 bytes. `q(dt)`: Q's fragments for columns `16 * dt..16 * dt + 16`.
///
/// # Safety
/// The conditions of all products: every lane of the warp makes the same call, and the shared tile is written and
/// visible.
#[inline(always)]
pub unsafe fn multiply_transposed<
    B: Numbers,
    Acc: Accumulate<B::Element>,
    A: Arrangement,
    const MT: usize,
    const NT: usize,
    const KT: usize,
>(
    s: &mut [[Acc; NT]; MT],
    q: impl Fn(usize) -> [Operand; MT],
    k_tile: SharedTile<KT, A>,
    lane: u32,
) {
    for kt in 0..KT {
        let mut slices = [[Operand::ZERO; MT]; 2];
        for i in 0..B::SLICES {
            slices[i] = q(B::SLICES * kt + i);
        }
        for nt in 0..NT {
            // SAFETY: the caller's promise.
            unsafe {
                let k = B::keys(k_tile, lane, nt, kt);
                for i in 0..B::SLICES {
                    for mt in 0..MT {
                        s[mt][nt].mma(slices[i][mt], k[i]);
                    }
                }
            }
        }
    }
}

/// `O += P V` of the keys `0..16 * NT` of a tile of V. `p(nt)`: P's fragments for keys
/// `16 * nt..16 * nt + 16`. `column(vt)`: the slice of 32 bytes of V's rows that slice `vt` of
/// O has, or its slices `2 * vt` and `2 * vt + 1` of numbers half as large.
///
/// # Safety
/// The conditions of [`multiply_transposed`].
#[inline(always)]
pub unsafe fn multiply<
    B: Numbers,
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
            for vt in 0..OT / B::SLICES {
                let v = B::values(v_tile, lane, nt, column(vt));
                for i in 0..B::SLICES {
                    for mt in 0..MT {
                        o[mt][B::SLICES * vt + i].mma::<B::Values>(p[mt], v[i]);
                    }
                }
            }
        }
    }
}
