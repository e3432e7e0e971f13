//! 2^x of pairs of f16 by a polynomial.
//!
//! Exponentials take 16 clocks of a quarter of a multiprocessor for a pair, and more while tensor cores sum in f32, whose sums go through the
//! registers. A part of them is computed by the units for sums and products instead, as FlashAttention-4 (Zadouri et al. 2026) does for f32
//! on Blackwell.

use crate::ptx::half;

/// Whether exponentials of tile `nt` of 16 keys are polynomials: three of eight are.
pub const fn serves(nt: usize) -> bool {
    matches!(nt % 8, 2 | 5 | 7)
}

/// What `y` is more than the exponent: a probability of 2^-15 becomes 0.
pub const OFFSET: f32 = 15.0;

/// What carries into the sign of an f16 above 24: from there on probabilities exceed what fits, and from 31 on [`exp2`] is wrong.
pub const ABOVE_MOST: u32 = 0x31ff_31ff;

/// 1024, from where on f16 has a unit of 1: its last bits count up from 0.
const INTEGERS: u32 = 0x6400_6400;
const MINUS_INTEGERS: u32 = 0xe400_e400;

/// What its other bits in the low half add to the high half, and the exponent of 1 in both.
const CARRIED: u32 = ((INTEGERS & 0xffff) << 10) + ONE;

const ONE: u32 = 0x3c00_3c00;
const MINUS_ONE: u32 = 0xbc00_bc00;

/// Of `2^f = 1 + c1 f + c2 f^2`, `f` from -1/2 to 1/2: 0.7017 and 0.2399, whose error is least in the mean of squares, 0.11 %.
const COEFFICIENTS: [u32; 2] = [0x399d_399d, 0x33ad_33ad];

/// `2^(y - 15)` of `y` from 0 to 24, off by at most 0.27 % from 1 on, and 0 of 0; of a NaN any number.
#[inline(always)]
pub fn exp2(y: u32) -> u32 {
    let integer = half::add(y, INTEGERS);
    let f = half::fma(half::add(integer, MINUS_INTEGERS), MINUS_ONE, y);
    let [c1, c2] = COEFFICIENTS;
    let power = half::fma(half::fma(f, c2, c1), f, ONE);
    // The integer is added to the exponent.
    (integer << 10).wrapping_add(power).wrapping_sub(CARRIED)
}
