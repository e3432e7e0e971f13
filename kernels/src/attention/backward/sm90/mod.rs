//! The backward kernels for Hopper: two warpgroups multiply by `wgmma`, a third one loads, and adds up dQ or stores dS.
//!
//! A block has 128 keys of a key/value head, 64 for each consuming warpgroup, and walks over the queries of all heads
//! of the group in blocks of Br. S and dP are computed transposed, a row for each key: so P and dS, rounded, are
//! operands of dV and dK in registers. Only dS passes through shared memory, for dQ.
//!
//! The third warpgroup has three warps at work. One loads by TMA, and each of the others adds a half of dQ's tile to the
//! sums in device memory, or stores a half of dS's tile, by the copy engine.
//!
//! Sums of dQ may be added in any order, or [in turns](reduce): key tile after key tile, so that the result is the same
//! from run to run.
//!
//! | module | what it holds |
//! |---|---|
//! | `roles` | the roles of a block's warpgroups, and what all of them begin with |
//! | `job` | which job a block takes, and which keys a job has |
//! | `load` | a tile, loaded by TMA |
//! | `produce` | what is loaded, step by step |
//! | `consume` | the loop over blocks of queries: Algorithm 2 of FlashAttention-2 |
//! | `products` | its five products |
//! | `elements` | what it computes element by element |
//! | `consumer` | a consuming warpgroup, and what enters and leaves its loop |
//! | `write` | dS, written to shared memory |
//! | `shown` | which elements of S and dP have a pair that sees each other |
//! | `guard` | products without infinities and NaN that the mask hides |
//! | `reduce` | dQ added to the sums |
//! | `stored` | the kernel that stores dS in place of dQ's sums, and multiplies dS by K |
//! | `keep` | its dS, stored |
//! | `progress` | its counters, by which jobs wait for dS |
//! | `query` | its jobs of dQ |
//! | `wide` | its dK and dV of wide heads |
//! | `store` | rows of a gradient, stored |

mod consume;
mod consumer;
mod elements;
mod guard;
mod job;
mod keep;
mod load;
mod produce;
mod products;
mod progress;
mod query;
mod reduce;
mod roles;
mod shown;
mod store;
mod stored;
mod wide;
mod write;

use crate::abi::Sm90BackwardParams;
use crate::attention::options::mask::Mask;
use crate::attention::options::score::Score;
use crate::layout::sm90_backward::Sm90BackwardMemory;
use crate::ptx::{mbarrier, shared};
use crate::tile::wgmma::Product;
use crate::tile::{Accumulator, Element};
use consume::consume;
use keep::{DsPanel, keep};
use produce::produce;
use reduce::reduce;
use roles::{init_stage, take_roles};
pub use stored::sm90_stored;

/// Keys of a warpgroup.
const KEYS: u32 = 64;

/// Warpgroups that consume.
const CONSUMERS: u32 = 2;

/// Threads of a block.
const THREADS: u32 = 128 * (CONSUMERS + 1);

/// Computes dK and dV of the block's keys, and adds to dQ of the queries that see them.
///
/// The head dim is at most `16 * DT`, and a step takes `16 * NT` queries. Of dQ a warpgroup computes 64 rows and `16 * QT`
/// columns: all columns for half of 128 queries, or half of the columns for 64. `GIVEN` registers stay with the producer's
/// threads, `TAKEN` are a consumer's.
///
/// # Safety
/// Launched as [`Sm90BackwardParams`] and the kernel's row of the [catalog](crate::catalog) say, with readable inputs and row
/// statistics and writable sums, dk and dv; `maps` is the generic address of `params`.
#[inline(always)]
pub unsafe fn sm90<
    E: Element,
    M: Mask,
    C: Score,
    const DT: usize,
    const NT: usize,
    const QT: usize,
    const GIVEN: u32,
    const TAKEN: u32,
>(
    params: &Sm90BackwardParams,
    maps: u64,
) where
    [Accumulator; DT]: Product,
    [Accumulator; NT]: Product,
    [Accumulator; QT]: Product,
{
    let memory = Sm90BackwardMemory::new(shared::base(), 16 * NT as u32, E::K * DT as u32);
    // SAFETY: the caller's promise.
    unsafe {
        let place = job::take(params, memory.job());
        keys::<E, M, C, DT, NT, QT, false, GIVEN, TAKEN>(params, maps, place);
    }
}

/// The job of a key tile: dK and dV. It adds its part of dQ to the sums, or stores dS.
///
/// # Safety
/// The conditions of [`sm90`], in all threads of the block.
#[inline(always)]
unsafe fn keys<
    E: Element,
    M: Mask,
    C: Score,
    const DT: usize,
    const NT: usize,
    const QT: usize,
    const STORES: bool,
    const GIVEN: u32,
    const TAKEN: u32,
>(
    params: &Sm90BackwardParams,
    maps: u64,
    place: u32,
) where
    [Accumulator; DT]: Product,
    [Accumulator; NT]: Product,
    [Accumulator; QT]: Product,
{
    let memory = Sm90BackwardMemory::new(shared::base(), 16 * NT as u32, E::K * DT as u32);
    let init = || {
        // SAFETY: one thread calls it, before others use the barriers.
        unsafe {
            mbarrier::init(memory.k_full(), 1);
            for stage in 0..Sm90BackwardMemory::STAGES {
                init_stage(memory.q_full(stage));
                init_stage(memory.d_o_full(stage));
                mbarrier::init(memory.ds_full(stage), 4 * CONSUMERS);
            }
        }
    };
    // SAFETY: the caller's promise; `take_roles` calls each in the threads of its role, with initialised barriers.
    let copy = |warp, lane| unsafe {
        if warp == 0 {
            if lane == 0 {
                produce::<M, DT, NT, STORES>(params, maps, memory, place);
            }
        } else if warp <= CONSUMERS {
            if STORES {
                let queries = 16 * NT as u32;
                let job = job::job_at::<M, true>(&params.backward, place, queries);
                let number = warp - 1;
                let panel = DsPanel {
                    base: memory.ds(0).skip_panels(number).base,
                    number,
                    queries,
                    written: reduce::written(0, number),
                    read: reduce::read(0, number),
                };
                keep(params, &job, panel);
            } else {
                reduce::<M, DT, NT>(&params.backward, memory, place, warp - 1);
            }
        }
    };
    // SAFETY: likewise.
    let consume = |warpgroup| unsafe {
        consume::<E, M, C, DT, NT, QT, STORES>(&params.backward, memory, place, warpgroup);
    };
    // SAFETY: the caller's promise.
    unsafe { take_roles::<M, GIVEN, TAKEN>(memory.zeros(), init, copy, consume) }
}
