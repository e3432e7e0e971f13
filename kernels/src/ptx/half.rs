//! Arithmetic on pairs of f16 in kernels of any type: their twins of bf16 [keep](crate::text::twin) instructions with this mark.

use core::arch::asm;

/// Constants, which the compiler must not see: those of [`convert`](super::convert) are other ones in bf16.
macro_rules! constants {
    ($($(#[$doc:meta])* $name:ident = $value:literal;)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        pub fn $name() -> u32 {
            let value: u32;
            // SAFETY: a constant.
            unsafe {
                asm!(concat!("mov.b32 {}, ", $value, "; /* f16 */"), out(reg32) value, options(pure, nomem, nostack));
            }
            value
        }
    )*};
}

constants! {
    /// Exponent bits, in both halves of a register.
    exponents = "0x7c007c00";

    /// Lowest exponent bit, in both halves of a register.
    exponent_lsbs = "0x04000400";

    /// The bits of 1.
    one = "0x3c00";
}

arithmetic! {
    /// The two numbers of e4m3 in the low half.
    of_low_e4m3(bytes: u32 in reg32) -> u32 =
        "{{ .reg .b16 low, high; mov.b32 {{low, high}}, {1}; cvt.rn.f16x2.e4m3x2 {0}, low; }} /* f16 */";

    /// The two numbers of e4m3 in the high half.
    of_high_e4m3(bytes: u32 in reg32) -> u32 =
        "{{ .reg .b16 low, high; mov.b32 {{low, high}}, {1}; cvt.rn.f16x2.e4m3x2 {0}, high; }} /* f16 */";

    /// `lo` and `hi`, rounded to nearest even, `lo` in the low half.
    pack(lo: f32 in reg32, hi: f32 in reg32) -> u32 = "cvt.rn.f16x2.f32 {0}, {2}, {1}; /* f16 */";

    /// `a * b + c`, rounded once.
    fma(a: u32 in reg32, b: u32 in reg32, c: u32 in reg32) -> u32 = "fma.rn.f16x2 {}, {}, {}, {}; /* f16 */";

    /// `a * b + c`, rounded once, and 0 in the place of a negative result; a NaN stays.
    fma_from_zero(a: u32 in reg32, b: u32 in reg32, c: u32 in reg32) -> u32 = "fma.rn.relu.f16x2 {}, {}, {}, {}; /* f16 */";

    /// Products.
    mul(a: u32 in reg32, b: u32 in reg32) -> u32 = "mul.rn.f16x2 {}, {}, {}; /* f16 */";

    /// Sums.
    add(a: u32 in reg32, b: u32 in reg32) -> u32 = "add.rn.f16x2 {}, {}, {}; /* f16 */";

    /// Differences.
    sub(a: u32 in reg32, b: u32 in reg32) -> u32 = "sub.rn.f16x2 {}, {}, {}; /* f16 */";

    /// The larger ones; of a number and a NaN the number.
    max(a: u32 in reg32, b: u32 in reg32) -> u32 = "max.f16x2 {}, {}, {}; /* f16 */";

    /// The smaller ones; of a number and a NaN the number.
    min(a: u32 in reg32, b: u32 in reg32) -> u32 = "min.f16x2 {}, {}, {}; /* f16 */";

    /// The larger ones; a NaN stays.
    max_or_nan(a: u32 in reg32, b: u32 in reg32) -> u32 = "max.NaN.f16x2 {}, {}, {}; /* f16 */";

    /// 2^x. The two results are packed here: of `ex2.approx.f16x2` the assembler packs them for each use.
    exp2(x: u32 in reg32) -> u32 =
        "{{ .reg .b16 lo, hi; .reg .b32 a, b; mov.b32 {{lo, hi}}, {1}; ex2.approx.f16 lo, lo; ex2.approx.f16 hi, hi; \
         cvt.u32.u16 a, lo; cvt.u32.u16 b, hi; prmt.b32 {0}, a, b, 0x5410; }} /* f16 */";
}

/// The two numbers.
#[inline(always)]
pub fn widen(pair: u32) -> [f32; 2] {
    [pair as u16, (pair >> 16) as u16].map(super::convert::any_f16)
}
