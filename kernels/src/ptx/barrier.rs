//! `bar.sync` and `bar.warp.sync`: execution barriers that also order memory.

use core::arch::asm;

/// Waits for all threads of the block; their shared-memory accesses before it are visible after it.
///
/// # Safety
/// Every thread of the block must reach the same call.
#[inline(always)]
pub unsafe fn block() {
    // SAFETY: convergence is the caller's promise; the barrier itself touches no memory.
    unsafe { asm!("bar.sync 0;", options(nostack)) }
}

/// Waits for all lanes of the warp; their shared-memory accesses before it are visible after it.
///
/// # Safety
/// Every lane of the warp must reach the same call.
#[inline(always)]
pub unsafe fn warp() {
    // SAFETY: convergence is the caller's promise; the barrier itself touches no memory.
    unsafe { asm!("bar.warp.sync 0xffffffff;", options(nostack)) }
}
