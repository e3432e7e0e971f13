//! `cp.async.bulk`: copies of whole ranges between global and shared memory by the copy engine, which one
//! thread starts.
//!
//! The engine sees what threads wrote to shared memory only after a [`fence`].

use core::arch::asm;

instructions! {
    /// Starts to copy `bytes` bytes to shared memory; they are counted at an
    /// [`mbarrier`](super::mbarrier) as they land.
    ///
    /// # Safety
    /// The addresses and `bytes` are multiples of 16; `global` is readable. The bytes in shared memory are the block's,
    /// and no thread uses them until it has waited for the barrier's phase, which expects them.
    load(shared: u32 in reg32, global: u64 in reg64, bytes: u32 in reg32, barrier: u32 in reg32) =
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{}], [{}], {}, [{}];";

    /// Starts to copy `bytes` bytes to global memory, in this thread's open group.
    ///
    /// # Safety
    /// The addresses and `bytes` are multiples of 16; `global` is writable. No thread writes the bytes in shared memory
    /// until this thread's [`wait_read`] for the group.
    store(global: u64 in reg64, shared: u32 in reg32, bytes: u32 in reg32) =
        "cp.async.bulk.global.shared::cta.bulk_group [{}], [{}], {};";
}

/// Closes the group of stores that this thread started since the last call.
#[inline(always)]
pub fn commit() {
    // SAFETY: touches no memory itself.
    unsafe { asm!("cp.async.bulk.commit_group;", options(nostack)) }
}

/// Waits until all but the `PENDING` last groups of this thread have read their shared memory.
#[inline(always)]
pub fn wait_read<const PENDING: u32>() {
    // SAFETY: touches no memory itself.
    unsafe { asm!("cp.async.bulk.wait_group.read {};", const PENDING, options(nostack)) }
}

/// Waits until all but the `PENDING` last groups of this thread have written their global memory.
#[inline(always)]
pub fn wait<const PENDING: u32>() {
    // SAFETY: touches no memory itself.
    unsafe { asm!("cp.async.bulk.wait_group {};", const PENDING, options(nostack)) }
}

/// Makes this thread's writes to shared memory visible to the copies that it, or another thread after a
/// barrier, starts.
#[inline(always)]
pub fn fence() {
    // SAFETY: orders memory accesses, makes none.
    unsafe { asm!("fence.proxy.async.shared::cta;", options(nostack)) }
}
