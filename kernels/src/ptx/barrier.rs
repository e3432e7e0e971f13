//! `bar.sync`, `bar.arrive`, `bar.red`, `bar.warp.sync`, `barrier.cluster` and `griddepcontrol.wait`: execution barriers that also order memory.

use core::arch::asm;

instructions! {
    /// Waits for all threads of the block; their earlier accesses to shared memory are visible after it.
    ///
    /// # Safety
    /// Every thread of the block must reach the same call.
    block() = "bar.sync 0;";

    /// Waits for the `threads` threads, in whole warps, that share barrier `number`, 1 to 15; their earlier accesses to
    /// shared memory are visible after it.
    ///
    /// # Safety
    /// Exactly these threads must reach the same call.
    some(number: u32 in reg32, threads: u32 in reg32) = "bar.sync {}, {};";

    /// Arrives at barrier `number` of `threads` threads, some of which [wait](some) for the others: this thread does not
    /// wait. Its earlier accesses to shared memory are visible to those that do.
    ///
    /// # Safety
    /// Every lane of the warp must reach the same call; arrivals and waits are of exactly these threads.
    arrive(number: u32 in reg32, threads: u32 in reg32) = "bar.arrive {}, {};";

    /// Waits for all lanes of the warp; their earlier accesses to shared memory are visible after it.
    ///
    /// # Safety
    /// Every lane of the warp must reach the same call.
    warp() = "bar.warp.sync 0xffffffff;";

    /// Waits until the launches before have ended, if this one began early (`text::early`); all that they wrote is visible after it.
    /// For compute capability 9.0 and PTX 7.8 on.
    launches() = "griddepcontrol.wait;";

    /// Waits for all threads of the cluster, for compute capability 9.0 and PTX 7.8 on; their earlier accesses to memory are
    /// visible after it. (PTX 8.0 spells out the order, `.release` and `.acquire`, which both have without it.)
    ///
    /// # Safety
    /// Every thread of the cluster must reach the same call.
    cluster() = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;";
}

/// Waits like [`block`]; returns whether `value` is true for any thread of the block.
///
/// # Safety
/// The conditions of [`block`].
#[inline(always)]
pub unsafe fn block_any(value: bool) -> bool {
    let any: u32;
    // SAFETY: convergence is the caller's promise; the barrier itself touches no memory.
    unsafe {
        asm!(concat!("{{ .reg .pred own, any; setp.ne.u32 own, {}, 0; ",
                "bar.red.or.pred any, 0, own; selp.u32 {}, 1, 0, any; }}"),
            in(reg32) u32::from(value), out(reg32) any, options(nostack));
    }
    any != 0
}

/// Waits like [`some`]; returns whether `value` is true for any of these threads.
///
/// # Safety
/// The conditions of [`some`].
#[inline(always)]
pub unsafe fn some_any(number: u32, threads: u32, value: bool) -> bool {
    let any: u32;
    // SAFETY: convergence is the caller's promise; the barrier itself touches no memory.
    unsafe {
        asm!(concat!("{{ .reg .pred own, any; setp.ne.u32 own, {}, 0; ",
                "bar.red.or.pred any, {}, {}, own; selp.u32 {}, 1, 0, any; }}"),
            in(reg32) u32::from(value), in(reg32) number, in(reg32) threads, out(reg32) any,
            options(nostack));
    }
    any != 0
}
