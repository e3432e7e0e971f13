//! The step of a backward call on Hopper that computes dk and dv, and dq as sums or from stored dS.

use super::draft::{Draft, StoredJobs};
use crate::device::Facts;
use crate::entry::Entry;
use crate::error::Result;
use crate::forward::Problem;
use crate::plan::{MapPlace, Steps, grid};
use crate::tensor_map::tensor_map;
use kernels::abi::{BackwardParams, ForwardParams, Order, Sm90BackwardParams, Stored, StoredSizes};
use kernels::catalog::{self, Family, HopperBackward, HopperWay};
use kernels::layout::element::BYTES;
use std::mem::offset_of;

/// The most bytes of stored dS, unless a kernel is named and needs more.
const MOST_DS_BYTES: usize = 3 << 29;

/// Heads whose dS that many bytes hold: two that jobs of keys are ahead, and one that jobs of queries read.
const LEAST_HEADS: usize = 3;

/// Bytes of dS of all query heads that share a key/value head; none if there are too many.
pub(super) fn ds_bytes(problem: &Problem) -> Option<usize> {
    let tile = HopperBackward::TILE as usize;
    let [queries, keys] =
        [problem.seqlen_q, problem.seqlen_kv].map(|length| length.checked_next_multiple_of(tile));
    let bytes = queries?.checked_mul(keys?)?.checked_mul(BYTES as usize)?;
    bytes.checked_mul(problem.group())
}

/// Whether dS of as many heads as a launch needs at a time takes at most [`MOST_DS_BYTES`].
pub(super) fn may_store(problem: &Problem) -> bool {
    let heads = LEAST_HEADS.min(problem.batch * problem.kv_heads);
    ds_bytes(problem).is_some_and(|bytes| bytes <= MOST_DS_BYTES / heads)
}

/// Key/value heads of a wave, waves whose keys come before the first queries, and waves whose dS is stored at a time, as
/// measured on an H200: `docs/diary.md`. dS of a head takes `head_bytes`, and a head has `key_jobs` jobs of keys.
///
/// Small waves take less memory, and the cache holds more of it: keys are three jobs ahead for two multiprocessors. Few jobs
/// and, under the causal mask, few heads that begin together leave multiprocessors idle at the end: there waves are large. At
/// least two waves are ahead: one alone makes jobs of queries wait.
fn ring(
    problem: &Problem,
    head_bytes: usize,
    multiprocessors: usize,
    key_jobs: usize,
) -> [usize; 3] {
    let kv_heads = problem.batch * problem.kv_heads;
    let jobs = kv_heads * key_jobs;
    let small = (multiprocessors / 4 / key_jobs).max(1);
    let is_uneven = problem.causal && small == 1;
    let whole = multiprocessors.div_ceil(key_jobs).min(kv_heads);
    let [wave, ahead, spare] = if is_uneven && jobs <= 2 * multiprocessors {
        [kv_heads, 2 * multiprocessors, 1]
    } else if is_uneven {
        [whole, 2 * multiprocessors, 2]
    } else if jobs < 4 * multiprocessors {
        [whole, 2 * multiprocessors, 1]
    } else {
        [small, 3 * multiprocessors / 2, 2]
    };
    let fitting = (MOST_DS_BYTES / head_bytes).max(1);
    let wave = wave.min((fitting / LEAST_HEADS).max(1));
    let first = ahead.div_ceil(wave * key_jobs).max(2);
    let stored = (first + spare).min(fitting / wave).max(2);
    let waves = kv_heads.div_ceil(wave);
    [wave, first.min(stored - 1).min(waves), stored.min(waves)]
}

/// The sizes of the jobs of a kernel of this name that stores dS.
fn stored_sizes(
    problem: &Problem,
    kernel: HopperBackward,
    name: &'static str,
    facts: &Facts,
) -> Result<StoredSizes> {
    let (group, kv_heads) = (problem.group(), problem.batch * problem.kv_heads);
    let [key_tiles, query_tiles] = [problem.seqlen_kv, problem.seqlen_q]
        .map(|length| length.div_ceil(HopperBackward::TILE as usize));
    let tile_jobs = (HopperBackward::TILE / kernel.keys()) as usize;
    let key_jobs = key_tiles * tile_jobs;
    grid(
        name,
        kv_heads as u128 * (key_jobs + group * query_tiles) as u128,
    )?;
    let bytes = ds_bytes(problem).ok_or(Steps::OVERFLOW)?;
    let [wave, first_waves, ring_waves] =
        ring(problem, bytes, facts.multiprocessors as usize, key_jobs);
    // All of these fit: the grid holds all jobs.
    Ok(StoredSizes {
        kv_heads: kv_heads as u32,
        group: group as u32,
        heads: problem.heads as u32,
        key_tiles: key_tiles as u32,
        tile_jobs: tile_jobs as u32,
        query_tiles: query_tiles as u32,
        wave: wave as u32,
        first_waves: first_waves as u32,
        ring_waves: ring_waves as u32,
    })
}

impl Draft<'_> {
    /// Reserves the counters of the kernel of this name.
    pub fn reserve_counters(
        &mut self,
        kernel: HopperBackward,
        name: &'static str,
        facts: &Facts,
    ) -> Result<()> {
        let counter = [size_of::<u32>(), 1, 1];
        if kernel.way == HopperWay::Stored {
            let sizes = stored_sizes(&self.problem, kernel, name, facts)?;
            let jobs = Stored::new(sizes);
            self.counter = self.steps.reserve(counter)?;
            let counters = [jobs.counters() as usize, size_of::<u32>(), 1];
            let progress = self.steps.reserve(counters)?;
            self.stored = Some(StoredJobs {
                sizes,
                jobs,
                progress,
            });
        } else if self.takes_turns {
            self.counter = self.steps.reserve(counter)?;
        }
        Ok(())
    }

    /// Adds the launch that computes dk and dv, and the sums of dq, with so many blocks, or dS and from it dq.
    pub fn launch_hopper(
        &mut self,
        kernel: HopperBackward,
        entry: Entry,
        blocks: u128,
    ) -> Result<()> {
        let mut params = Sm90BackwardParams {
            counter: self.counter,
            ..Sm90BackwardParams::default()
        };
        let places = [
            offset_of!(Sm90BackwardParams, counter),
            offset_of!(Sm90BackwardParams, progress),
            offset_of!(Sm90BackwardParams, ds),
        ];
        let Some(stored) = self.stored else {
            let places = &places[..usize::from(self.takes_turns)];
            return self.launch_by_maps(kernel, entry, blocks, params, places);
        };
        let StoredSizes {
            kv_heads,
            key_tiles,
            wave,
            ring_waves,
            ..
        } = stored.sizes;
        let head_bytes = ds_bytes(&self.problem).ok_or(Steps::OVERFLOW)?;
        let heads = (ring_waves * wave) as usize;
        params.progress = stored.progress;
        params.ds = self.steps.reserve([heads, head_bytes, 1])?;
        params.stored = stored.jobs;
        self.params.forward.order = Order::new(kv_heads, key_tiles, [wave, 1]);
        let blocks = stored.jobs.jobs().into();
        self.launch_by_maps(kernel, entry, blocks, params, &places)
    }

    /// Adds a launch of a kernel that loads by tensor maps; `places` are what it has in the workspace beside the common
    /// parameters.
    fn launch_by_maps(
        &mut self,
        kernel: HopperBackward,
        entry: Entry,
        blocks: u128,
        params: Sm90BackwardParams,
        places: &[usize],
    ) -> Result<()> {
        let problem = self.problem;
        let common = self.steps.places.clone();
        let forward = offset_of!(BackwardParams, forward);
        let (dim, dim_v) = (problem.dim, problem.dim_v);
        let q_sizes = [problem.heads, problem.seqlen_q];
        let kv_sizes = [problem.kv_heads, problem.seqlen_kv];
        let inputs = [
            (
                offset_of!(Sm90BackwardParams, q),
                self.params.forward.q,
                forward + offset_of!(ForwardParams, q.address),
                (q_sizes, dim, kernel.queries()),
            ),
            (
                offset_of!(Sm90BackwardParams, k),
                self.params.forward.k,
                forward + offset_of!(ForwardParams, k.address),
                (kv_sizes, dim, kernel.keys()),
            ),
            (
                offset_of!(Sm90BackwardParams, v),
                self.params.forward.v,
                forward + offset_of!(ForwardParams, v.address),
                (kv_sizes, dim_v, kernel.keys()),
            ),
            (
                offset_of!(Sm90BackwardParams, d_o),
                self.params.d_o,
                offset_of!(BackwardParams, d_o.address),
                (q_sizes, dim_v, kernel.queries()),
            ),
        ];
        let maps =
            inputs.map(
                |(place, tensor, address, ([heads, rows], dim, box_rows))| MapPlace {
                    place,
                    map: tensor_map(
                        tensor,
                        [problem.batch, heads, rows, dim],
                        kernel.dim,
                        box_rows,
                    ),
                    in_workspace: common.contains(&address),
                },
            );
        let inner = offset_of!(Sm90BackwardParams, backward);
        let shifted = common.iter().map(|place| place + inner);
        self.steps.places = shifted.chain(places.iter().copied()).collect();
        let params = Sm90BackwardParams {
            backward: self.params,
            ..params
        };
        let spec = catalog::kernel(Family::HopperBackward(kernel));
        let shared_bytes = spec.launch.shared_bytes;
        let step = self.steps.launch(entry, blocks, shared_bytes, &params)?;
        step.maps = maps.into();
        self.steps.places = common;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The waves of heads of `[batch, heads, seqlen]` and D = 128 on 132 multiprocessors.
    fn waves([batch, heads, seqlen]: [usize; 3], causal: bool) -> [usize; 3] {
        let shape = [batch, heads, seqlen, 128];
        let problem = Problem::new(shape, shape, shape, causal, None).expect("a valid problem");
        let bytes = ds_bytes(&problem).expect("it fits");
        ring(&problem, bytes, 132, seqlen.div_ceil(128))
    }

    #[test]
    fn waves_are_small_where_jobs_are_many() {
        // 198 jobs of keys are ahead: seven waves of 32.
        assert_eq!(waves([32, 16, 512], false), [8, 7, 9]);
        assert_eq!(waves([4, 16, 4096], false), [1, 7, 9]);
        assert_eq!(waves([16, 16, 1024], true), [4, 7, 9]);
        assert_eq!(waves([1, 8, 4096], false), [5, 2, 2]);
        assert_eq!(waves([1, 16, 16384], false), [1, 2, 3]);
    }

    #[test]
    fn heads_of_many_causal_tiles_begin_together() {
        assert_eq!(waves([4, 16, 4096], true), [5, 2, 4]);
        assert_eq!(waves([2, 16, 8192], true), [3, 2, 4]);
        assert_eq!(waves([1, 8, 4096], true), [8, 1, 1]);
    }

    /// More waves are stored than come first, unless all are.
    #[test]
    fn memory_holds_what_is_ahead_and_what_is_read() {
        for batch in [1, 2, 7, 40] {
            for heads in [1, 3, 16] {
                for seqlen in [100, 700, 3000, 8192, 16384, 23170] {
                    for causal in [false, true] {
                        let [wave, first, stored] = waves([batch, heads, seqlen], causal);
                        let all = (batch * heads).div_ceil(wave);
                        assert!(first > 0 && (stored > first || stored == all));
                        let bytes = wave * stored * seqlen.next_multiple_of(128).pow(2) * 2;
                        assert!(
                            bytes <= MOST_DS_BYTES || seqlen > 16384,
                            "{seqlen}: {bytes}"
                        );
                    }
                }
            }
        }
    }
}
