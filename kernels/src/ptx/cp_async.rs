//! `cp.async`: copies from global to shared memory that run beside the computation.

use core::arch::asm;

instructions! {
    /// Starts to copy 16 bytes: reads `bytes` (0 to 16) of them, and writes zeros for the others.
    /// `.cg` keeps the data out of L1, where no thread would use it again.
    ///
    /// # Safety
    /// `shared` is a 16-byte aligned shared-memory address of the block. No thread reads or writes its 16 bytes until
    /// this thread [waits](wait) for the group (and, for other threads, until a barrier after that). `global` is
    /// 16-byte aligned, and `bytes` bytes from it are readable.
    copy16(shared: u32 in reg32, global: u64 in reg64, bytes: u32 in reg32) =
        "cp.async.cg.shared.global [{}], [{}], 16, {};";

    /// Closes the group of copies that this thread started since the last call.
    ///
    /// # Safety
    /// Every lane of the warp must reach the same call.
    commit() = "cp.async.commit_group;";

    /// Waits until at most the last `PENDING` groups of this thread's copies are under way. Other threads see the
    /// others after a barrier.
    ///
    /// # Safety
    /// Every lane of the warp must reach the same call.
    wait<PENDING>() = "cp.async.wait_group {};";

    /// [`wait`] for `pending` groups, 0 to 4, a number that only the launch knows: the instruction takes a constant.
    /// This is assembly because the compiler would turn a `match` into a table of branches.
    ///
    /// # Safety
    /// The conditions of [`wait`].
    wait_for(pending: u32 in reg32) =
        "{{ .reg .pred is;"
        "setp.eq.u32 is, {0}, 0; @is cp.async.wait_group 0;"
        "setp.eq.u32 is, {0}, 1; @is cp.async.wait_group 1;"
        "setp.eq.u32 is, {0}, 2; @is cp.async.wait_group 2;"
        "setp.eq.u32 is, {0}, 3; @is cp.async.wait_group 3;"
        "setp.eq.u32 is, {0}, 4; @is cp.async.wait_group 4; }}";
}

/// [`wait`] for `S - N` groups.
///
/// # Safety
/// The conditions of [`wait`].
#[inline(always)]
pub unsafe fn wait_less<const S: usize, const N: usize>() {
    // SAFETY: touches no memory itself.
    unsafe { asm!("cp.async.wait_group {};", const S - N, options(nostack)) }
}
