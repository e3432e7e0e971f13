//! `wgmma`: asynchronous matrix products of a warpgroup, four warps that start at a multiple of four.
//!
//! The products themselves are [typed](crate::tile::wgmma). Around them stand:
//!
//! ```text
//! fence   product  product  ...  commit   other work   wait
//!         `--------- a group ---------'                the group's accumulators are ready
//! ```

use core::arch::asm;

instructions! {
    /// Orders accesses of registers before the products that follow: needed before the first product of a group, unless
    /// all its accumulators come from products of the same shape.
    ///
    /// # Safety
    /// All lanes of the warpgroup make the same call.
    fence() = "wgmma.fence.sync.aligned;";

    /// Closes the group of products issued since the last call.
    ///
    /// # Safety
    /// The conditions of [`fence`].
    commit() = "wgmma.commit_group.sync.aligned;";

    /// Waits until all but the `PENDING` last groups are complete.
    ///
    /// # Safety
    /// All lanes of the warp make the same call.
    wait<PENDING>() = "wgmma.wait_group.sync.aligned {};";
}
