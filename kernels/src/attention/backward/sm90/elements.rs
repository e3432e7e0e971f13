//! What a step computes element by element: P = exp(S - lse), and dS = P * (dP - delta).

use super::shown::Shown;
use crate::abi::BackwardParams;
use crate::attention::options::mask::Interval;
use crate::attention::options::score::{Corner, Score};
use crate::ptx::{math, shared, special};
use crate::tile::{Accumulator, Element, Operand};

/// The elements of a step, and what they are computed from.
pub struct Elements<C, I, const NT: usize> {
    score: C,
    corner: Corner,
    /// The factor of scores in the exponent, of base 2.
    scale: f32,
    /// Shared addresses of the queries' lse and delta.
    addresses: [u32; 2],
    /// lse of the lane's columns, then delta: `[slice][half][column]`.
    statistics: [[[f32; 2]; 2]; NT],
    /// Which pairs see each other, where `masked`.
    shown: Shown<I>,
    masked: bool,
    /// P, rounded.
    p: [Operand; NT],
    /// P times the derivatives of the scores, rounded: the registers hold no f32 beside P.
    slopes: [Operand; NT],
}

impl<C: Score, I: Interval, const NT: usize> Elements<C, I, NT> {
    /// Tiles whose lse is loaded ahead, and the first one whose delta is: the registers hold no more.
    const EARLY: (usize, usize) = match C::SCALED {
        true => (NT, NT - 4),
        false => (4, NT),
    };

    /// The elements of a block of queries, whose lse and delta lie at `addresses`. Loads the first lse.
    ///
    /// # Safety
    /// lse has landed.
    #[inline(always)]
    pub unsafe fn new(
        params: &BackwardParams,
        (score, corner): (C, Corner),
        addresses: [u32; 2],
        masked: bool,
    ) -> Self {
        let mut statistics = [[[0.0; 2]; 2]; NT];
        for nt in 0..Self::EARLY.0 {
            // SAFETY: the caller's promise.
            statistics[nt] = unsafe { of_columns(addresses[0], nt) };
        }
        Elements {
            score,
            corner,
            scale: match C::SCALED {
                true => params.forward.scale * core::f32::consts::LOG2_E,
                false => score.scale().signed(),
            },
            addresses,
            statistics,
            shown: Shown::default(),
            masked,
            p: [Operand::ZERO; NT],
            slopes: [Operand::ZERO; NT],
        }
    }

    /// Reads which pairs see each other, where the mask may lie in device memory: before the products are there. `queries` see the
    /// lane's two keys.
    #[inline(always)]
    pub fn read_mask(&mut self, queries: impl FnOnce() -> [I; 2]) {
        if self.masked && !C::SCALED {
            self.shown = Shown::new::<NT>(queries());
        }
    }

    /// P = exp(S - lse), in the place of S. Rounds it where scores have derivatives, which then stand in for f32.
    ///
    /// # Safety
    /// lse and delta have landed.
    #[inline(always)]
    pub unsafe fn probabilities<E: Element>(&mut self, s: &mut [Accumulator; NT]) {
        let [lse, delta] = self.addresses;
        let (ahead, first_early) = Self::EARLY;
        for nt in 0..NT {
            let corner = self.corner.skip::<true>(0, nt);
            let derivatives = self.score.apply_deriving(&mut s[nt], corner);
            for half in 0..2 {
                let lse = self.statistics[nt][half];
                for i in 0..4 {
                    let x = &mut s[nt].0[4 * half + i];
                    *x = math::exp2(math::fma(*x, self.scale, -lse[i % 2]));
                }
            }
            // SAFETY: the caller's promise.
            unsafe {
                if nt + ahead < NT {
                    self.statistics[nt + ahead] = of_columns(lse, nt + ahead);
                }
                if nt >= first_early {
                    self.statistics[nt] = of_columns(delta, nt);
                }
            }
            if !C::SCALED {
                if self.masked {
                    self.shown.zero_hidden(&mut s[nt], nt);
                }
                self.p[nt] = s[nt].to_operand::<E>();
                self.slopes[nt] = product(s[nt], derivatives).to_operand::<E>();
                self.score = self.score.after(self.p[nt]);
            }
        }
    }

    /// dP - delta, in the place of dP.
    ///
    /// # Safety
    /// delta has landed.
    #[inline(always)]
    pub unsafe fn subtract_delta(&mut self, dp: &mut [Accumulator; NT]) {
        for nt in 0..NT {
            if nt < Self::EARLY.1 {
                // SAFETY: the caller's promise.
                self.statistics[nt] = unsafe { of_columns(self.addresses[1], nt) };
            }
            for half in 0..2 {
                for i in 0..4 {
                    dp[nt].0[4 * half + i] -= self.statistics[nt][half][i % 2];
                }
            }
        }
    }

    /// Puts 0 into P and dP - delta where a pair does not see each other. Gives P, rounded.
    #[inline(always)]
    pub fn mask<E: Element>(
        &mut self,
        p: &mut [Accumulator; NT],
        dp: &mut [Accumulator; NT],
        queries: impl FnOnce() -> [I; 2],
    ) -> [Operand; NT] {
        if self.masked {
            if C::SCALED {
                self.shown = Shown::new::<NT>(queries());
            }
            for nt in 0..NT {
                if C::SCALED {
                    self.shown.zero_hidden(&mut p[nt], nt);
                }
                self.shown.zero_hidden(&mut dp[nt], nt);
            }
        }
        match C::SCALED {
            true => p.map(Accumulator::to_operand::<E>),
            false => self.p,
        }
    }

    /// dS = P * (dP - delta), rounded; added to the gradient of the bias, of a batch entry and query head.
    ///
    /// # Safety
    /// The conditions of [`Score::add_gradients`].
    #[inline(always)]
    pub unsafe fn gradients<E: Element>(
        &self,
        params: &BackwardParams,
        head: [u32; 2],
        p: &[Accumulator; NT],
        dp: &[Accumulator; NT],
    ) -> [Operand; NT] {
        let mut ds = [Operand::ZERO; NT];
        for nt in 0..NT {
            if C::SCALED {
                ds[nt] = product(p[nt], dp[nt]).to_operand::<E>();
                continue;
            }
            let times = |factors: Operand| {
                let mut gradients = dp[nt];
                gradients.multiply_by::<E>(factors);
                gradients
            };
            let gradients = times(self.slopes[nt]);
            ds[nt] = gradients.to_operand::<E>();
            let of_bias = match C::adds_underived() {
                true => times(self.p[nt]),
                false => gradients,
            };
            let corner = self.corner.skip::<true>(0, nt);
            // SAFETY: the caller's promise.
            unsafe { C::add_gradients::<1, 1, true>(params, head, &[[of_bias]], corner) }
        }
        ds
    }
}

/// lse or delta of the lane's columns of slice `nt`, of the queries' at a shared address.
///
/// # Safety
/// They have landed.
#[inline(always)]
pub unsafe fn of_columns(address: u32, nt: usize) -> [[f32; 2]; 2] {
    [0, 1].map(|half| {
        let column = 16 * nt as u32 + 8 * half + 2 * (special::lane() % 4);
        // SAFETY: the caller's promise.
        unsafe { shared::load_f32x2(address + 4 * column) }
    })
}

/// The products of elements.
#[inline(always)]
fn product(mut a: Accumulator, b: Accumulator) -> Accumulator {
    for i in 0..8 {
        a.0[i] *= b.0[i];
    }
    a
}
