//! Scores within bounds: `cap * tanh(score / cap)`, in f16.

use crate::attention::options::score::{LEAST_SOFTCAP, MOST_SOFTCAP};
use crate::ptx::{half, math};
use crate::tile::HalfAccumulator;
use core::f32::consts::LOG2_E;

/// What stands for the bound, or twice that: f16 then has all its digits for scores down to 2^-28 of it.
const MOST: f32 = 32768.0;

/// The exponent of an f32.
const EXPONENT: u32 = 0x7f80_0000;

/// Scores up to this part of the bound stay: `tanh` would change them by 2^-15 at most.
const LEAST: f32 = 1.0 / 128.0;

/// Replaces products of two rows of a lane by bounded scores. Gives the factors that make them scores in base 2, for those of the products,
/// which are finite.
#[inline(always)]
pub fn cap<const NT: usize>(
    s: &mut [HalfAccumulator; NT],
    factors: [f32; 2],
    cap: f32,
) -> [f32; 2] {
    let bound = LOG2_E * cap.max(LEAST_SOFTCAP).min(MOST_SOFTCAP);
    // The bound is a power of two, which f16 does not round, times what has the exponent of 16384.
    let unit = f32::from_bits(bound.to_bits() & EXPONENT) * (2.0 / MOST);
    let most = f32::from_bits(bound.to_bits() & !EXPONENT | (0.5 * MOST).to_bits());
    let mut of_scores = factors;
    for r in 0..2 {
        // Finite: times 0 it is 0.
        let share = (factors[r] * math::reciprocal(bound)).min(f32::MAX);
        // No sum of products passes 32768.
        let is_far = share * MOST > LEAST;
        // Bits, for a choice would be a branch.
        let far = if is_far { u32::MAX } else { 0 };
        for nt in 0..NT {
            for side in 0..2 {
                let pair = &mut s[nt].0[2 * side + r];
                let [a, b] = half::widen(*pair).map(|s| math::tanh(s * share) * most);
                *pair = half::pack(a, b) & far | *pair & !far;
            }
        }
        of_scores[r] = if is_far { unit } else { factors[r] };
    }
    of_scores
}
