//! The step of a backward call on Hopper that computes dk and dv, and dq as sums or from stored dS.

use super::plan::Draft;
use crate::device::Facts;
use crate::error::Result;
use crate::forward::Problem;
use crate::plan::{Entry, MapPlace, Steps, grid};
use crate::tensor_map::tensor_map;
use kernels::abi::{BackwardParams, ForwardParams, Order, Sm90BackwardParams, Stored, StoredSizes};
use kernels::catalog::{HopperBackward, Spec as _};
use std::mem::offset_of;

/// The most bytes of stored dS, unless a kernel is named and needs more.
const MOST_DS_BYTES: usize = 3 << 29;

/// Waves whose dS is stored where memory allows: two that jobs of keys are ahead, one that jobs of queries read, and one
/// between.
const RING: usize = 4;

/// Bytes of dS, in 16 bits, of all query heads that share a key/value head; none if there are too many.
pub(super) fn ds_bytes(problem: &Problem) -> Option<usize> {
    let tile = HopperBackward::TILE as usize;
    let [queries, keys] =
        [problem.seqlen_q, problem.seqlen_kv].map(|length| length.checked_next_multiple_of(tile));
    let bytes = queries?.checked_mul(keys?)?.checked_mul(2)?;
    bytes.checked_mul(problem.group())
}

/// Whether dS of as many heads as a launch needs at a time takes at most [`MOST_DS_BYTES`].
pub(super) fn may_store(problem: &Problem) -> bool {
    let waves = (Stored::LEAST_RING as usize).min(problem.batch * problem.kv_heads);
    ds_bytes(problem).is_some_and(|bytes| bytes <= MOST_DS_BYTES / waves)
}

/// Key/value heads of a wave, and waves whose dS is stored at a time. A wave has a job of keys for each multiprocessor, or as
/// many heads as memory allows. dS of a head takes `head_bytes`, and a head has `key_jobs` jobs of keys.
fn ring(kv_heads: usize, head_bytes: usize, multiprocessors: usize, key_jobs: usize) -> [usize; 2] {
    let fitting = (MOST_DS_BYTES / head_bytes).max(1);
    let wave = multiprocessors.div_ceil(key_jobs).min(kv_heads);
    let wave = wave.min((fitting / Stored::LEAST_RING as usize).max(1));
    let waves = RING.min(fitting / wave).max(Stored::LEAST_RING as usize);
    [wave, waves.min(kv_heads.div_ceil(wave))]
}

impl Draft<'_> {
    /// dk, dv and the sums of dq.
    pub fn launch_hopper_sums(
        &mut self,
        kernel: HopperBackward,
        entry: Entry,
        blocks: u128,
    ) -> Result<()> {
        let mut params = Sm90BackwardParams::default();
        let mut places = Vec::new();
        if self.takes_turns {
            params.counter = self.steps.reserve_zeros(size_of::<u32>())?;
            places.push(offset_of!(Sm90BackwardParams, counter));
        }
        self.launch_by_maps(kernel, entry, blocks, params, &places)
    }

    /// Adds the launch that computes dk, dv and dS, and dq from dS.
    pub fn launch_hopper_stored(
        &mut self,
        kernel: HopperBackward,
        entry: Entry,
        facts: &Facts,
    ) -> Result<()> {
        let problem = self.problem;
        let (group, kv_heads) = (problem.group(), problem.batch * problem.kv_heads);
        let [key_tiles, query_tiles] = [problem.seqlen_kv, problem.seqlen_q]
            .map(|length| length.div_ceil(HopperBackward::TILE as usize));
        let tile_jobs = (HopperBackward::TILE / kernel.keys()) as usize;
        let bytes = ds_bytes(problem).ok_or(Steps::OVERFLOW)?;
        let [wave, ring_waves] = ring(
            kv_heads,
            bytes,
            facts.multiprocessors as usize,
            key_tiles * tile_jobs,
        );
        let jobs = kv_heads as u128 * (key_tiles * tile_jobs + group * query_tiles) as u128;
        grid(entry.name, jobs)?;
        // All of these fit: the grid holds all jobs.
        let stored = Stored::new(StoredSizes {
            kv_heads: kv_heads as u32,
            group: group as u32,
            heads: problem.heads as u32,
            key_tiles: key_tiles as u32,
            tile_jobs: tile_jobs as u32,
            query_tiles: query_tiles as u32,
            wave: wave as u32,
            ring_waves: ring_waves as u32,
        });
        let counters = stored.counters() as usize * size_of::<u32>();
        let params = Sm90BackwardParams {
            counter: self.steps.reserve_zeros(size_of::<u32>())?,
            ds: self.steps.reserve([ring_waves * wave, bytes, 1])?,
            progress: self.steps.reserve_zeros(counters)?,
            stored,
            ..Sm90BackwardParams::default()
        };
        let places = [
            offset_of!(Sm90BackwardParams, counter),
            offset_of!(Sm90BackwardParams, ds),
            offset_of!(Sm90BackwardParams, progress),
        ];
        self.params.forward.order = Order::new(kv_heads as u32, key_tiles as u32, [wave as u32, 1]);
        self.launch_by_maps(kernel, entry, jobs, params, &places)
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
        let shared_bytes = kernel.shared_bytes();
        let step = self.steps.launch(entry, blocks, shared_bytes, &params)?;
        step.maps = maps.into();
        self.steps.places = common;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waves_fill_the_multiprocessors_and_memory_holds_enough_of_them() {
        let head = 1 << 25;
        // A head has 32 jobs for 132 multiprocessors: five heads in a wave, four waves.
        assert_eq!(ring(64, head, 132, 32), [5, 4]);
        // Ten heads are two waves.
        assert_eq!(ring(10, head, 132, 32), [5, 2]);
        // Three heads of 512 MB fit.
        assert_eq!(ring(16, 1 << 29, 132, 128), [1, 3]);
        assert_eq!(ring(1, 3 << 29, 132, 400), [1, 1]);
    }
}
