//! The 16-bit element types: the instructions that differ between them.
//!
//! Kernels of the two types differ in the text of instructions alone, and the builder writes bf16's from f16's. So the
//! compiler must not see a constant of a type: it comes out of an instruction, too.

use crate::layout::element;
use crate::ptx::{convert, half, math, mma};

/// A 16-bit floating-point type of the tensor cores. Values travel as bits, two to a register.
pub trait Element {
    /// Whether it is bfloat16.
    const IS_BF16: bool;
    /// Bytes of an element.
    const BYTES: u32 = element::BYTES;
    /// The k of its instructions: elements of A and B that one multiplies along the inner dimension.
    const K: u32 = element::K;

    /// Exponent bits, set in both halves of a register: all ones in an infinity or NaN.
    fn exponents() -> u32;

    /// Lowest exponent bit, in both halves.
    fn exponent_lsbs() -> u32;

    /// The bits of 1.
    fn one() -> u32;

    /// The number that `bits` stand for.
    fn widen(bits: u16) -> f32;

    /// Four numbers of e4m3, in pairs.
    fn of_e4m3(bytes: u32) -> [u32; 2];

    /// Rounds two f32 to nearest even; `lo` goes to the low half.
    fn pack(lo: f32, hi: f32) -> u32;

    /// `sum + 0 * pair`: a pair of zeros turns into NaN, to stay so, at an element that is infinite or NaN.
    fn add_zero_times(sum: u32, pair: u32) -> u32;

    /// The larger elements of two pairs; of a number and a NaN the number.
    fn larger(a: u32, b: u32) -> u32;

    /// The smaller elements of two pairs; of a number and a NaN the number.
    fn smaller(a: u32, b: u32) -> u32;

    /// `a * b + d`, 16x8.
    ///
    /// # Safety
    /// Every lane of the warp must reach the same call.
    unsafe fn mma(d: [f32; 4], a: [u32; 4], b: [u32; 2]) -> [f32; 4];
}

/// Defines element types by their functions in [`ptx`](crate::ptx).
macro_rules! elements {
    ($($(#[$doc:meta])* $name:ident: $type:ident, $pack:ident, $fma:ident, $max:ident, $min:ident, bf16 = $is_bf16:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub struct $name;

        impl Element for $name {
            const IS_BF16: bool = $is_bf16;

            #[inline(always)]
            fn exponents() -> u32 {
                convert::$type::exponents()
            }

            #[inline(always)]
            fn exponent_lsbs() -> u32 {
                convert::$type::exponent_lsbs()
            }

            #[inline(always)]
            fn one() -> u32 {
                convert::$type::one()
            }

            #[inline(always)]
            fn widen(bits: u16) -> f32 {
                convert::$type::widen(bits)
            }

            #[inline(always)]
            fn of_e4m3(bytes: u32) -> [u32; 2] {
                [convert::$type::of_low_e4m3(bytes), convert::$type::of_high_e4m3(bytes)]
            }

            #[inline(always)]
            fn pack(lo: f32, hi: f32) -> u32 {
                convert::$pack(lo, hi)
            }

            #[inline(always)]
            fn add_zero_times(sum: u32, pair: u32) -> u32 {
                math::$fma(pair, 0, sum)
            }

            #[inline(always)]
            fn larger(a: u32, b: u32) -> u32 {
                math::$max(a, b)
            }

            #[inline(always)]
            fn smaller(a: u32, b: u32) -> u32 {
                math::$min(a, b)
            }

            #[inline(always)]
            unsafe fn mma(d: [f32; 4], a: [u32; 4], b: [u32; 2]) -> [f32; 4] {
                // SAFETY: convergence is the caller's promise.
                unsafe { mma::$type(d, a, b) }
            }
        }
    )*};
}

elements! {
    /// IEEE binary16.
    F16: f16, f16x2, fma_f16x2, max_f16x2, min_f16x2, bf16 = false;

    /// bfloat16.
    Bf16: bf16, bf16x2, fma_bf16x2, max_bf16x2, min_bf16x2, bf16 = true;
}

/// IEEE binary16 in kernels of any type.
pub struct Half;

impl Element for Half {
    const IS_BF16: bool = false;

    #[inline(always)]
    fn exponents() -> u32 {
        half::exponents()
    }

    #[inline(always)]
    fn exponent_lsbs() -> u32 {
        half::exponent_lsbs()
    }

    #[inline(always)]
    fn one() -> u32 {
        half::one()
    }

    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        convert::any_f16(bits)
    }

    #[inline(always)]
    fn of_e4m3(bytes: u32) -> [u32; 2] {
        [half::of_low_e4m3(bytes), half::of_high_e4m3(bytes)]
    }

    #[inline(always)]
    fn pack(lo: f32, hi: f32) -> u32 {
        half::pack(lo, hi)
    }

    #[inline(always)]
    fn add_zero_times(sum: u32, pair: u32) -> u32 {
        half::fma(pair, 0, sum)
    }

    #[inline(always)]
    fn larger(a: u32, b: u32) -> u32 {
        half::max(a, b)
    }

    #[inline(always)]
    fn smaller(a: u32, b: u32) -> u32 {
        half::min(a, b)
    }

    #[inline(always)]
    unsafe fn mma(d: [f32; 4], a: [u32; 4], b: [u32; 2]) -> [f32; 4] {
        // SAFETY: convergence is the caller's promise.
        unsafe { mma::any_f16(d, a, b) }
    }
}
