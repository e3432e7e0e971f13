//! `mbarrier`: barriers in shared memory that count arrivals, and the bytes of copies on their way.
//!
//! A phase completes when all its arrivals have come and all its bytes have landed; the next one begins. A
//! waiter names the phase by its parity: 0 for the first, then alternating.

use core::arch::asm;

instructions! {
    /// Initialises a barrier for phases of `arrivals` arrivals.
    ///
    /// # Safety
    /// `barrier` is an 8-byte aligned shared-memory address of the block, whose 8 bytes no thread uses until a
    /// [`fence_init`] and a barrier of the block.
    init(barrier: u32 in reg32, arrivals: u32 in reg32) = "mbarrier.init.shared::cta.b64 [{}], {};";

    /// Arrives at a barrier: accesses of this thread before are visible to those that wait for the phase.
    ///
    /// # Safety
    /// `barrier` is initialised, and its phase expects this arrival.
    arrive(barrier: u32 in reg32) = "mbarrier.arrive.shared::cta.b64 _, [{}];";

    /// [`arrive`] once for the warp, without a branch and without a register that holds the lane.
    ///
    /// # Safety
    /// The conditions of [`arrive`]. All lanes make the same call, after a barrier of the warp or an instruction that waits
    /// for all of them.
    arrive_once(barrier: u32 in reg32) =
        "{{ .reg .pred first; .reg .b32 lane; mov.u32 lane, %laneid; setp.eq.u32 first, lane, 0;"
        "@first mbarrier.arrive.shared::cta.b64 _, [{}]; }}";

    /// Arrives like [`arrive`]; the phase then also waits for `bytes` bytes of copies.
    ///
    /// # Safety
    /// The conditions of [`arrive`]; copies of as many bytes report to the barrier.
    arrive_expect(barrier: u32 in reg32, bytes: u32 in reg32) =
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [{}], {};";

    /// [`arrive_expect`] by one lane of the warp.
    ///
    /// # Safety
    /// The conditions of [`arrive_expect`]; every lane of the warp makes the same call.
    arrive_expect_once(barrier: u32 in reg32, bytes: u32 in reg32) =
        "{{ .reg .pred first; elect.sync _|first, 0xffffffff;"
        "@first mbarrier.arrive.expect_tx.shared::cta.b64 _, [{}], {}; }}";

    /// Waits for the phase of this parity. A barrier that was just initialised counts as after a phase of parity 1.
    ///
    /// # Safety
    /// `barrier` is initialised, and at most one phase behind or ahead.
    wait(barrier: u32 in reg32, parity: u32 in reg32) =
        "{{ .reg .pred done;"
        "again: mbarrier.try_wait.parity.shared::cta.b64 done, [{}], {};"
        "@!done bra again; }}";
}

/// Makes this thread's initialisations visible to the copy engine, and to other threads after a barrier.
#[inline(always)]
pub fn fence_init() {
    // SAFETY: orders memory accesses, makes none.
    unsafe { asm!("fence.mbarrier_init.release.cluster;", options(nostack)) }
}
