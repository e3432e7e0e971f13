//! Three tricks that keep the registers of a kernel low.
//!
//! A thread has at most 255 registers. O, S, P and the kept part of Q take most of them, and one too many spills to
//! memory in every step. The compiler (LLVM) and the assembler (`ptxas`) save instructions rather than
//! registers: they hold until after a loop what they computed before it, and load early what they can.
//! The tricks take these choices away.
//!
//! | trick | against | used for |
//! |---|---|---|
//! | [`again`] | values held over a loop for the code after it | tile, row and mask in epilogues |
//! | [`opaque`], [`opaque_in`] | values held that are cheap to compute; loops unrolled | addresses of copies and fragments |
//! | [`fence`] | loads and products of several tiles mixed | softmax of two 16-row tiles, guarded products |
//!
//! Beside each use stands what it saves: what `cargo xtask build-ptx --compare` shows without it. Code of an option counts only
//! where its switch is on.
//!
//! Registers also depend on source that looks equal. Compare registers, spills and instructions of all kernels
//! (`cargo xtask build-ptx`) after a change such as these:
//!
//! - `map` over an array, in a closure that is called more than once, can leave the array in local memory.
//! - A closure around a loop's copies, or passed on as a parameter, can change which counter a loop compares and
//!   what the compiler computes once.

use crate::ptx::barrier;
use core::arch::asm;

/// Computes values a second time, by the closure, where holding them over a loop would take registers.
///
/// It works because their sources cost no register: parameters lie in constant memory, and the
/// [special registers](crate::ptx::special) are volatile, so that a second read is a second instruction.
#[inline(always)]
pub fn again<T>(values: impl FnOnce() -> T) -> T {
    values()
}

/// Returns `value`, whose source the compiler no longer knows.
///
/// The compiler then computes again what depends on it, instead of holding the result from an earlier
/// computation; and it cannot unroll a loop whose bound is opaque.
#[inline(always)]
pub fn opaque(value: u32) -> u32 {
    let copy: u32;
    // SAFETY: a move between registers.
    unsafe { asm!("mov.b32 {}, {};", out(reg32) copy, in(reg32) value, options(nomem, nostack)) }
    copy
}

/// Returns `value` as if it depended on `step`, a number below 2^31 that changes from step to step.
///
/// Where [`opaque`] stops the compiler, this stops the assembler, which sees through a move: it computes
/// what depends on the result in each step, in the shadow of the products, and holds nothing over
/// the loop.
#[inline(always)]
pub fn opaque_in(value: u32, step: u32) -> u32 {
    value + (step >> 31)
}

/// Keeps the assembler from moving loads and products across this point: what they need would be held at
/// the same time. It is a barrier of the warp, which takes an issue slot.
///
/// # Safety
/// Every lane of the warp must reach the same call.
#[inline(always)]
pub unsafe fn fence() {
    // SAFETY: the caller's promise.
    unsafe { barrier::warp() }
}
