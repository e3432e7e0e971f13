//! Arithmetic that `core` lacks or rounds twice: `fma`, `ex2`, `lg2`, `rcp`, and pairs of f16.

use core::arch::asm;

/// `a * b + c`, rounded once.
#[inline(always)]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    let d: f32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("fma.rn.f32 {}, {}, {}, {};", out(reg32) d, in(reg32) a, in(reg32) b, in(reg32) c,
            options(pure, nomem, nostack));
    }
    d
}

/// 2^x, to about 2 ulp; 0 for -inf. `.ftz` saves two multiplications that scale subnormal results, which round to 0
/// as probabilities.
#[inline(always)]
pub fn exp2(x: f32) -> f32 {
    let y: f32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("ex2.approx.ftz.f32 {}, {};", out(reg32) y, in(reg32) x,
            options(pure, nomem, nostack));
    }
    y
}

/// Base-2 logarithm, to about 1 ulp; -inf for 0.
#[inline(always)]
pub fn log2(x: f32) -> f32 {
    let y: f32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("lg2.approx.f32 {}, {};", out(reg32) y, in(reg32) x, options(pure, nomem, nostack));
    }
    y
}

/// 1 / x, to about 1 ulp.
#[inline(always)]
pub fn reciprocal(x: f32) -> f32 {
    let y: f32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("rcp.approx.ftz.f32 {}, {};", out(reg32) y, in(reg32) x,
            options(pure, nomem, nostack));
    }
    y
}

/// Products of two pairs of f16.
#[inline(always)]
pub fn mul_f16x2(a: u32, b: u32) -> u32 {
    let d: u32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("mul.rn.f16x2 {}, {}, {};", out(reg32) d, in(reg32) a, in(reg32) b,
            options(pure, nomem, nostack));
    }
    d
}
