//! `wgmma`, `tma`, `specialised` and `ping-pong`: FlashAttention-2 by the instructions of Hopper.
//!
//! A warpgroup, four warps, has 64 query rows of its own. K of a block of keys, its V, K of the next block and so on
//! are one stream of tiles through a ring of stages, as in `shared-kv`. All four rungs walk through it by the same
//! [main loop](attend); they differ in who fills the stages:
//!
//! | rung | loads | a tile has landed | a stage is free |
//! |---|---|---|---|
//! | `wgmma` | all threads, by `cp.async` | own copies, fence, barrier of the block | the same barrier |
//! | `tma` | one thread | `mbarrier` | barrier of the block |
//! | `specialised` | one thread of a warpgroup that does nothing else | `mbarrier` | a second `mbarrier` |
//! | `ping-pong` | the same | the same | the same |
//!
//! and in `ping-pong` two warpgroups take turns at the exponentials.
//!
//! | module | what it holds |
//! |---|---|
//! | `attend` | the main loop |
//! | `tiles` | the three ways to fill the stages |

mod attend;
mod tiles;

use crate::options::HopperMemory;
use crate::params::LadderParams;
use attend::attend;
use kernels::abi::Sm90Params;
use kernels::ptx::{barrier, mbarrier, setmaxnreg, shared, shuffle, special};
use kernels::tile::wgmma::Product;
use kernels::tile::{Accumulator, Element};
use tiles::{Boxes, Copied, Produced, Sent, produce};

/// `wgmma`: `W` warpgroups copy and multiply.
///
/// The head dim is at most `16 * DT`, and a step takes `16 * NT` keys; there are `S` stages.
///
/// # Safety
/// The conditions of [`forward`](kernels::attention::forward), launched as [`LadderParams`] says.
#[inline(always)]
pub unsafe fn wgmma<E: Element, const W: u32, const DT: usize, const NT: usize, const S: usize>(
    params: &LadderParams,
) where
    [Accumulator; DT]: Product,
    [Accumulator; NT]: Product,
{
    let memory = HopperMemory::new(
        shared::base(),
        W,
        [16 * NT as u32, 16 * DT as u32],
        S as u32,
    );
    // SAFETY: all threads of the block make these calls.
    unsafe {
        let mut tiles = Copied::<W, DT, NT, S>::start(&params.forward, memory);
        attend::<E, _, false, W, DT, NT>(&params.forward, memory, warpgroup::<W>(), &mut tiles);
    }
}

/// `tma`: one thread loads, `W` warpgroups multiply.
///
/// # Safety
/// The conditions of [`wgmma`], launched as [`Sm90Params`] says; `maps` is the generic address of `params`.
#[inline(always)]
pub unsafe fn tma<E: Element, const W: u32, const DT: usize, const NT: usize, const S: u32>(
    params: &Sm90Params,
    maps: u64,
) where
    [Accumulator; DT]: Product,
    [Accumulator; NT]: Product,
{
    let memory = HopperMemory::new(shared::base(), W, [16 * NT as u32, 16 * DT as u32], S);
    // SAFETY: all threads of the block make these calls.
    unsafe {
        init::<W>(memory, S, 0);
        let boxes = Boxes::<W, DT, NT, S>::new(&params.forward, maps, memory);
        let mut tiles = Sent::start(boxes);
        attend::<E, _, false, W, DT, NT>(&params.forward, memory, warpgroup::<W>(), &mut tiles);
    }
}

/// `specialised`: one warpgroup loads, `W` others multiply, and in `ping-pong` take `TURNS`. `GIVEN` registers stay
/// with the producer's threads, `TAKEN` are a consumer's.
///
/// # Safety
/// The conditions of [`tma`].
#[inline(always)]
pub unsafe fn specialised<
    E: Element,
    const TURNS: bool,
    const W: u32,
    const DT: usize,
    const NT: usize,
    const S: u32,
    const GIVEN: u32,
    const TAKEN: u32,
>(
    params: &Sm90Params,
    maps: u64,
) where
    [Accumulator; DT]: Product,
    [Accumulator; NT]: Product,
{
    let memory = HopperMemory::new(shared::base(), W, [16 * NT as u32, 16 * DT as u32], S);
    // SAFETY: all threads reach the barrier; then each warpgroup has its role.
    unsafe {
        // Each warp of each consumer releases a stage.
        init::<W>(memory, S, 4 * W);
        let warpgroup = warpgroup::<W>();
        if warpgroup == W {
            setmaxnreg::decrease::<GIVEN>();
            if special::thread(128 * (W + 1)) == 128 * W {
                produce(Boxes::<W, DT, NT, S>::new(&params.forward, maps, memory));
            }
        } else {
            setmaxnreg::increase::<TAKEN>();
            let mut tiles = Produced::<S>::new(memory);
            attend::<E, _, TURNS, W, DT, NT>(&params.forward, memory, warpgroup, &mut tiles);
        }
    }
}

/// The number of the warpgroup, the same in all lanes, which the assembler sees.
///
/// # Safety
/// Every lane of the warp makes the same call, in a block of at most `W + 1` warpgroups.
#[inline(always)]
unsafe fn warpgroup<const W: u32>() -> u32 {
    // SAFETY: the caller's promise.
    unsafe {
        let thread = special::thread(128 * (W + 1));
        shuffle::of_lane(f32::from_bits(thread / 128), 0).to_bits()
    }
}

/// Initialises the barriers: of Q, and two for each stage, of which `releases` arrivals say that it is free. One for
/// each stage if there are none.
///
/// # Safety
/// All threads of the block make the same call, of at most `W + 1` warpgroups.
#[inline(always)]
unsafe fn init<const W: u32>(memory: HopperMemory, stages: u32, releases: u32) {
    // SAFETY: the barriers have places of their own.
    unsafe {
        if special::thread(128 * (W + 1)) == 0 {
            mbarrier::init(memory.q_full(), 1);
            for stage in 0..stages {
                mbarrier::init(memory.full(stage), 1);
                if releases > 0 {
                    mbarrier::init(memory.full(stage) + 8, releases);
                }
            }
            mbarrier::fence_init();
        }
        barrier::block();
    }
}
