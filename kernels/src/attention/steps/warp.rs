//! A warp's rows of Q, O, m and l, and the steps of FlashAttention-2 (Dao 2023, Algorithm 1) on them.
//!
//! | line | step |
//! |---|---|
//! | 5: `O = 0, l = 0, m = -inf` | [`Warp::new`] |
//! | 8: `S = Q K^T` | [`Warp::scores`] |
//! | 9: `m`, `P` and `l`; 10: the factor of O | [`Warp::softmax`]; [`Warp::softmax_masked`] under a mask |
//! | 10: `O += P V` | [`Warp::accumulate`]; [`Warp::accumulate_masked`] under a mask |
//! | 12 to 15: `O / l` and lse, stored | [`Warp::store`] |
//!
//! | parameter | counts |
//! |---|---|
//! | `MT` | tiles of 16 query rows of a warp |
//! | `DT`, `OT`, `QT` | slices of 16 in the head dim: all, in the warp's part of O, kept in registers of Q |
//! | `NT` | slices of 16 keys in a warp's scores of a step |
//! | `T` | warps of a team |

use super::team::Team;
use crate::attention::Softmax;
use crate::attention::guard::has_non_finite;
use crate::attention::options::mask::{Interval, Mask, Visible};
use crate::attention::options::score::{Corner, Scaled, Score, is_exact};
use crate::ptx::{special, vote};
use crate::tile::registers::{fence, opaque_in};
use crate::tile::whole::{map_shared, mask, to_operands};
use crate::tile::{
    Accumulate, Accumulator, Arrangement, Fixed, Numbers, Operand, SharedTile, multiply,
    multiply_transposed,
};
use core::hint::cold_path;

/// The state of a warp in the loop over blocks of keys.
pub struct Warp<
    const MT: usize,
    const DT: usize,
    const OT: usize,
    const QT: usize,
    A: Arrangement = Fixed,
    C: Score = Scaled,
> {
    q_tile: SharedTile<DT, A>,
    /// Slices `0..QT`; the others are read from `q_tile` in each step.
    q: [[Operand; DT]; MT],
    /// O, not yet divided by l.
    pub o: [[Accumulator; OT]; MT],
    /// m and l.
    pub softmax: Softmax<MT>,
    score: C,
    /// The first row as a query, among the rows of all tiles of the heads, and key 0 of the split.
    corner: Corner,
    /// The warp's number in its team, which is the number of its part of a block's keys.
    side: u32,
}

impl<const MT: usize, const DT: usize, const OT: usize, const QT: usize, A: Arrangement, C: Score>
    Warp<MT, DT, OT, QT, A, C>
{
    /// Reads the team's rows of the Q tile. The first one is `corner`'s query, which counts rows where heads share tiles; its key is
    /// key 0 of the split.
    ///
    /// # Safety
    /// The conditions of all functions here: every lane of the warp makes the same call, and so does every warp of a given
    /// team; shared tiles are written and visible.
    #[inline(always)]
    pub unsafe fn new<const T: usize>(
        q_tile: SharedTile<DT, A>,
        corner: Corner,
        score: C,
        team: &Team<T>,
    ) -> Self {
        let scale = score.scale();
        let mut warp = Warp {
            q_tile,
            q: [[Operand::ZERO; DT]; MT],
            o: [[Accumulator::ZERO; OT]; MT],
            softmax: Softmax::new(scale),
            score,
            corner,
            side: team.side,
        };
        let lane = special::lane();
        // SAFETY: the caller's promise; only this warp's team uses its rows of the tile.
        unsafe {
            if scale.negative {
                if team.side == 0 {
                    map_shared::<MT, DT, A>(q_tile, Operand::negate);
                }
                team.sync();
            }
            for mt in 0..MT {
                for dt in 0..QT {
                    warp.q[mt][dt] = q_tile.a(lane, mt, dt);
                }
            }
        }
        warp
    }

    /// Line 8: `S = Q K^T`, accumulated in `Acc`, of the warp's part of the block of keys that starts at `first_key`.
    ///
    /// # Safety
    /// The conditions of [`Warp::new`].
    #[inline(always)]
    pub unsafe fn scores<
        B: Numbers,
        Acc: Accumulate<B::Element>,
        const NT: usize,
        const KT: usize,
    >(
        &self,
        k_tile: SharedTile<KT, A>,
        first_key: u32,
    ) -> [[Accumulator; NT]; MT] {
        let mut s = [[Acc::ZERO; NT]; MT];
        let lane = lane_in_step(k_tile);
        let q = |dt: usize| {
            let mut q = [Operand::ZERO; MT];
            for mt in 0..MT {
                q[mt] = if dt < QT {
                    self.q[mt][dt]
                } else {
                    // SAFETY: the caller's promise.
                    unsafe { self.q_tile.a(lane, mt, dt) }
                };
            }
            q
        };
        // SAFETY: the caller's promise.
        unsafe { multiply_transposed::<B, Acc, A, MT, NT, KT>(&mut s, q, k_tile, lane) }
        let mut s = s.map(|row| row.map(Acc::widen));
        let key = first_key + self.side * 16 * NT as u32;
        let corner = Corner {
            key: key as i32,
            ..self.corner
        };
        self.score.apply::<false, MT, NT>(&mut s, corner);
        s
    }

    /// Line 9 with old maxima, which need neither a search nor a rescaling of O. Where P would overflow, the
    /// warp computes the scores again, from K, and raises the maxima.
    ///
    /// # Safety
    /// The conditions of [`Warp::new`].
    #[inline(always)]
    pub unsafe fn softmax<B: Numbers, const NT: usize, const KT: usize>(
        &mut self,
        mut s: [[Accumulator; NT]; MT],
        k_tile: SharedTile<KT, A>,
        first_key: u32,
    ) -> [[Operand; NT]; MT] {
        // SAFETY: the caller's promise.
        unsafe {
            if is_exact::<C>() {
                return self.softmax_exact::<B, NT, 1>(s, &Team::ALONE);
            }
            let sums = self.softmax.apply(&mut s);
            if vote::any(!sums.fit()) {
                cold_path();
                let s = self.scores::<B, Accumulator, NT, KT>(k_tile, first_key);
                self.softmax_exact::<B, NT, 1>(s, &Team::ALONE)
            } else {
                self.softmax.add(sums);
                to_operands::<B::Values, MT, NT>(s)
            }
        }
    }

    /// Line 9, and the factor of line 10, where each row sees only `keys` of the block.
    ///
    /// # Safety
    /// The conditions of [`Warp::new`].
    #[inline(always)]
    pub unsafe fn softmax_masked<B: Numbers, const NT: usize, const T: usize>(
        &mut self,
        mut s: [[Accumulator; NT]; MT],
        keys: [[impl Interval; 2]; MT],
        team: &Team<T>,
    ) -> [[Operand; NT]; MT] {
        mask(&mut s, keys);
        // SAFETY: the caller's promise.
        unsafe { self.softmax_exact::<B, NT, T>(s, team) }
    }

    /// Line 9, and the factor of line 10, with new maxima: the same in all warps of a team.
    ///
    /// # Safety
    /// The conditions of [`Warp::new`].
    #[inline(always)]
    pub unsafe fn softmax_exact<B: Numbers, const NT: usize, const T: usize>(
        &mut self,
        mut s: [[Accumulator; NT]; MT],
        team: &Team<T>,
    ) -> [[Operand; NT]; MT] {
        let mut p = [[Operand::ZERO; NT]; MT];
        let mut maxima = [[0.0; 2]; MT];
        if T > 1 {
            // SAFETY: the caller's promise.
            unsafe {
                for mt in 0..MT {
                    maxima[mt] = self.softmax.maxima(&s[mt]);
                }
                maxima = team.combine(maxima, f32::max);
            }
        }
        for mt in 0..MT {
            // SAFETY: the caller's promise. Without the fence the assembler mixes the 16-row tiles: 600
            // instructions more at D = 64.
            let factors = unsafe {
                fence();
                if T == 1 {
                    maxima[mt] = self.softmax.maxima(&s[mt]);
                }
                self.softmax.update(mt, &mut s[mt], maxima[mt])
            };
            for ot in 0..OT {
                self.o[mt][ot].scale_rows(factors);
            }
            p[mt] = s[mt].map(Accumulator::to_operand::<B::Values>);
        }
        p
    }

    /// Line 10: `O += P V`, where each row sees only `keys` of the block.
    ///
    /// # Safety
    /// The conditions of [`Warp::new`].
    #[inline(always)]
    pub unsafe fn accumulate_masked<
        B: Numbers,
        M: Mask,
        I: Visible,
        const NT: usize,
        const VT: usize,
    >(
        &mut self,
        p: [[Operand; NT]; MT],
        v_tile: SharedTile<VT, A>,
        keys: [[I; 2]; MT],
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            if !M::UNIFORM && has_non_finite::<B, A, NT, OT, VT>(v_tile, |dt| dt) {
                I::accumulate_guarded::<B, MT, DT, OT, QT, NT, VT, A, C>(self, p, v_tile, keys);
            } else {
                self.accumulate::<B, NT, VT>(p, v_tile);
            }
        }
    }

    /// Line 10: `O += P V`.
    ///
    /// # Safety
    /// The conditions of [`Warp::new`].
    #[inline(always)]
    pub unsafe fn accumulate<B: Numbers, const NT: usize, const VT: usize>(
        &mut self,
        p: [[Operand; NT]; MT],
        v_tile: SharedTile<VT, A>,
    ) {
        let lane = lane_in_step(v_tile);
        // A loop, because the compiler orders the code of `map` so that it takes more registers.
        let p = |nt: usize| {
            let mut slices = [Operand::ZERO; MT];
            for mt in 0..MT {
                slices[mt] = p[mt][nt];
            }
            slices
        };
        // SAFETY: the caller's promise.
        unsafe { multiply::<B, A, MT, NT, OT, VT>(&mut self.o, p, v_tile, lane, |dt| dt) }
    }
}

/// The lane, [opaque in each step](opaque_in): the addresses of a lane's fragments would take a dozen registers for the
/// whole loop, and spill 464 bytes at D = 256. Shared addresses stay below 2^31.
#[inline(always)]
pub(super) fn lane_in_step<const DT: usize, A: Arrangement>(tile: SharedTile<DT, A>) -> u32 {
    opaque_in(special::lane(), tile.base)
}
