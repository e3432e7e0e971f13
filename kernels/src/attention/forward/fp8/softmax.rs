//! Line 9 of Algorithm 1 in FP8: scores of f16 become probabilities of e4m3.
//!
//! A row's largest probability is to be `2^3`, which e4m3 does not round: scores may exceed the maximum so far a little before it has to
//! follow, and what is 2^13 times smaller than the largest vanishes.
//!
//! O is summed in f16, up to 65504. Values are 2 at most, for they are below 2^[`VALUES_LOG2`](crate::layout::fp8::VALUES_LOG2) before they are
//! rounded, and e4m3 adds up to 1/17 to a probability: sums of probabilities may come to 30900. Where that of a row nears it, its reference
//! rises by 1, which halves its probabilities.
//!
//! Where one row of a warp has to follow or rise, others do that soon would: few blocks are computed again. So the roundings of a row depend on the
//! 16 rows of its warp.

use super::polynomial;
use crate::ptx::{convert, half, math, shuffle, vote};
use crate::tile::{HalfAccumulator, Operand};
use core::hint::cold_path;

/// The base-2 logarithm of a row's largest probability: as much less than 448 that most rows never have to follow.
const LARGEST_LOG2: f32 = 3.0;

/// What carries into the sign of an f16 above 448, the largest number of e4m3, which sums of eight probabilities may be: 16 of a row come to at
/// most 7168.
const ABOVE_MOST: u32 = 0x20ff_20ff;

/// What a lane's part of a row's sum may be before a block: with it four lanes come to at most 30368.
const MOST_SUM: f32 = 5800.0;

/// From which sum on a lane's row rises when another one does: it would soon.
const MUCH: f32 = MOST_SUM / 2.0;

/// The largest reference that pairs of f16 subtract exactly enough: half a unit in its last place is then at most 1.
const FAR: f32 = 2048.0;

/// The largest factor of f16 that leaves products room.
const MOST_FACTOR: f32 = 32768.0;

/// The smallest f16 above 0: a factor of 0 would turn masked scores into NaN.
const LEAST_FACTOR: f32 = 1.0 / 16_777_216.0;

/// -inf and +inf in both halves of a register.
const LOWEST: u32 = 0xfc00_fc00;

/// Running maximum and sum of the two rows of a lane.
#[derive(Clone, Copy)]
pub struct Softmax {
    /// What is subtracted from scores in base 2: the maximum less [`LARGEST_LOG2`], or more, rounded unless it is far from 0, so that it and
    /// [`OFFSET`](polynomial::OFFSET) less it are numbers of f16. -inf before the first key.
    pub reference: [f32; 2],
    /// The lane's part of the sum of `2^(c s - reference)`.
    pub sum: [f32; 2],
    /// The factor of the row's scores, but for the scale of the keys.
    factor: [f32; 2],
}

impl Softmax {
    /// Before the first block, with the factors of the rows: the softmax scale in base 2, times the scale of q.
    #[inline(always)]
    pub fn new(factor: [f32; 2]) -> Self {
        Softmax {
            reference: [f32::NEG_INFINITY; 2],
            sum: [0.0; 2],
            factor: factor.map(rounded_to_f16),
        }
    }

    /// Takes in a block's scores, by their [factors](Self::factors): gives probabilities, and the factors of the rows of O, if these have
    /// to change. Maxima that are `EXACT` follow every block; others follow where the attempt with the old ones exceeds what fits.
    ///
    /// The attempt's operands are there before the vote: the assembler moves what only one side needs behind it, where no exponential
    /// runs beside.
    ///
    /// With polynomials, a part of the exponentials is one: where these bound the loop. References rise here, or [before](Self::rise).
    ///
    /// # Safety
    /// Every lane of the warp makes the same call.
    #[inline(always)]
    pub unsafe fn take<const EXACT: bool, const NT: usize, const PT: usize>(
        &mut self,
        s: &[HalfAccumulator; NT],
        factors: [f32; 2],
        [has_polynomials, rises]: [bool; 2],
    ) -> ([Operand; PT], Option<[f32; 2]>) {
        let mut changes = [1.0; 2];
        if EXACT {
            // SAFETY: the caller's promise.
            changes = [0, 1].map(|r| unsafe { self.follow(r, s, factors[r], rises) });
        }
        let mut p = [Operand::ZERO; PT];
        let attempt = self.attempt(s, factors, has_polynomials, |nt, r, e| {
            p[nt / 2].0[2 * (nt % 2) + r] = convert::e4m3_of_f16(e[0], e[1]);
        });
        // An exact maximum leaves nothing that exceeds but a NaN, and may be too far from 0.
        let fails = [0, 1].map(|r| match EXACT {
            true => !self.is_near(factors, r) | (has_polynomials && attempt.exceeds(r)),
            false => attempt.exceeds(r) | (rises && self.sum[r] > MOST_SUM),
        });
        // SAFETY: the caller's promise.
        if !unsafe { vote::any(fails[0] | fails[1]) } {
            self.add(attempt.totals);
            return (p, EXACT.then_some(changes));
        }
        cold_path();
        let mut served = *self;
        served.add(attempt.totals);
        for r in 0..2 {
            let number = f32::from(u8::from(fails[r]));
            // SAFETY: the caller's promise.
            let (change, fails) = unsafe {
                let fails = shuffle::reduce::<4>(number, f32::max) > 0.0;
                (self.follow(r, s, factors[r], rises), fails)
            };
            let follows = fails | (self.reference[r] != served.reference[r]);
            self.exponentials(r, s, factors[r], |nt, e| {
                let word = convert::e4m3_of_f16(e[0], e[1]);
                let place = &mut p[nt / 2].0[2 * (nt % 2) + r];
                *place = if follows { word } else { *place };
            });
            if follows {
                changes[r] *= change;
            } else {
                self.sum[r] = served.sum[r];
            }
        }
        (p, Some(changes))
    }

    /// The factors of the rows' scores with keys of this scale.
    #[inline(always)]
    pub fn factors(&self, scale: f32) -> [f32; 2] {
        self.factor.map(|factor| (factor * scale).min(1e30))
    }

    /// Whether pairs of f16 hold what a row's scores are multiplied by and lessened by.
    #[inline(always)]
    fn is_near(&self, factors: [f32; 2], r: usize) -> bool {
        (self.reference[r].abs() <= FAR) & (factors[r] <= MOST_FACTOR)
    }

    #[inline(always)]
    fn add(&mut self, totals: [[u32; 2]; 2]) {
        for r in 0..2 {
            let [low, high] = half::widen(half::add(totals[r][0], totals[r][1]));
            self.sum[r] += low + high;
        }
    }

    /// Computes probabilities relative to the maxima so far, in pairs of f16. `take` gets the number of a tile, a row and
    /// its two pairs there. With polynomials, a part of the exponentials is one.
    #[inline(always)]
    fn attempt<const NT: usize>(
        &self,
        s: &[HalfAccumulator; NT],
        factors: [f32; 2],
        has_polynomials: bool,
        mut take: impl FnMut(usize, usize, [u32; 2]),
    ) -> Attempt {
        let mut totals = [[0; 2]; 2];
        let mut highest = [0; 2];
        for r in 0..2 {
            // An infinity exceeds what fits, whatever the scores are.
            let shift = match self.is_near(factors, r) {
                true => -self.reference[r],
                false => f32::INFINITY,
            };
            let upper = shift + polynomial::OFFSET;
            let [shift, upper] = [shift, upper].map(|shift| half::pack(shift, shift));
            let factor = factors[r].max(LEAST_FACTOR);
            let factor = half::pack(factor, factor);
            for nt in 0..NT {
                let scores = [s[nt].0[r], s[nt].0[2 + r]];
                let e = match has_polynomials && polynomial::serves(nt) {
                    true => scores.map(|s| {
                        let y = half::fma_from_zero(s, factor, upper);
                        highest[r] = half::max_or_nan(highest[r], y);
                        polynomial::exp2(y)
                    }),
                    false => scores.map(|s| half::exp2(half::fma(s, factor, shift))),
                };
                let two = half::add(e[0], e[1]);
                totals[r][nt % 2] = match nt {
                    0 | 1 => two,
                    _ => half::add(totals[r][nt % 2], two),
                };
                take(nt, r, e);
            }
        }
        Attempt { totals, highest }
    }

    /// Computes a row's probabilities relative to its maximum, in f32, rounded to pairs of f16, and adds them to its sum. `take` gets the
    /// number of a tile and its two pairs.
    #[inline(always)]
    fn exponentials<const NT: usize>(
        &mut self,
        r: usize,
        s: &[HalfAccumulator; NT],
        factor: f32,
        mut take: impl FnMut(usize, [u32; 2]),
    ) {
        let factor = factor.max(f32::MIN_POSITIVE);
        let shift = without_nan(self.reference[r]);
        for nt in 0..NT {
            let mut e = [0; 2];
            for side in 0..2 {
                let scores = half::widen(s[nt].0[2 * side + r]);
                let [a, b] = scores.map(|s| math::exp2(math::fma(s, factor, shift)));
                self.sum[r] += a + b;
                e[side] = half::pack(a, b);
            }
            take(nt, e);
        }
    }

    /// Lets a row's reference follow the block's maximum, and rise if its sum is much. Gives the factor of the row of O, which its sum has.
    ///
    /// # Safety
    /// Every lane of the warp makes the same call.
    #[inline(always)]
    unsafe fn follow<const NT: usize>(
        &mut self,
        r: usize,
        s: &[HalfAccumulator; NT],
        factor: f32,
        rises: bool,
    ) -> f32 {
        let factor = factor.max(f32::MIN_POSITIVE);
        let [low, high] = half::widen(largest_of(s, r));
        // SAFETY: the caller's promise.
        let largest = unsafe { shuffle::reduce::<4>(low.max(high), f32::max) };
        let of_block = math::fma(largest, factor, -LARGEST_LOG2);
        // SAFETY: the caller's promise.
        let rise = if rises {
            unsafe { self.rise_of(r) }
        } else {
            0.0
        };
        self.refer(r, (self.reference[r] + rise).max(of_block))
    }

    /// Lets references of rows rise whose sums are much, before a block, if that of one is too much. Gives the factors of the rows of O then.
    ///
    /// # Safety
    /// Every lane of the warp makes the same call.
    #[inline(always)]
    pub unsafe fn rise(&mut self) -> Option<[f32; 2]> {
        // SAFETY: the caller's promise.
        unsafe {
            if !vote::any(self.sum[0].max(self.sum[1]) > MOST_SUM) {
                return None;
            }
            cold_path();
            Some([0, 1].map(|r| {
                let rise = self.rise_of(r);
                self.refer(r, self.reference[r] + rise)
            }))
        }
    }

    /// How much the reference of a row rises because of its sum.
    ///
    /// # Safety
    /// Every lane of the warp makes the same call.
    #[inline(always)]
    unsafe fn rise_of(&self, r: usize) -> f32 {
        // SAFETY: the caller's promise.
        let most = unsafe { shuffle::reduce::<4>(self.sum[r], f32::max) };
        if most > MUCH { 1.0 } else { 0.0 }
    }

    /// Makes a row's probabilities relative to a reference, rounded. Gives the factor of the row of O, which its sum has.
    #[inline(always)]
    fn refer(&mut self, r: usize, mut reference: f32) -> f32 {
        if reference.abs() <= FAR {
            // Less the offset it is a number of f16, too.
            let upper = polynomial::OFFSET - rounded_to_f16(reference);
            reference = polynomial::OFFSET - rounded_to_f16(upper);
        }
        let change = math::exp2(self.reference[r] + without_nan(reference));
        self.reference[r] = reference;
        self.sum[r] *= change;
        change
    }
}

/// What is added to scores in base 2: to add 0 to -inf leaves probabilities of 0, where -inf + inf would be NaN.
#[inline(always)]
fn without_nan(reference: f32) -> f32 {
    match reference == f32::NEG_INFINITY {
        true => 0.0,
        false => -reference,
    }
}

/// What an [attempt](Softmax::attempt) shows of each row.
struct Attempt {
    /// Two pairs of sums.
    totals: [[u32; 2]; 2],
    /// A pair of the largest numbers that polynomials got, or NaN.
    highest: [u32; 2],
}

impl Attempt {
    /// Whether a probability of the row may exceed what fits, or be NaN. A sum is at least as large as each of its terms.
    #[inline(always)]
    fn exceeds(&self, r: usize) -> bool {
        let [a, b] = self.totals[r];
        let sums = half::max(a, b) + ABOVE_MOST;
        let highest = self.highest[r] + polynomial::ABOVE_MOST;
        (sums | highest) & 0x8000_8000 != 0
    }
}

/// The largest scores of a row, in a pair.
#[inline(always)]
fn largest_of<const NT: usize>(s: &[HalfAccumulator; NT], r: usize) -> u32 {
    let mut largest = LOWEST;
    for nt in 0..NT {
        largest = half::max(largest, half::max(s[nt].0[r], s[nt].0[2 + r]));
    }
    largest
}

/// A number with the digits of an f16, whatever its exponent.
#[inline(always)]
fn rounded_to_f16(number: f32) -> f32 {
    f32::from_bits((number.to_bits() + 0x1000) & !0x1fff)
}
