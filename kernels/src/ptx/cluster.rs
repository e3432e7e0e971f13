//! Clusters, blocks that run at the same time and wait for each other: `barrier.cluster`, and who a block is in its cluster. For
//! compute capability 9.0 and PTX 7.8 on.

use core::arch::asm;

instructions! {
    /// Waits for all threads of the cluster; their earlier accesses to memory are visible after it. (PTX 8.0 spells out the order,
    /// `.release` and `.acquire`, which both have without it.)
    ///
    /// # Safety
    /// Every thread of the cluster must reach the same call.
    sync() = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;";
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
                asm!(concat!("mov.u32 {}, %", $name, ";"), out(reg32) value, options(nomem, nostack))
            }
            value
        }
    )*};
}

registers! {
    /// The block's number in its cluster.
    rank = "cluster_ctarank";

    /// Blocks of a cluster.
    size = "cluster_nctarank";

    /// The cluster's index in the grid.
    index = "clusterid.x";

    /// Clusters of the grid.
    count = "nclusterid.x";
}
