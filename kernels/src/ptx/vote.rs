//! `vote.sync`: a predicate over the lanes of a warp.

use core::arch::asm;

/// Whether `value` is true for any lane.
///
/// # Safety
/// Every lane of the warp must reach the same call.
#[inline(always)]
pub unsafe fn any(value: bool) -> bool {
    let any: u32;
    // SAFETY: convergence is the caller's promise.
    unsafe {
        asm!(concat!("{{ .reg .pred own, any; setp.ne.u32 own, {}, 0; ",
                "vote.sync.any.pred any, own, 0xffffffff; selp.u32 {}, 1, 0, any; }}"),
            in(reg32) u32::from(value), out(reg32) any, options(nostack));
    }
    any != 0
}

/// The lanes for which `value` is true, a bit each.
///
/// # Safety
/// The conditions of [`any`].
#[inline(always)]
pub unsafe fn ballot(value: bool) -> u32 {
    let lanes: u32;
    // SAFETY: convergence is the caller's promise.
    unsafe {
        asm!("{{ .reg .pred own; setp.ne.u32 own, {}, 0; vote.sync.ballot.b32 {}, own, 0xffffffff; }}",
            in(reg32) u32::from(value), out(reg32) lanes, options(nostack));
    }
    lanes
}
