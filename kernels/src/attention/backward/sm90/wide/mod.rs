//! dK and dV of wide heads, on Hopper: one warpgroup has dV, the other dK.
//!
//! A job has 64 keys, whose dK and dV would fill the registers of a warpgroup. So one warpgroup computes S, P and dV, the
//! other dP, dS and dK. P passes from the first to the second through shared memory. Both run the same loop: a product of the
//! rows of two tiles, a function of each element, and a product with the columns of a tile. dS is stored: jobs of queries
//! compute dQ from it.
//!
//! ```text
//! warpgroup 0   S = K Qᵀ     P = exp(S - lse)        dV += Pᵀ dO
//! warpgroup 1   dP = V dOᵀ   dS = P * (dP - delta)   dK += dSᵀ Q
//! ```
//!
//! The elements of a step are computed while the tensor cores add the second product of the step before.

mod consume;
mod produce;

use super::CONSUMERS;
use super::job::job_at;
use super::keep::{DsPanel, keep};
use super::roles::{init_stage, take_roles};
use crate::abi::Sm90BackwardParams;
use crate::attention::options::mask::Mask;
use crate::layout::sm90_backward::Sm90WideMemory;
use crate::ptx::{mbarrier, shared};
use crate::tile::wgmma::Product;
use crate::tile::{Accumulator, Element};
use consume::consume;
use produce::produce;

/// Queries of a step, and keys of a job.
const SIZE: u32 = 64;

/// Slices of 16 of these.
const NT: usize = 4;

/// The barrier that says that P is written, and the one that says that it is read.
const P_FULL: u32 = 1;
const P_EMPTY: u32 = 2;

/// The barrier that says that dS is written, and the one that says that it is read.
const DS_FULL: u32 = 3;
const DS_EMPTY: u32 = 4;

/// Threads of both consumers.
const BOTH: u32 = 128 * CONSUMERS;

/// The half tile of keys of a job: the tile's place, and which half.
#[inline(always)]
fn half_at(place: u32) -> (u32, u32) {
    (place / 2, place % 2)
}

/// The job of half a key tile: dK, dV, and dS, which it stores.
///
/// The head dim is at most `16 * DT`. `GIVEN` registers stay with the producer's threads, `TAKEN` are a consumer's.
///
/// # Safety
/// The conditions of [`keys`](super::keys).
#[inline(always)]
pub unsafe fn keys<E: Element, M: Mask, const DT: usize, const GIVEN: u32, const TAKEN: u32>(
    params: &Sm90BackwardParams,
    maps: u64,
    place: u32,
) where
    [Accumulator; DT]: Product,
{
    let memory = Sm90WideMemory::new(shared::base(), E::K * DT as u32);
    let init = || {
        for which in 0..2 {
            // SAFETY: one thread calls it, before others use the barriers.
            unsafe { mbarrier::init(memory.keys_full(which), 1) }
            for stage in 0..Sm90WideMemory::STAGES {
                // SAFETY: likewise. Warps of both warpgroups read each tile.
                unsafe { init_stage(memory.queries_full(which, stage)) }
            }
        }
    };
    // SAFETY: the caller's promise; `take_roles` calls each in the threads of its role, with initialised barriers.
    let copy = |warp, lane| unsafe {
        if warp == 0 {
            if lane == 0 {
                produce::<M, DT>(params, maps, memory, place);
            }
        } else if warp == 1 {
            let (place, half) = half_at(place);
            let job = job_at::<M, true>(&params.backward, place, SIZE);
            let panel = DsPanel {
                base: memory.ds().base,
                number: half,
                queries: SIZE,
                written: DS_FULL,
                read: DS_EMPTY,
            };
            keep(params, &job, panel);
        }
    };
    // SAFETY: likewise.
    let consume = |warpgroup| unsafe {
        consume::<E, M, DT>(&params.backward, memory, place, warpgroup);
    };
    // SAFETY: the caller's promise.
    unsafe { take_roles::<M, GIVEN, TAKEN>(memory.zeros(), init, copy, consume) }
}
