//! Special registers: who this thread is.
//!
//! Reads are volatile: a second call is a second instruction, so that a kernel need not hold the value over its
//! main loop ([`again`](crate::tile::registers::again)).

use core::arch::asm;

/// The thread's index in its block, known to the compiler to be below `threads`.
///
/// # Safety
/// The block has `threads` threads, in one dimension.
#[inline(always)]
pub unsafe fn thread(threads: u32) -> u32 {
    let thread: u32;
    // SAFETY: reads a special register; the bound is the caller's promise.
    unsafe {
        asm!("mov.u32 {}, %tid.x;", out(reg32) thread, options(nomem, nostack));
        core::hint::assert_unchecked(thread < threads);
    }
    thread
}

/// The thread's lane in its warp.
#[inline(always)]
pub fn lane() -> u32 {
    let lane: u32;
    // SAFETY: reads a special register, which is below 32.
    unsafe {
        asm!("mov.u32 {}, %laneid;", out(reg32) lane, options(nomem, nostack));
        core::hint::assert_unchecked(lane < 32);
    }
    lane
}

/// The block's index in the grid.
#[inline(always)]
pub fn block() -> u32 {
    let block: u32;
    // SAFETY: reads a special register.
    unsafe { asm!("mov.u32 {}, %ctaid.x;", out(reg32) block, options(nomem, nostack)) }
    block
}

/// Blocks of the grid.
#[inline(always)]
pub fn blocks() -> u32 {
    let blocks: u32;
    // SAFETY: reads a special register.
    unsafe { asm!("mov.u32 {}, %nctaid.x;", out(reg32) blocks, options(nomem, nostack)) }
    blocks
}
