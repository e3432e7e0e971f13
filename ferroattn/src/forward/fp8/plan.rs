//! The launches of a call in FP8.

use super::inputs::Inputs;
use crate::error::Result;
use crate::forward::plan::Draft;
use crate::forward::{Problem, RawForward};
use crate::plan::{MapPlace, Step, grid};
use crate::tensor_map::tensor_map;
use bytemuck::NoUninit;
use kernels::abi::{
    FP8_BLOCK, ForwardParams, Fp8Params, RoundRowsParams, RoundValuesParams, TensorRef,
};
use kernels::catalog::{self, Auxiliary, Family};
use kernels::layout::fp8::{KEYS_LOG2, PAIR, parts_of, queries_log2, row_tiles, transposed_rows};
use std::mem::offset_of;

/// What the launches that round leave in the workspace, by offsets.
struct Rounded {
    /// q and its scales, unless the main kernel rounds it.
    q: Option<(TensorRef, u64)>,
    k: TensorRef,
    /// Transposed.
    v: TensorRef,
    key_scales: u64,
    /// A counter that is 0.
    counter: u64,
    columns: u64,
    wrong_blocks: u64,
    wrong_values: u64,
}

impl Draft {
    /// Adds the launches that round q, k and v, and that of a kernel for head dims up to `dim`: a block for each multiprocessor, or fewer if there
    /// are fewer tiles.
    ///
    /// # Errors
    /// If there are more blocks than a launch can have, or the workspace overflows.
    pub(crate) fn launch_fp8(
        &mut self,
        problem: &Problem,
        args: &RawForward,
        dim: u32,
        multiprocessors: u32,
    ) -> Result<()> {
        /// Queries of a box; a warpgroup takes one box.
        const BOX_QUERIES: u32 = 64;
        let (kernel, forward, p) = (self.kernel, self.params, problem);
        let inputs = Inputs::new(&kernel, p, args);
        let rounded = self.round(problem, &inputs)?;
        let pairs = |elements: usize| elements.div_ceil(16) * 8;
        let of_rows = |heads, rows| [p.batch, heads, rows, pairs(inputs.row_bytes)];
        let v_rows = transposed_rows(p.dim_v as u32) as usize;
        let of_columns = [p.batch, p.kv_heads, v_rows, pairs(p.seqlen_kv)];
        let row = dim / PAIR;
        let places = std::mem::take(&mut self.steps.places);
        let q_map = match rounded.q {
            Some((q, _)) => tensor_map(q, of_rows(p.heads, p.seqlen_q), row, BOX_QUERIES),
            None => {
                let sizes = [p.batch, p.heads, p.seqlen_q, p.dim];
                tensor_map(forward.q, sizes, dim, BOX_QUERIES)
            }
        };
        let q_in_workspace =
            rounded.q.is_some() || places.contains(&offset_of!(ForwardParams, q.address));
        let maps = [
            (
                offset_of!(Fp8Params, k),
                tensor_map(
                    rounded.k,
                    of_rows(p.kv_heads, p.seqlen_kv),
                    row,
                    kernel.keys,
                ),
            ),
            (
                offset_of!(Fp8Params, v),
                tensor_map(rounded.v, of_columns, kernel.keys / PAIR, dim),
            ),
        ];
        let tiles = self.schedule.blocks;
        let blocks = tiles.min(multiprocessors);
        let inner = offset_of!(Fp8Params, forward);
        self.steps.places = places.iter().map(|place| place + inner).collect();
        self.steps.places.extend([
            offset_of!(Fp8Params, key_scales),
            offset_of!(Fp8Params, columns),
            offset_of!(Fp8Params, wrong_blocks),
            offset_of!(Fp8Params, wrong_values),
        ]);
        let o_columns = match args.options.f32_o {
            true => args.o.shape[3] as u32 / 2,
            false => args.o.shape[3] as u32,
        };
        let mut params = Fp8Params {
            forward: ForwardParams {
                // Q, K and V come by maps, and rows of o are left.
                dim: problem.dim_v as u32,
                // No four columns go beyond a row.
                o_aligned: forward.o_aligned
                    & u32::from(!args.options.f32_o || o_columns.is_multiple_of(4)),
                ..forward
            },
            q_scales: rounded.q.map_or(0, |(_, scales)| scales),
            key_scales: rounded.key_scales,
            columns: rounded.columns,
            wrong_blocks: rounded.wrong_blocks,
            wrong_values: rounded.wrong_values,
            tiles,
            blocks: (problem.seqlen_kv as u32).div_ceil(FP8_BLOCK),
            o_columns,
            q_most_log2: queries_log2(inputs.dim),
            negates_q: (p.scale < 0.0).into(),
            ..Fp8Params::default()
        };
        let q_scales = offset_of!(Fp8Params, q_scales);
        self.steps.places.extend(rounded.q.map(|_| q_scales));
        // Also where tiles are of one length: a block that is faster takes more of them.
        if tiles > blocks {
            params.counter = rounded.counter;
            self.steps.places.push(offset_of!(Fp8Params, counter));
        }
        let steps = &mut self.steps;
        let step = steps.launch(kernel.entry, blocks.into(), kernel.shared_bytes, &params)?;
        let q = (offset_of!(Fp8Params, q), q_map, q_in_workspace);
        let maps = maps.into_iter().map(|(place, map)| (place, map, true));
        let maps = std::iter::once(q).chain(maps);
        step.maps = maps
            .map(|(place, map, in_workspace)| MapPlace {
                place,
                map,
                in_workspace,
            })
            .collect();
        self.steps.places = places;
        Ok(())
    }

    /// Adds the launches that round q, k and v.
    fn round(&mut self, p: &Problem, inputs: &Inputs) -> Result<Rounded> {
        let row_bytes = inputs.row_bytes;
        // Where the batch consists of sequences, some keys may be of none.
        let ranges = self.params.options.query_ranges;
        let kv_heads = p.batch * p.kv_heads;
        let key_blocks = (p.seqlen_kv as u32).div_ceil(FP8_BLOCK) as usize;
        let k = self.steps.reserve([kv_heads, p.seqlen_kv, row_bytes])?;
        let scales = self
            .steps
            .reserve([kv_heads, key_blocks, size_of::<f32>()])?;
        let counter = self.steps.reserve([1, 1, size_of::<u32>()])?;
        let [.., v_descale] = inputs.descales;
        let of_k = RoundRowsParams {
            rows: self.params.k,
            descales: Default::default(),
            rounded: k,
            scales,
            ranges,
            counter,
            heads: p.kv_heads as u32,
            row_count: p.seqlen_kv as u32,
            group: 1,
            dim: inputs.dim,
            row_bytes: row_bytes as u32,
            most_log2: KEYS_LOG2,
            shares: 1,
            negates: 0,
            rotates: inputs.rotates.into(),
            tiles: 0,
        };
        let q = self.round_q(p, inputs, of_k)?;
        let k_place = offset_of!(ForwardParams, k.address);
        self.round_rows(inputs, kv_heads, of_k, k_place)?;

        let keys = p.seqlen_kv.next_multiple_of(16);
        let rows = transposed_rows(p.dim_v as u32) as usize;
        let [parts, part_keys] = parts_of(p.seqlen_kv as u32);
        let moments = [kv_heads, 4 * parts as usize * p.dim_v, size_of::<f32>()];
        let bits = 4 * size_of::<u32>();
        let values = RoundValuesParams {
            values: self.params.v,
            descale: v_descale,
            rounded: self.steps.reserve([kv_heads, rows, keys])?,
            columns: self.steps.reserve([kv_heads, rows, 2 * size_of::<f32>()])?,
            wrong_blocks: self
                .steps
                .reserve([kv_heads, key_blocks, size_of::<u32>()])?,
            wrong_values: self.steps.reserve([kv_heads, key_blocks * p.dim_v, bits])?,
            ranges,
            moments: self.steps.reserve(moments)?,
            heads: p.kv_heads as u32,
            keys: p.seqlen_kv as u32,
            dim: p.dim_v as u32,
            parts,
            part_keys,
            row_dim: inputs.dim_v,
        };
        let mut places = vec![
            offset_of!(RoundValuesParams, rounded),
            offset_of!(RoundValuesParams, columns),
            offset_of!(RoundValuesParams, wrong_blocks),
            offset_of!(RoundValuesParams, wrong_values),
            offset_of!(RoundValuesParams, moments),
        ];
        places.extend((ranges != 0).then_some(offset_of!(RoundValuesParams, ranges)));
        for (kernel, of_head) in inputs
            .rounds_values
            .into_iter()
            .zip([parts as usize, key_blocks])
        {
            let tiles = (kv_heads * of_head) as u128;
            let input = offset_of!(ForwardParams, v.address);
            let copied = offset_of!(RoundValuesParams, values.address);
            self.launch_round(kernel, tiles, &values, places.clone(), input, copied)?;
        }
        Ok(Rounded {
            q,
            k: rows_of(k, p.kv_heads, p.seqlen_kv, row_bytes),
            v: rows_of(values.rounded, p.kv_heads, rows, keys),
            key_scales: scales,
            counter,
            columns: values.columns,
            wrong_blocks: values.wrong_blocks,
            wrong_values: values.wrong_values,
        })
    }

    /// Adds the launch that rounds q, unless the main kernel does; that of k has the other parameters. Gives the rows and their scales.
    fn round_q(
        &mut self,
        p: &Problem,
        inputs: &Inputs,
        of_k: RoundRowsParams,
    ) -> Result<Option<(TensorRef, u64)>> {
        if inputs.kernel_rounds_q {
            return Ok(None);
        }
        let (heads, row_bytes) = (p.batch * p.heads, inputs.row_bytes);
        let rounded = self.steps.reserve([heads, p.seqlen_q, row_bytes])?;
        let scales = [heads, p.seqlen_q, size_of::<f32>()];
        let scales = self.steps.reserve(scales)?;
        let [q_descale, k_descale, _] = inputs.descales;
        let params = RoundRowsParams {
            rows: self.params.q,
            descales: [q_descale, k_descale],
            rounded,
            scales,
            ranges: 0,
            counter: 0,
            heads: p.heads as u32,
            row_count: p.seqlen_q as u32,
            group: p.group() as u32,
            most_log2: queries_log2(match inputs.rotates {
                true => row_bytes as u32,
                false => inputs.dim,
            }),
            shares: 0,
            negates: (p.scale < 0.0).into(),
            ..of_k
        };
        let place = offset_of!(ForwardParams, q.address);
        self.round_rows(inputs, heads, params, place)?;
        let rows = rows_of(rounded, p.heads, p.seqlen_q, row_bytes);
        Ok(Some((rows, scales)))
    }

    /// Adds the launch that rounds rows of so many heads of all entries. The input is at place `input` in the parameters of the call.
    fn round_rows(
        &mut self,
        inputs: &Inputs,
        heads: usize,
        mut params: RoundRowsParams,
        input: usize,
    ) -> Result<()> {
        let tiles = heads as u128 * u128::from(params.row_count.div_ceil(FP8_BLOCK));
        let kernel = inputs.rounds_rows;
        params.tiles = grid(catalog::kernel(Family::Auxiliary(kernel)).name, tiles)?;
        let blocks = tiles.div_ceil(u128::from(row_tiles(inputs.dim)));
        let mut places = vec![
            offset_of!(RoundRowsParams, rounded),
            offset_of!(RoundRowsParams, scales),
        ];
        places.extend((params.ranges != 0).then_some(offset_of!(RoundRowsParams, ranges)));
        places.extend((params.counter != 0).then_some(offset_of!(RoundRowsParams, counter)));
        let copied = offset_of!(RoundRowsParams, rows.address);
        self.launch_round(kernel, blocks, &params, places, input, copied)
    }

    /// Adds a launch that rounds, with these places. The input is at place `input` in the parameters of the call, and at place `copied`
    /// in these, if it is a copy.
    fn launch_round<P: NoUninit>(
        &mut self,
        kernel: Auxiliary,
        blocks: u128,
        params: &P,
        mut places: Vec<usize>,
        input: usize,
        copied: usize,
    ) -> Result<()> {
        let is_copy = self.steps.places.contains(&input);
        places.extend(is_copy.then_some(copied));
        let kernel = catalog::kernel(Family::Auxiliary(kernel));
        let shared_bytes = kernel.launch.shared_bytes;
        let step = Step::new(kernel.into(), blocks, shared_bytes, params, &places)?;
        self.steps.steps.push(step);
        Ok(())
    }
}

/// Rows of e4m3 without gaps, in pairs: `[.., heads, rows, row_bytes]`.
fn rows_of(address: u64, heads: usize, rows: usize, row_bytes: usize) -> TensorRef {
    let row = row_bytes as i64 / i64::from(PAIR);
    let head = row * rows as i64;
    TensorRef {
        address,
        batch_stride: head * heads as i64,
        head_stride: head,
        row_stride: row,
    }
}

#[cfg(test)]
mod tests {
    use crate::tensor::RawTensor;
    use crate::{Attention, Class, Dtype, Facts, Fp8, Problem, RawForward};

    /// The main kernel rounds q, unless it is rotated, or no tensor map describes it.
    #[test]
    fn q_has_a_launch_where_it_needs_one() {
        let shape = [1, 2, 300, 64];
        let problem = Problem::new(shape, shape, shape, false, None).unwrap();
        let launches = |strides: [isize; 4], hadamard: bool| {
            let mut args = RawForward::row_major(&problem);
            args.q = RawTensor { strides, ..args.q };
            let attention = Attention::new().fp8(Fp8::new().hadamard(hadamard));
            let h100 = Facts::emulated(Class::Sm90);
            let plan = attention.plan(Some(&h100), Dtype::F16, &args).unwrap();
            let of_rows = |step: &&crate::plan::Step| step.kernel() == "round_rows_f16";
            plan.steps.iter().filter(of_rows).count()
        };
        let row_major = [38_400, 19_200, 64, 1];
        assert_eq!(launches(row_major, false), 1);
        assert_eq!(launches(row_major, true), 2);
        // Rows from the last to the first, and one row for all.
        assert_eq!(launches([38_400, 19_200, -64, 1], false), 2);
        assert_eq!(launches([38_400, 19_200, 0, 1], false), 2);
        // A copy has a map.
        assert_eq!(launches([39_000, 19_500, 65, 1], false), 1);
    }
}
