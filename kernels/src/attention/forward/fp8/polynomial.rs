//! 2^x of pairs of f16 by a polynomial.
//!
//! Where the head dim is small, exponentials take longer than products: 16 a clock of a multiprocessor. A part of them is computed by the
//! units for sums and products instead, as FlashAttention-4 (Zadouri et al. 2026) does for f32 on Blackwell.

use crate::ptx::half;

/// Each of so many tiles of 16 keys has one whose exponentials are polynomials.
const TILES: usize = 4;

/// Whether tile `nt` is one of them.
pub const fn serves(nt: usize) -> bool {
    nt % TILES == TILES - 1
}

/// -15 and 15: 2^-15 becomes 0, and 2^15 exceeds what fits.
const BOUNDS: [u32; 2] = [0xcb80_cb80, 0x4b80_4b80];

/// 1536, where f16 has a unit of 1: its last six bits count up and down from 0.
const INTEGERS: u32 = 0x6600_6600;
const MINUS_INTEGERS: u32 = 0xe600_e600;
const LAST_BITS: u32 = 0x003f_003f;

const ONE: u32 = 0x3c00_3c00;
const MINUS_ONE: u32 = 0xbc00_bc00;

/// Of `2^f = 1 + c1 f + c2 f^2 + c3 f^3`, `f` from -1/2 to 1/2: 0.6927, 0.242 and 0.0565, found by trying all near these.
const COEFFICIENTS: [u32; 3] = [0x398b_398b, 0x33be_33be, 0x2b3b_2b3b];

/// `2^x`, off by at most 0.00053 of it from 2^-13 on; of a NaN more than fits.
#[inline(always)]
pub fn exp2(x: u32) -> u32 {
    let x = half::min_or_nan(half::max_or_nan(x, BOUNDS[0]), BOUNDS[1]);
    let integer = half::add(x, INTEGERS);
    let f = half::fma(half::add(integer, MINUS_INTEGERS), MINUS_ONE, x);
    let [c1, c2, c3] = COEFFICIENTS;
    let power = half::fma(half::fma(half::fma(f, c3, c2), f, c1), f, ONE);
    // The integer is added to the exponent. What the low half carries is a unit of the high one.
    ((integer & LAST_BITS) << 10).wrapping_add(power)
}
