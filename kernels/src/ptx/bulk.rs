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

    /// [`load`] by one lane of the warp.
    ///
    /// # Safety
    /// The conditions of [`load`]; every lane of the warp makes the same call.
    load_once(shared: u32 in reg32, global: u64 in reg64, bytes: u32 in reg32, barrier: u32 in reg32) =
        "{{ .reg .pred first; elect.sync _|first, 0xffffffff;"
        "@first cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{}], [{}], {}, [{}]; }}";

    /// Starts to copy `bytes` bytes to global memory, in this thread's open group.
    ///
    /// # Safety
    /// The addresses and `bytes` are multiples of 16; `global` is writable. No thread writes the bytes in shared memory
    /// until this thread's [`wait_read`] for the group.
    store(global: u64 in reg64, shared: u32 in reg32, bytes: u32 in reg32) =
        "cp.async.bulk.global.shared::cta.bulk_group [{}], [{}], {};";

    /// [`store`] in the open group of the warp's first lane: once for the warp, without a branch.
    ///
    /// # Safety
    /// The conditions of [`store`]; all lanes make the same call.
    store_once(global: u64 in reg64, shared: u32 in reg32, bytes: u32 in reg32) =
        "{{ .reg .pred first; .reg .b32 lane; mov.u32 lane, %laneid; setp.eq.u32 first, lane, 0;"
        "@first cp.async.bulk.global.shared::cta.bulk_group [{}], [{}], {}; }}";

    /// Starts to add `bytes` bytes of f32 to those in global memory, in the open group of the warp's first lane: once for
    /// the warp, without a branch. Additions of several calls may come in any order, unless one is [waited for](wait)
    /// before the next.
    ///
    /// # Safety
    /// The conditions of [`store`]; `global` is readable, too. All lanes make the same call.
    add_f32_once(global: u64 in reg64, shared: u32 in reg32, bytes: u32 in reg32) =
        "{{ .reg .pred first; .reg .b32 lane; mov.u32 lane, %laneid; setp.eq.u32 first, lane, 0;"
        "@first cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [{}], [{}], {}; }}";
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

/// Makes writes to global memory that this thread knows of visible to the copies that it starts.
#[inline(always)]
pub fn fence_global() {
    // SAFETY: orders memory accesses, makes none.
    unsafe { asm!("fence.proxy.async.global;", options(nostack)) }
}

/// Makes this thread's writes to shared memory visible to the copies that it, or another thread after a
/// barrier, starts.
#[inline(always)]
pub fn fence() {
    // SAFETY: orders memory accesses, makes none.
    unsafe { asm!("fence.proxy.async.shared::cta;", options(nostack)) }
}
