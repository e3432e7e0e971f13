//! `cp.async`: copies from global to shared memory that run beside the computation.

use core::arch::asm;

/// Starts copying 16 bytes; of these, `bytes` (0 to 16) are read and the rest written as zeros.
/// `.cg` keeps the data out of L1, where it would not be used again.
///
/// # Safety
/// `shared` is a 16-byte aligned shared-memory address of the block, with nobody reading or writing
/// its 16 bytes until a [`wait`] of this thread for its group (and a barrier, for other threads). `global` is
/// 16-byte aligned, and `bytes` bytes from it are readable.
#[inline(always)]
pub unsafe fn copy16(shared: u32, global: u64, bytes: u32) {
    // SAFETY: both addresses are the caller's promise.
    unsafe {
        asm!("cp.async.cg.shared.global [{}], [{}], 16, {};",
            in(reg32) shared, in(reg64) global, in(reg32) bytes, options(nostack));
    }
}

/// Closes the group of the copies this thread started since the last call.
///
/// # Safety
/// Every lane of the warp must reach the same call.
#[inline(always)]
pub unsafe fn commit() {
    // SAFETY: touches no memory itself.
    unsafe { asm!("cp.async.commit_group;", options(nostack)) }
}

/// Waits until the copies of all committed groups of this thread have landed, but for the `PENDING`
/// last ones. Other threads see them after a barrier that follows.
///
/// # Safety
/// Every lane of the warp must reach the same call.
#[inline(always)]
pub unsafe fn wait<const PENDING: u32>() {
    // SAFETY: touches no memory itself.
    unsafe { asm!("cp.async.wait_group {};", const PENDING, options(nostack)) }
}

/// Waits until at most `S - N` groups of this thread's copies are pending: as [`wait`], with a number that a
/// caller's parameter gives.
///
/// # Safety
/// As [`wait`].
#[inline(always)]
pub unsafe fn wait_less<const S: usize, const N: usize>() {
    // SAFETY: touches no memory itself.
    unsafe { asm!("cp.async.wait_group {};", const S - N, options(nostack)) }
}

/// As [`wait`] for a number of `pending` groups, 0 to 4, that only the launch knows: the instruction has it
/// in its code. By assembly, for the compiler would make a table of branches of a `match`.
///
/// # Safety
/// As [`wait`].
#[inline(always)]
pub unsafe fn wait_for(pending: u32) {
    // SAFETY: touches no memory itself.
    unsafe {
        asm!(
            "{{ .reg .pred is;",
            "setp.eq.u32 is, {0}, 0; @is cp.async.wait_group 0;",
            "setp.eq.u32 is, {0}, 1; @is cp.async.wait_group 1;",
            "setp.eq.u32 is, {0}, 2; @is cp.async.wait_group 2;",
            "setp.eq.u32 is, {0}, 3; @is cp.async.wait_group 3;",
            "setp.eq.u32 is, {0}, 4; @is cp.async.wait_group 4; }}",
            in(reg32) pending, options(nostack),
        );
    }
}
