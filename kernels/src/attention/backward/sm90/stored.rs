//! The kernel that stores dS: jobs of keys compute dK, dV and dS, jobs of queries multiply dS by K.
//!
//! Nothing is summed in memory: so the result is the same from run to run, and nothing is zeroed or converted.
//! [`Stored`](crate::abi::Stored) has the order of the jobs, and why it mixes both kinds.

use super::{job, keys, query, wide};
use crate::abi::{Sm90BackwardParams, StoredJob};
use crate::attention::options::mask::Mask;
use crate::attention::options::score::Score;
use crate::layout::sm90_backward::{Sm90BackwardMemory, Sm90WideMemory};
use crate::ptx::shared;
use crate::tile::wgmma::Product;
use crate::tile::{Accumulator, Element};

/// Computes dK, dV and dQ.
///
/// The head dim is at most `16 * DT`; a step of a job of keys takes `16 * NT` queries. Jobs of queries have `S` stages.
/// `GIVEN` registers stay with the producer's threads, `TAKEN` are a consumer's.
///
/// # Safety
/// The conditions of [`sm90`](super::sm90), with writable dS and dq, and zeros at `progress`.
#[inline(always)]
pub unsafe fn sm90_stored<
    E: Element,
    M: Mask,
    C: Score,
    const DT: usize,
    const NT: usize,
    const S: u32,
    const GIVEN: u32,
    const TAKEN: u32,
>(
    params: &Sm90BackwardParams,
    maps: u64,
) where
    [Accumulator; DT]: Product,
    [Accumulator; NT]: Product,
{
    let (base, dim) = (shared::base(), E::K * DT as u32);
    let is_wide = DT > 8;
    // Behind the memory of either job.
    let slot = match is_wide {
        true => Sm90WideMemory::new(base, dim).job(),
        false => Sm90BackwardMemory::new(base, 16 * NT as u32, dim).job(),
    };
    // SAFETY: the caller's promise; the job is the same in all threads.
    unsafe {
        match params.stored.job(job::take(params, slot)) {
            StoredJob::Queries(place) => {
                query::queries::<E, M, DT, NT, S, GIVEN, TAKEN>(params, maps, place);
            }
            StoredJob::Keys(place) if is_wide => {
                wide::keys::<E, M, DT, GIVEN, TAKEN>(params, maps, place);
            }
            StoredJob::Keys(place) => {
                keys::<E, M, C, DT, NT, 4, true, GIVEN, TAKEN>(params, maps, place);
            }
        }
    }
}
