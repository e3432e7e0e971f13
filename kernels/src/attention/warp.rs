//! The work of one warp: its rows of Q, O, m and l, and a step of the main loop on them.

use super::non_finite::has_non_finite;
use super::team::Team;
use crate::attention::mask::Mask;
use crate::attention::{Softmax, SoftmaxScale};
use crate::ptx::{barrier, special, vote};
use crate::tile::{
    Accumulate, Accumulator, Arrangement, Element, Fixed, Operand, SharedTile, multiply,
    multiply_transposed,
};
use core::hint::cold_path;

/// What a warp carries through the loop: `MT` tiles of 16 query rows, with `OT` of the `DT` slices of 16
/// columns of O.
pub struct Warp<
    const MT: usize,
    const DT: usize,
    const OT: usize,
    const QT: usize,
    A: Arrangement = Fixed,
> {
    q_tile: SharedTile<DT, A>,
    /// The first `QT` are read once, the others from the tile in each step.
    q: [[Operand; DT]; MT],
    /// Not divided by the sums yet.
    pub o: [[Accumulator; OT]; MT],
    /// Maxima and sums.
    pub softmax: Softmax<MT>,
}

impl<const MT: usize, const DT: usize, const OT: usize, const QT: usize, A: Arrangement>
    Warp<MT, DT, OT, QT, A>
{
    /// Takes the team's rows of the Q tile.
    ///
    /// # Safety
    /// As all of these: every lane of the warp makes the same call, as do all warps of the team where
    /// one is given, and shared tiles are written and visible.
    #[inline(always)]
    pub unsafe fn new<const T: usize>(
        q_tile: SharedTile<DT, A>,
        scale: SoftmaxScale,
        team: &Team<T>,
    ) -> Self {
        let mut warp = Warp {
            q_tile,
            q: [[Operand::ZERO; DT]; MT],
            o: [[Accumulator::ZERO; OT]; MT],
            softmax: Softmax::new(scale),
        };
        let lane = special::lane();
        // SAFETY: the caller's promise; nobody but this warp's team uses its rows of the tile.
        unsafe {
            if scale.negative {
                if team.side == 0 {
                    map_tile::<MT, DT, A>(q_tile, Operand::negate);
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

    /// `S = Q K^T`, added up in `S`.
    #[inline(always)]
    pub unsafe fn scores<E: Element, S: Accumulate<E>, const NT: usize>(
        &self,
        k_tile: SharedTile<DT, A>,
    ) -> [[Accumulator; NT]; MT] {
        let mut s = [[S::ZERO; NT]; MT];
        let lane = varying_lane(k_tile);
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
        unsafe { multiply_transposed::<E, S, A, MT, NT, DT>(&mut s, q, k_tile, lane) }
        s.map(|row| row.map(S::widen))
    }

    /// `P = softmax(S)` relative to new maxima, the same in all warps of a team, to which O is rescaled. A
    /// row sees only the first `visible` keys of the block.
    #[inline(always)]
    pub unsafe fn softmax_masked<E: Element, const NT: usize, const T: usize>(
        &mut self,
        mut s: [[Accumulator; NT]; MT],
        visible: [[i32; 2]; MT],
        team: &Team<T>,
    ) -> [[Operand; NT]; MT] {
        let lane = special::lane();
        for mt in 0..MT {
            for nt in 0..NT {
                let limits = visible[mt].map(|v| v - 16 * nt as i32);
                s[mt][nt].mask_columns(lane, limits);
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.softmax_exact::<E, NT, T>(s, team) }
    }

    /// `P = softmax(S)` relative to the maxima as they are, which costs neither a look for new ones
    /// nor a rescaling of O. Where that would overflow, the scores are computed once more, from K,
    /// and the maxima raised.
    #[inline(always)]
    pub unsafe fn softmax<E: Element, const NT: usize>(
        &mut self,
        mut s: [[Accumulator; NT]; MT],
        k_tile: SharedTile<DT, A>,
    ) -> [[Operand; NT]; MT] {
        let sums = self.softmax.apply(&mut s);
        // SAFETY: the caller's promise.
        unsafe {
            if vote::any(!sums.fit()) {
                cold_path();
                let s = self.scores::<E, Accumulator, NT>(k_tile);
                self.softmax_exact::<E, NT, 1>(s, &Team::ALONE)
            } else {
                self.softmax.add(sums);
                s.map(|row| row.map(Accumulator::to_operand::<E>))
            }
        }
    }

    /// `P = softmax(S)` relative to new maxima, the same in all warps of a team, to which O is rescaled.
    #[inline(always)]
    pub unsafe fn softmax_exact<E: Element, const NT: usize, const T: usize>(
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
            // SAFETY: the caller's promise. The barrier keeps the assembler from mixing the tiles, at
            // the price of spilled registers.
            let factors = unsafe {
                barrier::warp();
                if T == 1 {
                    maxima[mt] = self.softmax.maxima(&s[mt]);
                }
                self.softmax.update(mt, &mut s[mt], maxima[mt])
            };
            for dt in 0..OT {
                self.o[mt][dt].scale_rows(factors);
            }
            p[mt] = s[mt].map(Accumulator::to_operand::<E>);
        }
        p
    }

    /// `O += P V`, added up in `S`, where a row sees only the first `visible` keys of the block.
    #[inline(always)]
    pub unsafe fn accumulate_masked<E: Element, S: Accumulate<E>, M: Mask, const NT: usize>(
        &mut self,
        p: [[Operand; NT]; MT],
        v_tile: SharedTile<DT, A>,
        visible: [[i32; 2]; MT],
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            if M::CAUSAL && has_non_finite::<E, A, NT, OT, DT>(v_tile, |dt| dt) {
                self.accumulate_guarded::<E, NT>(p, v_tile, visible);
            } else {
                self.accumulate::<E, S, NT>(p, v_tile);
            }
        }
    }

    /// `O += P V`, added up in `S`.
    #[inline(always)]
    pub unsafe fn accumulate<E: Element, S: Accumulate<E>, const NT: usize>(
        &mut self,
        p: [[Operand; NT]; MT],
        v_tile: SharedTile<DT, A>,
    ) {
        let lane = varying_lane(v_tile);
        // Not by `map`, whose code the compiler leaves in an order that costs registers.
        let p = |nt: usize| {
            let mut slices = [Operand::ZERO; MT];
            for mt in 0..MT {
                slices[mt] = p[mt][nt];
            }
            slices
        };
        // SAFETY: the caller's promise.
        unsafe { multiply::<E, S, A, MT, NT, OT, DT>(&mut self.o, p, v_tile, lane, |dt| dt) }
    }
}

/// `f` of the two rows a lane holds in each of `MT` tiles, counted from the first.
#[inline(always)]
pub fn map_rows<T: Copy + Default, const MT: usize>(f: impl Fn(u32) -> T) -> [[T; 2]; MT] {
    let lane = special::lane();
    let mut values = [[T::default(); 2]; MT];
    for mt in 0..MT {
        for r in 0..2 {
            values[mt][r] = f(16 * mt as u32 + lane / 4 + 8 * r as u32);
        }
    }
    values
}

/// Replaces the `MT` 16-row tiles of a shared tile by what `f` makes of them.
///
/// # Safety
/// As [`Warp::new`]; nobody but this warp uses these rows.
#[inline(always)]
pub unsafe fn map_tile<const MT: usize, const DT: usize, A: Arrangement>(
    tile: SharedTile<DT, A>,
    f: impl Fn(Operand) -> Operand,
) {
    let lane = special::lane();
    for mt in 0..MT {
        for dt in 0..DT {
            // SAFETY: the caller's promise.
            unsafe {
                let operand = f(tile.a(lane, mt, dt));
                barrier::warp();
                tile.set(lane, mt, dt, operand);
            }
        }
    }
}

/// The lane, as if it depended on a tile that changes from step to step: so that the assembler
/// computes a lane's addresses anew, in the shadow of the products, where held for the whole loop they
/// would take a dozen registers. Shared addresses have no sign bit to add.
#[inline(always)]
fn varying_lane<const DT: usize, A: Arrangement>(tile: SharedTile<DT, A>) -> u32 {
    special::lane() + (tile.base >> 31)
}
