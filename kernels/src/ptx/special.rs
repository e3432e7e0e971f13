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

/// Defines functions that read a special register.
macro_rules! registers {
    ($($(#[$doc:meta])* $function:ident = $name:literal;)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        pub fn $function() -> u32 {
            let value: u32;
            // SAFETY: reads a special register.
            unsafe {
                asm!(concat!("mov.u32 {}, ", $name, ";"), out(reg32) value, options(nomem, nostack))
            }
            value
        }
    )*};
}

registers! {
    /// The block's index in the grid.
    block = "%ctaid.x";

    /// Blocks of the grid.
    blocks = "%nctaid.x";

    /// The cluster's index in the grid. Registers of clusters are for compute capability 9.0 and PTX 7.8 on.
    cluster = "%clusterid.x";

    /// Clusters of the grid.
    clusters = "%nclusterid.x";

    /// The block's index in its cluster.
    block_in_cluster = "%cluster_ctarank";

    /// Blocks of a cluster.
    blocks_of_cluster = "%cluster_nctarank";
}
