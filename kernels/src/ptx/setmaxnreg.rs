//! `setmaxnreg`: a warpgroup gives registers back, or takes them.
//!
//! All registers of a block come from what its launch got: what some give, others can take. The assembler ignores
//! these instructions without launch bounds (warning C7508).

use core::arch::asm;

/// Gives registers back, down to `COUNT` a thread, a multiple of 8 from 24 to 256.
///
/// # Safety
/// All lanes of the warpgroup make the same call, with more registers before it.
#[inline(always)]
pub unsafe fn decrease<const COUNT: u32>() {
    // SAFETY: convergence is the caller's promise.
    unsafe { asm!("setmaxnreg.dec.sync.aligned.u32 {};", const COUNT, options(nostack)) }
}

/// Waits for registers, up to `COUNT` a thread, a multiple of 8 from 24 to 256.
///
/// # Safety
/// All lanes of the warpgroup make the same call, with fewer registers before it. Other warpgroups give as many.
#[inline(always)]
pub unsafe fn increase<const COUNT: u32>() {
    // SAFETY: convergence is the caller's promise.
    unsafe { asm!("setmaxnreg.inc.sync.aligned.u32 {};", const COUNT, options(nostack)) }
}
