//! `cp.async.bulk.tensor`: copies of boxes of a tensor by the copy engine (TMA), which one thread starts.
//!
//! A tensor map says where a tensor lies, how large its box is, and how its rows are swizzled in shared memory.
//! Elements of a box that lie outside the tensor arrive as zeros.

use core::arch::asm;

instructions! {
    /// Starts to load the box at column `a`, row `b`, and indices `c` and `d` of a tensor of four dimensions; its
    /// bytes are counted at an [`mbarrier`](super::mbarrier) as they land.
    ///
    /// # Safety
    /// `map` is the generic address of a tensor map whose tensor is readable. The box in shared memory, at a multiple of
    /// 128, or of 1024 under a swizzle, is the block's, and no thread uses it until it has waited for the barrier's
    /// phase, which expects all its bytes.
    load(
        shared: u32 in reg32, map: u64 in reg64, a: i32 in reg32, b: i32 in reg32, c: i32 in reg32,
        d: i32 in reg32, barrier: u32 in reg32
    ) = "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes \
         [{}], [{}, {{{}, {}, {}, {}}}], [{}];";

    /// [`load`] by one lane of the warp.
    ///
    /// # Safety
    /// The conditions of [`load`]; every lane of the warp makes the same call.
    load_once(
        shared: u32 in reg32, map: u64 in reg64, a: i32 in reg32, b: i32 in reg32, c: i32 in reg32,
        d: i32 in reg32, barrier: u32 in reg32
    ) = "{{ .reg .pred first; elect.sync _|first, 0xffffffff; @first \
         cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes \
         [{}], [{}, {{{}, {}, {}, {}}}], [{}]; }}";

    /// Starts to store the box in shared memory to the tensor, in the open group of one lane of the warp, always the same.
    /// Elements past the tensor's end are left out.
    ///
    /// # Safety
    /// Every lane of the warp makes the same call. `map` is the generic address of a tensor map whose tensor is writable.
    /// The box lies as for [`load`], and does not begin before the tensor: such a store is an illegal instruction.
    /// No thread writes it until every lane's [`wait_read`](super::bulk::wait_read).
    store_once(
        map: u64 in reg64, a: i32 in reg32, b: i32 in reg32, c: i32 in reg32, d: i32 in reg32,
        shared: u32 in reg32
    ) = "{{ .reg .pred first; elect.sync _|first, 0xffffffff; @first \
         cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [{}, {{{}, {}, {}, {}}}], [{}]; }}";
}
