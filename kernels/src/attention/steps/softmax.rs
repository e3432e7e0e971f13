//! Online softmax in base 2 (FlashAttention-2, Algorithm 1, lines 9, 10, 12 and 13).
//!
//! With `c = |scale| * log2(e)`, a raw score `s` has the scaled score `c s`. A row's `m` is the largest scaled score
//! so far, its `l` the sum of `2^(c s - m)` so far. A raw score becomes a probability with one fused
//! multiply-add and one `ex2`. Row sums stay per lane until the end: all lanes of a row rescale them by the
//! same factor.
//!
//! Any other number in the place of `m` gives the same result, as long as nothing overflows or vanishes. So
//! `m` need not follow every new maximum: a block is first tried with the old `m`, and only if its
//! probabilities are too large does `m` rise. Nearly every step then needs no search for the maximum, no
//! exchange between lanes and no rescaling of O: scores become probabilities by the two instructions.

use crate::ptx::{math, shuffle, special};
use crate::tile::Accumulator;

/// The softmax scale, split so that scaled scores have the order of raw ones whatever its sign.
#[derive(Clone, Copy)]
pub struct SoftmaxScale {
    /// `|scale| * log2(e)`, positive.
    pub log2: f32,
    /// Whether scores must be negated.
    pub negative: bool,
}

impl SoftmaxScale {
    /// Splits a finite scale.
    #[inline(always)]
    pub fn new(scale: f32) -> Self {
        SoftmaxScale {
            // A scale of 0 would turn the -inf of masked scores into NaN; the smallest normal
            // number gives the same probabilities.
            log2: (scale.abs() * core::f32::consts::LOG2_E).max(f32::MIN_POSITIVE),
            negative: scale < 0.0,
        }
    }

    /// The scale with its sign, in base 2.
    #[inline(always)]
    pub fn signed(self) -> f32 {
        if self.negative { -self.log2 } else { self.log2 }
    }
}

/// The largest sum of a lane's probabilities of a row in a block. Their format holds up to 2^16 (IEEE
/// binary16). `m` is at most the row's largest score, so no more probabilities vanish than with the true maximum.
const MOST: f32 = 16384.0;

/// The base-2 logarithm of the largest probability of a block that keeps the maxima.
const MOST_LOG2: f32 = 14.0;

/// Running maximum and sum of the rows of `MT` 16-row tiles, two rows a lane in each.
pub struct Softmax<const MT: usize> {
    max: [[f32; 2]; MT],
    sum: [[f32; 2]; MT],
    scale: f32,
}

impl<const MT: usize> Softmax<MT> {
    /// Before the first block.
    #[inline(always)]
    pub fn new(scale: SoftmaxScale) -> Self {
        Softmax {
            max: [[f32::NEG_INFINITY; 2]; MT],
            sum: [[0.0; 2]; MT],
            scale: scale.log2,
        }
    }

    /// Before the first block: takes a score in base 2 that no key has into each row's sum; none if it is -inf. Of the warps of
    /// a team, which add up their sums, the `first` alone counts it.
    #[inline(always)]
    pub fn take_sink(&mut self, sink: f32, first: bool) {
        if sink != f32::NEG_INFINITY {
            for mt in 0..MT {
                // One lane of a row has it in its sum.
                let sum = if first && special::lane().is_multiple_of(4) {
                    1.0
                } else {
                    0.0
                };
                self.max[mt] = [sink; 2];
                self.sum[mt] = [sum; 2];
            }
        }
    }

    /// [`take_sink`](Self::take_sink) of rows that have sinks of their own.
    #[inline(always)]
    pub fn take_sinks(&mut self, sinks: [[f32; 2]; MT], first: bool) {
        for mt in 0..MT {
            for r in 0..2 {
                let is_sink = sinks[mt][r] != f32::NEG_INFINITY;
                if is_sink {
                    self.max[mt][r] = sinks[mt][r];
                    let is_counted = first && special::lane().is_multiple_of(4);
                    self.sum[mt][r] = if is_counted { 1.0 } else { 0.0 };
                }
            }
        }
    }

    /// The largest scaled scores of a block in the rows of a tile.
    ///
    /// # Safety
    /// Every lane of the warp must reach the same call.
    #[inline(always)]
    pub unsafe fn maxima<const NT: usize>(&self, s: &[Accumulator; NT]) -> [f32; 2] {
        let mut maxima = [0.0; 2];
        for r in 0..2 {
            let mut max = f32::NEG_INFINITY;
            for nt in 0..NT {
                let [a, b, c, d] = s[nt].row(r);
                max = max.max(a.max(b)).max(c.max(d));
            }
            // SAFETY: convergence is the caller's promise.
            maxima[r] = unsafe { shuffle::reduce::<4>(max, f32::max) } * self.scale;
        }
        maxima
    }

    /// Takes in a block's scores of tile `mt`, whose maxima are at most `maxima`: turns `s` from raw scores into
    /// probabilities relative to the new maxima. Returns the factors that rescale the rows of earlier results.
    #[inline(always)]
    pub fn update<const NT: usize>(
        &mut self,
        mt: usize,
        s: &mut [Accumulator; NT],
        maxima: [f32; 2],
    ) -> [f32; 2] {
        let mut factors = [0.0; 2];
        for r in 0..2 {
            let max = self.max[mt][r].max(maxima[r]);

            // A row that saw no key yet keeps m = -inf. To subtract 0 instead makes its probabilities
            // 2^-inf = 0, where -inf - -inf would be NaN.
            let reference = if max == f32::NEG_INFINITY { 0.0 } else { max };
            factors[r] = math::exp2(self.max[mt][r] - reference);
            let mut sum = self.sum[mt][r] * factors[r];
            for nt in 0..NT {
                let p = s[nt]
                    .row(r)
                    .map(|s| math::exp2(math::fma(s, self.scale, -reference)));
                sum += (p[0] + p[1]) + (p[2] + p[3]);
                s[nt].set_row(r, p);
            }
            self.max[mt][r] = max;
            self.sum[mt][r] = sum;
        }
        factors
    }

    /// Continues from earlier results: the row's maximum and a lane's sum, of row `g + 8 r` of tile `mt`.
    #[inline(always)]
    pub fn resume(&mut self, mt: usize, r: usize, Total { max, sum }: Total) {
        self.max[mt][r] = max;
        self.sum[mt][r] = sum;
    }

    /// Whether the old maxima serve a block of raw scores: none is so large that its probability would not fit.
    ///
    /// They do not serve a row that saw no key. NaN does not matter: it stays NaN under any maximum.
    #[inline(always)]
    pub fn serves<const NT: usize>(&self, s: &[[Accumulator; NT]; MT]) -> bool {
        let mut serves = true;
        for mt in 0..MT {
            for r in 0..2 {
                let mut max = f32::NEG_INFINITY;
                for nt in 0..NT {
                    let [a, b, c, d] = s[mt][nt].row(r);
                    max = max.max(a.max(b)).max(c.max(d));
                }
                serves &= math::fma(max, self.scale, -self.max[mt][r]) <= MOST_LOG2;
            }
        }
        serves
    }

    /// A lane's maximum and sum of its two rows of tile `mt`, from which another lane can [resume](Self::resume).
    #[inline(always)]
    pub fn of_lane(&self, mt: usize) -> [Total; 2] {
        let (max, sum) = (self.max[mt], self.sum[mt]);
        [0, 1].map(|r| Total {
            max: max[r],
            sum: sum[r],
        })
    }

    /// Takes in what a lane found of row `g + 8 r` of tile `mt` on other keys. Returns the factors of the results so far,
    /// and of the other ones.
    #[inline(always)]
    pub fn join(&mut self, mt: usize, r: usize, other: Total) -> [f32; 2] {
        let max = self.max[mt][r].max(other.max);
        let reference = if max == f32::NEG_INFINITY { 0.0 } else { max };
        let factors = [self.max[mt][r], other.max].map(|max| math::exp2(max - reference));
        self.sum[mt][r] = self.sum[mt][r] * factors[0] + other.sum * factors[1];
        self.max[mt][r] = max;
        factors
    }

    /// Turns a block's raw scores into probabilities relative to the old maxima. They are useful only if their sums
    /// [fit](Sums::fit); then [`add`](Self::add) takes the sums in.
    ///
    /// The sums of a row that saw no key do not fit: every score exceeds its maximum, -inf.
    #[inline(always)]
    pub fn apply<const NT: usize>(&self, s: &mut [[Accumulator; NT]; MT]) -> Sums<MT> {
        let mut sums = [[0.0; 2]; MT];
        for mt in 0..MT {
            for r in 0..2 {
                let shift = -self.max[mt][r];
                for nt in 0..NT {
                    let p = s[mt][nt]
                        .row(r)
                        .map(|s| math::exp2(math::fma(s, self.scale, shift)));
                    let four = (p[0] + p[1]) + (p[2] + p[3]);
                    sums[mt][r] = if nt == 0 { four } else { sums[mt][r] + four };
                    s[mt][nt].set_row(r, p);
                }
            }
        }
        Sums(sums)
    }

    /// Takes in the sums of a block.
    #[inline(always)]
    pub fn add(&mut self, sums: Sums<MT>) {
        for mt in 0..MT {
            for r in 0..2 {
                self.sum[mt][r] += sums.0[mt][r];
            }
        }
    }

    /// After the last block: the maximum and the sum of every row.
    ///
    /// # Safety
    /// Every lane of the warp must reach the same call.
    #[inline(always)]
    pub unsafe fn totals(&self) -> [[Total; 2]; MT] {
        let mut totals = [[Total::default(); 2]; MT];
        for mt in 0..MT {
            for r in 0..2 {
                totals[mt][r] = Total {
                    max: self.max[mt][r],
                    // SAFETY: convergence is the caller's promise.
                    sum: unsafe { shuffle::reduce::<4>(self.sum[mt][r], |a, b| a + b) },
                };
            }
        }
        totals
    }
}

/// A lane's sums of the probabilities of a block, by row.
pub struct Sums<const MT: usize>([[f32; 2]; MT]);

impl<const MT: usize> Sums<MT> {
    /// Whether no probability is too large, infinite or NaN.
    #[inline(always)]
    pub fn fit(&self) -> bool {
        let mut fit = true;
        for mt in 0..MT {
            for r in 0..2 {
                fit &= self.0[mt][r] <= MOST;
            }
        }
        fit
    }
}

/// The softmax of a row: a scaled score that no other exceeds by much, and the sum of `2^(c s - max)`. They are
/// lse in two parts, so that large scores cost the sum no digits.
#[derive(Clone, Copy, Default)]
pub struct Total {
    /// -inf if the row sees no key.
    pub max: f32,
    /// 0 if the row sees no key.
    pub sum: f32,
}

impl Total {
    /// The factor that normalizes the row of O, and lse, the log-sum-exp of its scaled scores in base e. For a
    /// row that sees no key they are 0 and -inf.
    #[inline(always)]
    pub fn finish(self) -> (f32, f32) {
        if self.sum == 0.0 {
            return (0.0, f32::NEG_INFINITY);
        }
        let lse2 = self.max + math::log2(self.sum);
        // The largest numbers stand for all scores that base 2 cannot hold.
        let lse = match lse2.abs() < f32::MAX {
            true => lse2 * core::f32::consts::LN_2,
            false => lse2,
        };
        (math::reciprocal(self.sum), lse)
    }
}
