//! `cvt`: two f32 rounded to nearest even and packed into one register; f16 to f32.

use core::arch::asm;

/// `lo` and `hi` as f16, `lo` in the low half.
#[inline(always)]
pub fn f16x2(lo: f32, hi: f32) -> u32 {
    let packed: u32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("cvt.rn.f16x2.f32 {}, {}, {};", out(reg32) packed, in(reg32) hi, in(reg32) lo,
            options(pure, nomem, nostack));
    }
    packed
}

/// `lo` and `hi` as bf16, `lo` in the low half.
#[inline(always)]
pub fn bf16x2(lo: f32, hi: f32) -> u32 {
    let packed: u32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("cvt.rn.bf16x2.f32 {}, {}, {};", out(reg32) packed, in(reg32) hi, in(reg32) lo,
            options(pure, nomem, nostack));
    }
    packed
}

arithmetic! {
    /// The f16 that `bits` stand for.
    f16(bits: u16 in reg16) -> f32 = "cvt.f32.f16 {}, {};";
}
