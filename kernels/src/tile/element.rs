//! The 16-bit element types: the instructions that differ between them.

use crate::ptx::{convert, math, mma};

/// A 16-bit floating-point type of the tensor cores. Values travel as bits, two to a register.
pub trait Element {
    /// Exponent bits, set in both halves of a register: all ones in an infinity or NaN.
    const EXPONENTS: u32;
    /// Lowest exponent bit, in both halves.
    const EXPONENT_LSBS: u32;
    /// 1.0.
    const ONE: u32;
    /// Whether it is bfloat16.
    const IS_BF16: bool;

    /// The number that `bits` stand for.
    fn widen(bits: u16) -> f32;

    /// Rounds two f32 to nearest even; `lo` goes to the low half.
    fn pack(lo: f32, hi: f32) -> u32;

    /// `sum + 0 * pair`: a pair of zeros turns into NaN, to stay so, at an element that is infinite or NaN.
    fn add_zero_times(sum: u32, pair: u32) -> u32;

    /// `a * b + d`, 16x8.
    ///
    /// # Safety
    /// Every lane of the warp must reach the same call.
    unsafe fn mma(d: [f32; 4], a: [u32; 4], b: [u32; 2]) -> [f32; 4];
}

/// IEEE binary16.
pub struct F16;

impl Element for F16 {
    const EXPONENTS: u32 = 0x7c00_7c00;
    const EXPONENT_LSBS: u32 = 0x0400_0400;
    const ONE: u32 = 0x3c00;
    const IS_BF16: bool = false;

    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        convert::f16(bits)
    }

    #[inline(always)]
    fn pack(lo: f32, hi: f32) -> u32 {
        convert::f16x2(lo, hi)
    }

    #[inline(always)]
    fn add_zero_times(sum: u32, pair: u32) -> u32 {
        math::fma_f16x2(pair, 0, sum)
    }

    #[inline(always)]
    unsafe fn mma(d: [f32; 4], a: [u32; 4], b: [u32; 2]) -> [f32; 4] {
        // SAFETY: convergence is the caller's promise.
        unsafe { mma::f16(d, a, b) }
    }
}

/// bfloat16.
pub struct Bf16;

impl Element for Bf16 {
    const EXPONENTS: u32 = 0x7f80_7f80;
    const EXPONENT_LSBS: u32 = 0x0080_0080;
    const ONE: u32 = 0x3f80;
    const IS_BF16: bool = true;

    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        f32::from_bits(u32::from(bits) << 16)
    }

    #[inline(always)]
    fn pack(lo: f32, hi: f32) -> u32 {
        convert::bf16x2(lo, hi)
    }

    #[inline(always)]
    fn add_zero_times(sum: u32, pair: u32) -> u32 {
        math::fma_bf16x2(pair, 0, sum)
    }

    #[inline(always)]
    unsafe fn mma(d: [f32; 4], a: [u32; 4], b: [u32; 2]) -> [f32; 4] {
        // SAFETY: convergence is the caller's promise.
        unsafe { mma::bf16(d, a, b) }
    }
}
