//! `shfl.sync` and `redux.sync`: values between the lanes of a warp.

use core::arch::asm;

/// The value of lane `lane ^ MASK`.
///
/// # Safety
/// Every lane of the warp must reach the same call.
#[inline(always)]
pub unsafe fn xor<const MASK: u32>(value: f32) -> f32 {
    let other: f32;
    // SAFETY: convergence is the caller's promise.
    unsafe {
        asm!("shfl.sync.bfly.b32 {}, {}, {}, 0x1f, 0xffffffff;",
            out(reg32) other, in(reg32) value, const MASK, options(nostack));
    }
    other
}

/// The value of lane `lane`, 0 to 31.
///
/// # Safety
/// Every lane of the warp must reach the same call.
#[inline(always)]
pub unsafe fn of_lane(value: f32, lane: u32) -> f32 {
    let other: f32;
    // SAFETY: convergence is the caller's promise.
    unsafe {
        asm!("shfl.sync.idx.b32 {}, {}, {}, 0x1f, 0xffffffff;",
            out(reg32) other, in(reg32) value, in(reg32) lane, options(nostack));
    }
    other
}

/// The bitwise OR of all lanes' values (`redux.sync`).
///
/// # Safety
/// Every lane of the warp must reach the same call.
#[inline(always)]
pub unsafe fn or(value: u32) -> u32 {
    let all: u32;
    // SAFETY: convergence is the caller's promise.
    unsafe {
        asm!("redux.sync.or.b32 {}, {}, 0xffffffff;",
            out(reg32) all, in(reg32) value, options(nostack));
    }
    all
}
