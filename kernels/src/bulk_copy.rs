//! A copy by `sm_90a`'s copy engine through a ring in shared memory, which flips the signs of 16-bit numbers.
//!
//! One thread of the first warp loads, the second warp computes and stores: producer and consumer, as in the
//! attention kernels for Hopper. Each of the ring's stages has two barriers: `full` when a piece has landed,
//! `empty` when its copy has left.

use crate::abi::{BULK_BYTES, BulkCopyParams};
use crate::ptx::{barrier, bulk, mbarrier, shared, special};

/// Copies the block's pieces through `STAGES` stages.
///
/// # Safety
/// Launched as [`BulkCopyParams`] and the kernel's specification say, with readable numbers and a writable copy
/// that do not overlap.
#[inline(always)]
pub unsafe fn bulk_copy<const STAGES: u32>(p: &BulkCopyParams) {
    // SAFETY: the launch has this many threads a block.
    let thread = unsafe { special::thread(64) };
    let base = shared::base();
    let stage = |i: u32| base + i % STAGES * BULK_BYTES;
    let full = |i: u32| base + STAGES * BULK_BYTES + i % STAGES * 16;
    let empty = |i: u32| full(i) + 8;
    let parity = |i: u32| i / STAGES % 2;
    let place = |piece: u32| u64::from(piece) * u64::from(BULK_BYTES);
    let (mut i, mut piece) = (0, special::block());
    // SAFETY: the producer waits for `empty` before it loads, and the consumer for `full` before it reads; both
    // take the same pieces in the same order. All 64 threads reach the block's barrier, and all lanes of the second
    // warp the warp's.
    unsafe {
        if thread == 0 {
            for i in 0..STAGES {
                mbarrier::init(full(i), 1);
                mbarrier::init(empty(i), 32);
            }
            mbarrier::fence_init();
        }
        barrier::block();
        if thread == 0 {
            while piece < p.pieces {
                // Both stages are empty at first: the phase before the first one counts as completed.
                mbarrier::wait(empty(i), parity(i) ^ 1);
                mbarrier::arrive_expect(full(i), BULK_BYTES);
                bulk::load(stage(i), p.from + place(piece), BULK_BYTES, full(i));
                (i, piece) = (i + 1, piece + p.blocks);
            }
        } else if thread >= 32 {
            while piece < p.pieces {
                mbarrier::wait(full(i), parity(i));
                let mut offset = (thread - 32) * 16;
                while offset < BULK_BYTES {
                    let pairs = shared::load_u32x4(stage(i) + offset);
                    shared::store_u32x4(stage(i) + offset, pairs.map(|pair| pair ^ 0x8000_8000));
                    offset += 32 * 16;
                }
                bulk::fence();
                barrier::warp();
                if thread == 32 {
                    bulk::store(p.to + place(piece), stage(i), BULK_BYTES);
                    bulk::commit();
                    bulk::wait_read::<0>();
                }
                // Every lane says that it is done with its own part of the stage.
                mbarrier::arrive(empty(i));
                (i, piece) = (i + 1, piece + p.blocks);
            }
            // Shared memory outlives the block's copies to global memory.
            bulk::wait::<0>();
        }
    }
}
