//! Arithmetic that `core` lacks or rounds twice: `fma`, `ex2`, `lg2`, `tanh`, `rcp`, and pairs of f16.

use core::arch::asm;

arithmetic! {
    /// `a * b + c`, rounded once.
    fma(a: f32 in reg32, b: f32 in reg32, c: f32 in reg32) -> f32 = "fma.rn.f32 {}, {}, {}, {};";

    /// `a * b + c`, rounded once towards 0: finite numbers have a finite result, infinities stay what they are.
    fma_rz(a: f32 in reg32, b: f32 in reg32, c: f32 in reg32) -> f32 = "fma.rz.f32 {}, {}, {}, {};";

    /// `a * b`, rounded towards 0: finite numbers have a finite product.
    mul_rz(a: f32 in reg32, b: f32 in reg32) -> f32 = "mul.rz.f32 {}, {}, {};";

    /// 2^x, to about 2 ulp; 0 for -inf. `.ftz` saves two multiplications that scale subnormal results, which round
    /// to 0 as probabilities.
    exp2(x: f32 in reg32) -> f32 = "ex2.approx.ftz.f32 {}, {};";

    /// Base-2 logarithm, to about 1 ulp; -inf for 0.
    log2(x: f32 in reg32) -> f32 = "lg2.approx.f32 {}, {};";

    /// tanh(x), to 2^-11 of its size.
    tanh(x: f32 in reg32) -> f32 = "tanh.approx.f32 {}, {};";

    /// 1 / x, to about 1 ulp.
    reciprocal(x: f32 in reg32) -> f32 = "rcp.approx.ftz.f32 {}, {};";

    /// Products of two pairs of f16.
    mul_f16x2(a: u32 in reg32, b: u32 in reg32) -> u32 = "mul.rn.f16x2 {}, {}, {};";

    /// `a * b + c` of pairs of f16.
    fma_f16x2(a: u32 in reg32, b: u32 in reg32, c: u32 in reg32) -> u32 = "fma.rn.f16x2 {}, {}, {}, {};";

    /// `a * b + c` of pairs of bfloat16.
    fma_bf16x2(a: u32 in reg32, b: u32 in reg32, c: u32 in reg32) -> u32 = "fma.rn.bf16x2 {}, {}, {}, {};";

    /// The larger ones of pairs of f16; of a number and a NaN the number.
    max_f16x2(a: u32 in reg32, b: u32 in reg32) -> u32 = "max.f16x2 {}, {}, {};";

    /// The larger ones of pairs of bfloat16; of a number and a NaN the number.
    max_bf16x2(a: u32 in reg32, b: u32 in reg32) -> u32 = "max.bf16x2 {}, {}, {};";

    /// The smaller ones of pairs of f16; of a number and a NaN the number.
    min_f16x2(a: u32 in reg32, b: u32 in reg32) -> u32 = "min.f16x2 {}, {}, {};";

    /// The smaller ones of pairs of bfloat16; of a number and a NaN the number.
    min_bf16x2(a: u32 in reg32, b: u32 in reg32) -> u32 = "min.bf16x2 {}, {}, {};";
}
