//! The roles of a block's warpgroups: two consume what the warps of a third one copy.

use super::{CONSUMERS, THREADS};
use crate::attention::options::mask::Mask;
use crate::layout::sm90_backward::Sm90BackwardMemory;
use crate::ptx::{barrier, bulk, mbarrier, setmaxnreg, shared, shuffle, special};

/// Initialises barriers and zeros, then gives each warpgroup its role: `consume(warpgroup)`, or `copy(warp, lane)`.
/// `GIVEN` registers stay with the copying threads, `TAKEN` are a consumer's.
///
/// # Safety
/// All threads of the block make this call, after the last use of its shared memory. `zeros` is the place of the zeros
/// that products read where they [leave out](super::guard) a tile, and `init`, which one thread calls, initialises
/// every `mbarrier`.
#[inline(always)]
pub unsafe fn take_roles<M: Mask, const GIVEN: u32, const TAKEN: u32>(
    zeros: u32,
    init: impl FnOnce(),
    copy: impl FnOnce(u32, u32),
    consume: impl FnOnce(u32),
) {
    // SAFETY: the launch has this many threads a block. All of them reach the barrier; then each warpgroup has its
    // role.
    unsafe {
        let thread = special::thread(THREADS);
        if thread == 0 {
            init();
            mbarrier::fence_init();
        }
        if !M::UNIFORM && thread < Sm90BackwardMemory::ZERO_BYTES / 16 {
            shared::store_u32x4(zeros + 16 * thread, [0; 4]);
            bulk::fence();
        }
        barrier::block();
        let warpgroup = shuffle::first(thread / 128);
        if warpgroup == CONSUMERS {
            setmaxnreg::decrease::<GIVEN>();
            copy(shuffle::first(thread / 32 % 4), thread % 32);
        } else {
            setmaxnreg::increase::<TAKEN>();
            consume(warpgroup);
        }
    }
}

/// Initialises the barriers of a stage: `full` completes when its tile has landed, the next one when all consuming warps have
/// read it.
///
/// # Safety
/// One thread makes this call, before others use the barriers.
#[inline(always)]
pub unsafe fn init_stage(full: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        mbarrier::init(full, 1);
        mbarrier::init(full + 8, 4 * CONSUMERS);
    }
}

/// The thread's number in its warpgroup.
#[inline(always)]
pub fn thread() -> u32 {
    // SAFETY: the block has this many threads.
    unsafe { special::thread(THREADS) % 128 }
}
