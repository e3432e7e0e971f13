//! `cp.async.bulk.tensor`: copies of boxes of a tensor by the copy engine (TMA), which one thread starts.
//!
//! A tensor map says where a tensor lies, how large its box is, and how its rows are swizzled in shared memory.
//! Elements of a box that lie outside the tensor arrive as zeros.

use core::arch::asm;

/// Starts to load the box at `coordinates`, innermost first, of a tensor of four dimensions; its bytes are counted
/// at an [`mbarrier`](super::mbarrier) as they land.
///
/// # Safety
/// `map` is the generic address of a tensor map whose tensor is readable. The box in shared memory, at a multiple of
/// 128, or of 1024 under a swizzle, is the block's, and no thread uses it until it has waited for the barrier's
/// phase, which expects all its bytes.
#[inline(always)]
pub unsafe fn load(shared: u32, map: u64, coordinates: [i32; 4], barrier: u32) {
    let [a, b, c, d] = coordinates;
    // SAFETY: the caller's promise.
    unsafe {
        asm!("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes \
              [{}], [{}, {{{}, {}, {}, {}}}], [{}];",
            in(reg32) shared, in(reg64) map, in(reg32) a, in(reg32) b, in(reg32) c, in(reg32) d,
            in(reg32) barrier, options(nostack));
    }
}

/// Fetches a tensor map into the cache of the copy engine.
///
/// # Safety
/// `map` is the generic address of a tensor map.
#[inline(always)]
pub unsafe fn prefetch(map: u64) {
    // SAFETY: the caller's promise.
    unsafe { asm!("prefetch.tensormap [{}];", in(reg64) map, options(nostack)) }
}
