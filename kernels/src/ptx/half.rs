//! Arithmetic on pairs of f16 in kernels of any type: their twins of bf16 [keep](crate::text::twin) instructions with this mark.

use core::arch::asm;

arithmetic! {
    /// `lo` and `hi`, rounded to nearest even, `lo` in the low half.
    pack(lo: f32 in reg32, hi: f32 in reg32) -> u32 = "cvt.rn.f16x2.f32 {0}, {2}, {1}; /* f16 */";

    /// `a * b + c`, rounded once.
    fma(a: u32 in reg32, b: u32 in reg32, c: u32 in reg32) -> u32 = "fma.rn.f16x2 {}, {}, {}, {}; /* f16 */";

    /// Sums.
    add(a: u32 in reg32, b: u32 in reg32) -> u32 = "add.rn.f16x2 {}, {}, {}; /* f16 */";

    /// The larger ones; of a number and a NaN the number.
    max(a: u32 in reg32, b: u32 in reg32) -> u32 = "max.f16x2 {}, {}, {}; /* f16 */";

    /// The larger ones; a NaN stays.
    max_or_nan(a: u32 in reg32, b: u32 in reg32) -> u32 = "max.NaN.f16x2 {}, {}, {}; /* f16 */";

    /// The smaller ones; a NaN stays.
    min_or_nan(a: u32 in reg32, b: u32 in reg32) -> u32 = "min.NaN.f16x2 {}, {}, {}; /* f16 */";

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
