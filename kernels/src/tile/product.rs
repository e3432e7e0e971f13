//! The two products of attention, of 16x16 tiles: the left factor from wherever the caller has it, the
//! right one from shared memory.

use super::{Accumulate, Accumulator, Arrangement, Element, Operand, SharedTile};

/// `S += Q K^T` of the head dims `0..16 * DT` of a tile of K. `q` gives the slice of 16 of them of a
/// number.
///
/// # Safety
/// As all of these: every lane of the warp makes the same call, and the shared tile is written and
/// visible.
#[inline(always)]
pub unsafe fn multiply_transposed<
    E: Element,
    S: Accumulate<E>,
    A: Arrangement,
    const MT: usize,
    const NT: usize,
    const DT: usize,
>(
    s: &mut [[S; NT]; MT],
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

/// `O += P V` of the keys `0..16 * NT` of a tile of V. `p` gives the slice of 16 of them of a number,
/// `column` the slice of 16 columns of V that one of O is. O is f32; in f16 only the products of one call
/// are added up, lest they overflow, and only if O has less than 16 tiles.
///
/// # Safety
/// As [`multiply_transposed`].
#[inline(always)]
pub unsafe fn multiply<
    E: Element,
    S: Accumulate<E>,
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
        // 128 registers of O leave none for sums of their own.
        if !S::HALF || MT * OT >= 16 {
            for nt in 0..NT {
                let p = p(nt);
                for ot in 0..OT {
                    let v = v_tile.b_trans(lane, nt, column(ot));
                    for mt in 0..MT {
                        o[mt][ot].mma::<E>(p[mt], v);
                    }
                }
            }
            return;
        }
        let mut ps = [[Operand::ZERO; MT]; NT];
        for nt in 0..NT {
            ps[nt] = p(nt);
        }
        for ot in 0..OT {
            let mut sums = [S::ZERO; MT];
            for nt in 0..NT {
                let v = v_tile.b_trans(lane, nt, column(ot));
                for mt in 0..MT {
                    sums[mt].mma(ps[nt][mt], v);
                }
            }
            for mt in 0..MT {
                o[mt][ot].add(sums[mt].widen());
            }
        }
    }
}
