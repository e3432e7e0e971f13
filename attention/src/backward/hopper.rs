//! The steps of a backward call on Hopper: dk and dv, and dq as sums or from stored dS.

use super::plan::{Draft, wave_heads};
use crate::device::Facts;
use crate::error::Result;
use crate::forward::Problem;
use crate::plan::{MapPlace, Steps, grid};
use crate::tensor_map::tensor_map;
use kernels::abi::{BackwardParams, Divisor, ForwardParams, Order, Sm90BackwardParams};
use kernels::catalog::{self, Family, HopperBackward, HopperPart};
use std::mem::offset_of;

/// The most bytes of dS that are stored at a time. More heads take turns, unless one alone needs more.
const MOST_DS_BYTES: usize = 1 << 30;

/// Bytes of dS, in 16 bits, of all query heads that share a key/value head; none if there are too many.
pub(super) fn ds_bytes(problem: &Problem) -> Option<usize> {
    let tile = HopperBackward::TILE as usize;
    let [queries, keys] =
        [problem.seqlen_q, problem.seqlen_kv].map(|length| length.checked_next_multiple_of(tile));
    let bytes = queries?.checked_mul(keys?)?.checked_mul(2)?;
    bytes.checked_mul(problem.group())
}

/// Whether dS of a key/value head is small enough to be stored.
pub(super) fn may_store(problem: &Problem) -> bool {
    ds_bytes(problem).is_some_and(|bytes| bytes <= MOST_DS_BYTES)
}

impl Draft<'_> {
    /// dk, dv and the sums of dq.
    pub fn launch_hopper_sums(&mut self, kernel: HopperBackward, blocks: u128) -> Result<()> {
        let mut params = Sm90BackwardParams::default();
        let mut places = Vec::new();
        if self.deterministic {
            params.counter = self.steps.reserve_zeros(size_of::<u32>())?;
            places.push(offset_of!(Sm90BackwardParams, counter));
        }
        self.launch_by_maps(kernel, blocks, params, &places)
    }

    /// dk and dv with dS, and dq from dS: of some heads, then of others in the same memory.
    pub fn launch_hopper_parts(&mut self, kernel: HopperBackward, facts: &Facts) -> Result<()> {
        let problem = self.problem;
        let group = problem.group();
        let kv_heads = problem.batch * problem.kv_heads;
        let bytes = ds_bytes(problem).ok_or(Steps::OVERFLOW)?;
        let fitting = (MOST_DS_BYTES / bytes).clamp(1, kv_heads);
        let wave = (wave_heads(problem, facts.l2_bytes) as usize).min(fitting);
        let at_once = fitting / wave * wave;
        let ds = self.steps.reserve([at_once, bytes, 1])?;
        let [key_tiles, query_tiles] = [problem.seqlen_kv, problem.seqlen_q]
            .map(|length| length.div_ceil(HopperBackward::TILE as usize));
        let queries = HopperBackward {
            part: HopperPart::Queries,
            ..kernel
        };
        let tiles = kv_heads as u128 * group as u128 * query_tiles as u128;
        grid(catalog::kernel(Family::HopperBackward(queries)).name, tiles)?;
        let blocks_of_tile = HopperBackward::TILE / kernel.keys();
        let keys_order = Order::new(kv_heads as u32, key_tiles as u32, wave as u32);
        let (heads, in_wave) = (kv_heads * group, wave * group);
        let queries_order = Order::new(heads as u32, query_tiles as u32, in_wave as u32);
        let places = [offset_of!(Sm90BackwardParams, ds)];
        for first in (0..kv_heads).step_by(at_once) {
            let count = at_once.min(kv_heads - first);
            let params = |first_place: usize| Sm90BackwardParams {
                ds,
                first_place: first_place as u32,
                first_head: (first * group) as u32,
                ..Sm90BackwardParams::default()
            };
            self.params.forward.order = keys_order;
            self.params.forward.tile_heads = Divisor::new(problem.kv_heads as u32);
            let blocks = (count * key_tiles) as u128 * u128::from(blocks_of_tile);
            self.launch_by_maps(kernel, blocks, params(first * key_tiles), &places)?;
            self.params.forward.order = queries_order;
            self.params.forward.tile_heads = Divisor::new(problem.heads as u32);
            let blocks = (count * group * query_tiles) as u128;
            let first_place = first * group * query_tiles;
            self.launch_by_maps(queries, blocks, params(first_place), &places)?;
        }
        Ok(())
    }

    /// Adds a launch of a kernel that loads by tensor maps; `places` are what it has in the workspace beside the common
    /// parameters.
    fn launch_by_maps(
        &mut self,
        kernel: HopperBackward,
        blocks: u128,
        params: Sm90BackwardParams,
        places: &[usize],
    ) -> Result<()> {
        let problem = self.problem;
        let common = self.steps.places.clone();
        let forward = offset_of!(BackwardParams, forward);
        let q_sizes = [problem.heads, problem.seqlen_q];
        let kv_sizes = [problem.kv_heads, problem.seqlen_kv];
        let inputs = [
            (
                offset_of!(Sm90BackwardParams, q),
                self.params.forward.q,
                forward + offset_of!(ForwardParams, q.address),
                (q_sizes, kernel.queries()),
            ),
            (
                offset_of!(Sm90BackwardParams, k),
                self.params.forward.k,
                forward + offset_of!(ForwardParams, k.address),
                (kv_sizes, kernel.keys()),
            ),
            (
                offset_of!(Sm90BackwardParams, v),
                self.params.forward.v,
                forward + offset_of!(ForwardParams, v.address),
                (kv_sizes, kernel.keys()),
            ),
            (
                offset_of!(Sm90BackwardParams, d_o),
                self.params.d_o,
                offset_of!(BackwardParams, d_o.address),
                (q_sizes, kernel.queries()),
            ),
        ];
        let maps = inputs.map(
            |(place, tensor, address, ([heads, rows], box_rows))| MapPlace {
                place,
                map: tensor_map(
                    tensor,
                    [problem.batch, heads, rows, problem.dim],
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
        let kernel = catalog::kernel(Family::HopperBackward(kernel));
        let shared_bytes = kernel.shared_bytes();
        let step = self
            .steps
            .launch(kernel.into(), blocks, shared_bytes, &params)?;
        step.maps = maps.into();
        self.steps.places = common;
        Ok(())
    }
}
