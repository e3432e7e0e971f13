//! Products summed in f16, or in f32: `S` says which.
//!
//! f16 holds up to 65504. So Q is scaled before `Q K^T`, and sums of `P V` last for one call: O is f32.

use kernels::attention::options::score::Score;
use kernels::attention::{SoftmaxScale, Warp};
use kernels::ptx::{math, special};
use kernels::tile::registers::opaque_in;
use kernels::tile::{Accumulate, Accumulator, Arrangement, Element, Operand, SharedTile};

/// The scale of scores that are scaled already.
pub const SCALED: SoftmaxScale = SoftmaxScale {
    log2: 1.0,
    negative: false,
};

/// The factor of raw scores, sign included.
#[inline(always)]
pub fn signed(scale: SoftmaxScale) -> f32 {
    if scale.negative {
        -scale.log2
    } else {
        scale.log2
    }
}

/// Every element of Q, an f16, multiplied by the [signed] scale.
#[inline(always)]
pub fn scaled(q: Operand, scale: SoftmaxScale) -> Operand {
    let factor = signed(scale);
    let factors = kernels::ptx::convert::f16x2(factor, factor);
    Operand(q.0.map(|pair| math::mul_f16x2(pair, factors)))
}

/// Whether products with `tiles` tiles of O are summed in f16: O in 128 registers leaves none for other sums.
#[inline(always)]
pub fn sums<E: Element, S: Accumulate<E>>(tiles: usize) -> bool {
    S::HALF && tiles < 16
}

/// [`multiply`](kernels::tile::multiply) where [sums] are f16: they hold the products of one call.
///
/// # Safety
/// The conditions of [`multiply`](kernels::tile::multiply).
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

/// [`Warp::accumulate`] with sums in `S`.
///
/// # Safety
/// The conditions of [`Warp::new`].
#[inline(always)]
pub unsafe fn accumulate<
    E: Element,
    S: Accumulate<E>,
    A: Arrangement,
    C: Score,
    const MT: usize,
    const DT: usize,
    const OT: usize,
    const QT: usize,
    const NT: usize,
>(
    warp: &mut Warp<MT, DT, OT, QT, A, C>,
    p: [[Operand; NT]; MT],
    v_tile: SharedTile<DT, A>,
) {
    if !sums::<E, S>(MT * OT) {
        // SAFETY: the caller's promise.
        return unsafe { warp.accumulate::<E, NT, DT>(p, v_tile) };
    }
    let lane = opaque_in(special::lane(), v_tile.base);
    // A loop, because the compiler orders the code of `map` so that it takes more registers.
    let p = |nt: usize| {
        let mut slices = [Operand::ZERO; MT];
        for mt in 0..MT {
            slices[mt] = p[mt][nt];
        }
        slices
    };
    // SAFETY: the caller's promise.
    unsafe { multiply::<E, S, A, MT, NT, OT, DT>(&mut warp.o, p, v_tile, lane, |dt| dt) }
}
