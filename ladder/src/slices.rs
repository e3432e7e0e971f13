//! `P V` under a mask with few registers: loops that the compiler does not unroll.

use crate::half;
use kernels::attention::Warp;
use kernels::attention::guard::has_non_finite;
use kernels::attention::options::mask::Interval;
use kernels::attention::options::score::Score;
use kernels::tile::registers::opaque;
use kernels::tile::{Accumulate, Arrangement, Element, Operand, SharedTile};

/// 16x16 tiles of V that one pass of the search loop reads.
const LOOK: usize = 2;

/// [`Warp::accumulate_masked`] whose search for infinities and guarded product are loops over slices of 16 keys.
///
/// # Safety
/// The conditions of [`Warp::new`].
#[inline(always)]
pub unsafe fn accumulate_masked<
    E: Element,
    Acc: Accumulate<E>,
    K: Interval,
    A: Arrangement,
    C: Score,
    const MT: usize,
    const DT: usize,
    const OT: usize,
    const QT: usize,
    const NT: usize,
>(
    warp: &mut Warp<MT, DT, OT, QT, A, C>,
    mut p: [[Operand; NT]; MT],
    v_tile: SharedTile<DT, A>,
    keys: impl Fn() -> [[K; 2]; MT],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let windows = OT.div_ceil(LOOK);
        let (mut guarded, mut window) = (false, 0);
        while !guarded && window < opaque((NT * windows) as u32) {
            let (nt, ot) = (window as usize / windows, window as usize % windows * LOOK);
            let column = |i: usize| (ot + i).min(OT - 1);
            let v_tile = v_tile.skip(16 * nt as u32);
            guarded = has_non_finite::<E, A, 1, LOOK, DT>(v_tile, column);
            window += 1;
        }
        if !guarded {
            return half::accumulate::<E, Acc, _, _, _, _, _, _, _>(warp, p, v_tile);
        }
        let mut nt = 0;
        while nt < opaque(NT as u32) {
            let first = p.map(|row| [row[0]]);
            let keys = keys().map(|rows| rows.map(|keys| keys.counted_from(16 * nt as i32)));
            warp.accumulate_guarded::<E, 1, DT>(first, v_tile.skip(16 * nt), keys);
            // Registers have no index, so the next slice moves to the front. The first one goes to the end:
            // dropped, the compiler would unroll the loop.
            for mt in 0..MT {
                let first = p[mt][0];
                for nt in 1..NT {
                    p[mt][nt - 1] = p[mt][nt];
                }
                p[mt][NT - 1] = first;
            }
            nt += 1;
        }
    }
}
