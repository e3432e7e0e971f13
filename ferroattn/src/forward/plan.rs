//! The plan of an attention call: copies of inputs whose rows are not aligned, attention and, where it splits the
//! keys, the kernel that combines the splits.

use super::divide::divide;
use super::main_kernel::MainKernel;
use super::schedule::{Division, Schedule};
use super::{Problem, RawForward};
use crate::device::Facts;
use crate::error::Result;
use crate::options::{self, RawBias, Tables, Tiles, WARPGROUP_ROWS, Window};
use crate::plan::{MapPlace, Plan, Steps};
use crate::spread::Spread;
use crate::tensor::RawTensor;
use crate::tensor_map::{has_map, tensor_map};
use bytemuck::NoUninit;
use kernels::abi::{
    Divisor, E4m3Params, ForwardParams, Order, PagesRef, Sm90Params, Switch, UnitsRef,
};
use kernels::catalog::{self, Auxiliary, Family};
use std::mem::offset_of;

/// Parts of rows from which on a row has one warp that combines: about what fits on a large GPU at a time.
const MANY_PARTS: u128 = 4096;

/// The plan for a [valid](Problem::validate) problem by a kernel that serves it and its tensors, on this many splits of the
/// keys if any number is given.
pub(super) fn plan(
    kernel: MainKernel,
    problem: &Problem,
    facts: &Facts,
    args: &RawForward,
    splits: Option<u32>,
) -> Result<Plan> {
    let splits = if kernel.is_fp8 { Some(1) } else { splits };
    let mut draft = Draft::new(kernel, problem, facts, args, splits)?;
    let splits = draft.splits() > 1;
    if splits {
        draft.reserve_partials(problem.dim_v)?;
    }
    match draft.kernel.map_dim {
        Some(dim) if draft.kernel.is_fp8 => {
            draft.launch_fp8(problem, args, dim, facts.multiprocessors)?;
        }
        // A block computes one tile.
        Some(dim) if draft.kernel.values_in_keys => draft.launch_by_maps(problem, dim, u32::MAX)?,
        Some(dim) => draft.launch_by_maps(problem, dim, facts.multiprocessors)?,
        None if draft.kernel.reads_e4m3 => {
            let cache = args.options.e4m3_cache.unwrap_or_default();
            let [k, v] = cache.of_kernels();
            draft.launch(|forward| E4m3Params { forward, k, v })?;
        }
        None => draft.launch(|params| params)?,
    }
    if splits && draft.schedule.cluster == 1 {
        draft.combine()?;
    }
    draft.finish()
}

/// The table of pages with so many keys, for a kernel that loads by boxes of at most `most` keys.
fn pages(table: RawTensor<2>, page: usize, most: u32) -> PagesRef {
    let [batch_stride, _] = table.used_strides();
    let keys_log2 = page.ilog2();
    PagesRef {
        batch_stride: batch_stride as i64,
        count: table.shape[1] as u32,
        keys_log2,
        // The largest power of 2 that divides both.
        box_keys: 1 << keys_log2.min(most.trailing_zeros()),
        ..PagesRef::default()
    }
}

/// The plan of an attention call in the making. It starts with the copies of inputs whose rows are not aligned.
#[derive(Debug)]
pub struct Draft {
    pub(super) kernel: MainKernel,
    pub(super) schedule: Schedule,
    pub(super) params: ForwardParams,
    /// Where the caller has o, if kernels may write a copy.
    o: Option<RawTensor>,
    /// Whether a tensor map describes o, where kernels write it.
    o_has_map: bool,
    pub(super) steps: Steps,
}

impl Draft {
    /// Divides the work of a [valid](Problem::validate) problem that the kernel serves: on this many splits of the
    /// keys, or on as many as suit the device.
    ///
    /// # Errors
    /// If there are too many blocks, copies of inputs overflow an address space, or no device has such facts.
    ///
    /// # Panics
    /// If the kernel has 0 rows, keys or slices.
    pub fn new(
        mut kernel: MainKernel,
        problem: &Problem,
        facts: &Facts,
        args: &RawForward,
        splits: Option<u32>,
    ) -> Result<Self> {
        facts.validate()?;
        let bias = args.options.bias.filter(RawBias::has_vectors);
        // Keys of packed sequences may begin between two vectors.
        let has_vectors = bias.is_some() && args.options.sequences.is_none();
        kernel.entry.switches =
            options::switches(problem, &args.options).with(Switch::BiasVectors, has_vectors);
        let is_exact = kernel.has_votes && args.options.batch_invariant;
        kernel.entry.switches = kernel.entry.switches.with(Switch::Exact, is_exact);
        kernel.waves = kernel.waves.of_call(problem, &args.options);
        let division = Division::new(splits, &args.options);
        let lengths = [problem.seqlen_q, problem.seqlen_kv];
        let steps = [kernel.q_rows, kernel.keys];
        // Rows of a tile do not change each other's results.
        let [_, spread] = Spread::of_call(&args.options, lengths, steps)?;
        let seqlen_kv = spread.map_or(problem.seqlen_kv, |spread| spread.rows);
        let divided = &Problem {
            seqlen_kv,
            ..*problem
        };
        let (mut kernel, schedule, tables) =
            divide(kernel, [problem, divided], args, facts, division)?;
        let switches = kernel.entry.switches;
        let has_ranges = switches.has(Switch::Ranges) && !tables.by_lengths;
        kernel.entry.switches = switches
            .with(Switch::Ranges, has_ranges)
            .with(Switch::Lengths, tables.by_lengths)
            .with(Switch::Cluster, schedule.cluster > 1);
        let tile_heads = problem.heads / schedule.packed as usize * kernel.slices as usize;
        // Units are of all entries, in whose place stands one.
        let entries = match tables.units {
            Some(_) => 1,
            None => problem.batch,
        };
        let mut steps = Steps::default();
        steps.places.extend(args.options.part.places());
        let copied = (!args.options.f32_o).then_some(args.o);
        let o = copied.map_or(Ok(args.o.into()), |o| {
            steps.output(o, offset_of!(ForwardParams, o.address))
        })?;
        let place = offset_of!(ForwardParams, options);
        let tables = Tables {
            of_keys: kernel.is_fp8,
            spread: [None, spread],
            ..tables
        };
        let mut options = steps.options(problem, &args.options, tables, place)?;
        let tiles = Tiles {
            queries: kernel.q_rows,
            keys: kernel.keys,
            at_end: kernel.map_dim.is_some(),
            part: match kernel.map_dim {
                None => kernel.q_rows,
                Some(_) => WARPGROUP_ROWS,
            },
            group: 1,
        };
        steps.map_mask(problem, &args.options, tiles, false, &mut options, place)?;
        // No number names an entry behind these.
        options.cache_entries = args.k.shape[0].min(i32::MAX as usize) as u32;
        if let Some(table) = args.options.pages {
            options.pages = pages(table, args.k.shape[2], kernel.keys / kernel.v_chunks);
        }
        // Kernels read rows of e4m3 wherever they lie.
        let is_e4m3 = args.options.e4m3.is_some();
        let mut keys = |input: RawTensor, place| match is_e4m3 {
            true => Ok(input.into()),
            false => steps.spread_input(input, spread.as_ref(), place),
        };
        let k = keys(args.k, offset_of!(ForwardParams, k.address))?;
        let v = keys(args.v, offset_of!(ForwardParams, v.address))?;
        let q = match is_e4m3 {
            true => args.q.into(),
            false => steps.input(args.q, offset_of!(ForwardParams, q.address))?,
        };
        // All of these fit: the grid holds all heads, and `validate` bounds the lengths and the dim.
        let params = ForwardParams {
            q,
            k,
            v,
            o,
            lse: args.lse.address,
            partial_o: 0,
            partial_softmax: 0,
            heads: problem.heads as u32,
            tile_heads: Divisor::new(tile_heads as u32),
            group: Divisor::new(problem.group() as u32),
            order: Order::new(
                (entries * tile_heads) as u32,
                schedule.q_tiles,
                schedule.waves,
            ),
            seqlen_q: problem.seqlen_q as u32,
            seqlen_kv: seqlen_kv as u32,
            dim: problem.dim as u32,
            scale: problem.scale,
            o_aligned: u32::from(o.is_aligned()),
            batch_heads: (problem.batch * problem.heads) as u32,
            splits: schedule.splits,
            split_keys: schedule.split_keys,
            causal: u32::from(problem.causal),
            options,
        };
        Ok(Draft {
            kernel,
            schedule,
            params,
            o: copied,
            o_has_map: o.is_aligned() && has_map(&args.o),
            steps,
        })
    }

    /// Splits of the keys.
    pub fn splits(&self) -> u32 {
        self.schedule.splits
    }

    /// Reserves the workspace of partial results: for each row and split, `columns` numbers at
    /// [`partial_o`](ForwardParams::partial_o), and two at [`partial_softmax`](ForwardParams::partial_softmax).
    ///
    /// # Errors
    /// If its size overflows.
    pub fn reserve_partials(&mut self, columns: usize) -> Result<()> {
        let params = &mut self.params;
        // A unit has the rows of one entry.
        let heads = match self.schedule.has_units {
            true => params.heads,
            false => params.batch_heads,
        };
        let rows = (heads as usize).checked_mul(params.seqlen_q as usize);
        let rows = rows.and_then(|rows| rows.checked_mul(params.splits as usize));
        let rows = rows.ok_or(Steps::OVERFLOW)?;
        params.partial_o = self.steps.reserve([rows, columns, size_of::<f32>()])?;
        params.partial_softmax = self.steps.reserve([rows, 2, size_of::<f32>()])?;
        self.steps.places.extend([
            offset_of!(ForwardParams, partial_o),
            offset_of!(ForwardParams, partial_softmax),
        ]);
        Ok(())
    }

    /// Adds a launch of the kernel with the parameter block that `block` makes. It starts with the parameters
    /// given, in which addresses count from the workspace's start.
    ///
    /// # Errors
    /// If there are more blocks than a launch can have.
    pub fn launch<P: NoUninit>(&mut self, block: impl FnOnce(ForwardParams) -> P) -> Result<()> {
        let (kernel, blocks) = (self.kernel, u128::from(self.schedule.blocks));
        let params = block(self.params);
        let steps = &mut self.steps;
        let step = steps.launch(kernel.entry, blocks, kernel.shared_bytes, &params)?;
        step.cluster = self.schedule.cluster;
        Ok(())
    }

    /// Adds a launch of a kernel for head dims up to `dim` that loads by tensor maps: `blocks` blocks, or fewer if there are
    /// fewer tiles. A packed kernel has no map of q.
    ///
    /// # Errors
    /// If there are more blocks than a launch can have.
    ///
    /// # Panics
    /// If the kernel loads V in 0 boxes.
    pub fn launch_by_maps(&mut self, problem: &Problem, dim: u32, blocks: u32) -> Result<()> {
        /// Queries of a box; a warpgroup takes one box.
        const BOX_QUERIES: u32 = 64;
        let (kernel, forward) = (self.kernel, self.params);
        let places = std::mem::take(&mut self.steps.places);
        let (heads, queries) = (problem.heads, problem.seqlen_q);
        let has_pages = kernel.entry.switches.has(Switch::Pages);
        let (kv_heads, keys) = match has_pages {
            true => (problem.kv_heads, 1 << forward.options.pages.keys_log2),
            false => (problem.kv_heads, forward.seqlen_kv as usize),
        };
        let box_keys = |keys| match has_pages {
            true => forward.options.pages.box_keys,
            false => keys,
        };
        let q = offset_of!(ForwardParams, q.address);
        let k = offset_of!(ForwardParams, k.address);
        let v = offset_of!(ForwardParams, v.address);
        let q_map = (
            offset_of!(Sm90Params, q),
            forward.q,
            q,
            [problem.batch, heads, queries, problem.dim],
            BOX_QUERIES,
        );
        let entries = match forward.options.cache {
            0 => problem.batch,
            _ => forward.options.cache_entries as usize,
        };
        let kv_map = |place, tensor, address, dim, of_step| {
            let sizes = [entries, kv_heads, keys, dim];
            (place, tensor, address, sizes, box_keys(of_step))
        };
        let v_keys = kernel.keys / kernel.v_chunks;
        let k_keys = match kernel.values_in_keys {
            true => v_keys,
            false => kernel.keys,
        };
        let k_map = kv_map(offset_of!(Sm90Params, k), forward.k, k, problem.dim, k_keys);
        let v_map = kv_map(
            offset_of!(Sm90Params, v),
            forward.v,
            v,
            problem.dim_v,
            v_keys,
        );
        let o_map = (
            offset_of!(Sm90Params, o),
            forward.o,
            offset_of!(ForwardParams, o.address),
            [problem.batch, heads, queries, problem.dim_v],
            Sm90Params::O_ROWS,
        );
        let by_map = Sm90Params::stores_by_map(dim) && !kernel.is_grouped;
        let o_by_map = by_map && self.schedule.splits == 1 && self.o_has_map;
        let maps = (!kernel.is_grouped).then_some(q_map).into_iter();
        let maps = maps.chain([k_map]);
        let maps = maps.chain((!kernel.values_in_keys).then_some(v_map));
        let maps = maps.chain(o_by_map.then_some(o_map));
        let maps = maps.map(|(place, tensor, address, sizes, box_rows)| MapPlace {
            place,
            map: tensor_map(tensor, sizes, dim, box_rows),
            in_workspace: places.contains(&address),
        });
        let tiles = self.schedule.blocks;
        let blocks = tiles.min(blocks);
        let inner = offset_of!(Sm90Params, forward);
        self.steps.places = places.iter().map(|place| place + inner).collect();
        let mut params = Sm90Params {
            forward: ForwardParams {
                // Q, K and V come by maps, and rows of o are left.
                dim: problem.dim_v as u32,
                ..forward
            },
            tiles,
            o_by_map: o_by_map.into(),
            ..Sm90Params::default()
        };
        if self.needs_counter(problem, blocks) {
            params.counter = self.steps.reserve_zeros(size_of::<u32>())?;
            self.steps.places.push(offset_of!(Sm90Params, counter));
        }
        let (blocks, shared_bytes) = (blocks.into(), kernel.shared_bytes);
        let step = self
            .steps
            .launch(kernel.entry, blocks, shared_bytes, &params)?;
        step.maps = maps.collect();
        self.steps.places = places;
        Ok(())
    }

    /// Whether so many blocks count the tiles that they take. Tiles of one length take turns without it, which saves the launch that
    /// clears it. So do two sides of a block, which have to take the same tiles.
    fn needs_counter(&self, problem: &Problem, blocks: u32) -> bool {
        let rows = problem.seqlen_q * self.schedule.packed as usize;
        let has_ranges = self.kernel.entry.switches.has(Switch::Ranges);
        let has_mask = self.params.options.mask.address != 0;
        let is_masked = problem.causal || problem.window != Window::NONE || has_ranges || has_mask;
        let differ = is_masked || !rows.is_multiple_of(self.kernel.q_rows as usize);
        self.schedule.blocks > blocks && differ && self.kernel.sides == 1
    }

    /// Adds the launch that makes o and lse of partial results: a warp takes up to 128 columns of a row.
    ///
    /// # Errors
    /// If there are more blocks than a launch can have.
    pub fn combine(&mut self) -> Result<()> {
        let dtype = self.kernel.dtype;
        let kernel = catalog::kernel(Family::Auxiliary(Auxiliary::Combine(dtype)));
        let params = &ForwardParams {
            // Rows of o alone count, and their slices of columns are together again.
            dim: self.params.options.dim_v,
            tile_heads: Divisor::new(self.params.tile_heads.value / self.kernel.slices),
            ..self.params
        };
        let rows = u128::from(params.batch_heads) * u128::from(params.seqlen_q);
        let parts = rows * u128::from(UnitsRef::parts(params.dim));
        let warps = if parts > MANY_PARTS { rows } else { parts };
        let blocks = warps.div_ceil(u128::from(Auxiliary::WARPS));
        let steps = &mut self.steps;
        steps.launch(kernel.into(), blocks, kernel.launch.shared_bytes, params)?;
        Ok(())
    }

    /// The plan. If o has rows that kernels do not write, it ends with a copy.
    ///
    /// # Errors
    /// If o is too large for a launch.
    pub fn finish(mut self) -> Result<Plan> {
        if let Some(o) = self.o {
            self.steps.write(o, self.params.o)?;
        }
        let (kernel, splits) = (self.kernel.entry.name, self.schedule.splits);
        Ok(self.steps.finish(kernel, splits))
    }
}

#[cfg(test)]
mod tests {
    use super::Draft;
    use crate::Attention;
    use crate::device::Class;
    use crate::device::Facts;
    use crate::error::Result;
    use crate::forward::{Problem, RawForward};
    use crate::plan::Plan;
    use crate::tensor::RawTensor;
    use kernels::abi::{ForwardParams, Options};
    use kernels::catalog::{self, Dtype};
    use std::mem::offset_of;

    /// Kernels move numbers to entries that exist, in 32 bits with a sign.
    #[test]
    fn caches_of_any_size_have_entries_that_numbers_name() {
        for (entries, expected) in [
            (5, 5),
            (i32::MAX as usize, i32::MAX as u32),
            (1 << 31, i32::MAX as u32),
            (1 << 33, i32::MAX as u32),
        ] {
            let shape = [2, 1, 3, 64];
            let problem = Problem::new(shape, shape, shape, false, None).expect("valid");
            let mut args = RawForward::row_major(&problem);
            args.options.cache_entries = Some(RawTensor::row_major([2]));
            for cache in [&mut args.k, &mut args.v] {
                (cache.shape[0], cache.strides[0]) = (entries, 0);
            }
            let facts = Facts::emulated(Class::Sm80);
            let plan = Attention::new().plan(Some(&facts), Dtype::F16.into(), &args);
            let params = &plan.expect("a kernel for it").steps[0].params;
            let place = offset_of!(ForwardParams, options) + offset_of!(Options, cache_entries);
            let found = params[place..][..4].try_into().expect("four bytes");
            assert_eq!(u32::from_ne_bytes(found), expected, "{entries}");
        }
    }

    #[test]
    fn a_warp_combines_128_columns_of_a_row() {
        let shape = [1001, 1, 1, 136];
        let problem = Problem::new(shape, shape, shape, false, None).expect("valid");
        let kernel = catalog::named("forward_f16_d192").expect("in the catalog");
        let (facts, args) = (
            Facts::emulated(Class::Sm80),
            RawForward::row_major(&problem),
        );
        let mut draft = Draft::new(kernel.into(), &problem, &facts, &args, None).expect("a grid");
        draft.combine().expect("a grid");
        let step = &draft.finish().expect("a plan").steps[0];
        assert_eq!((step.entry.name, step.blocks), ("combine_f16", 501));
    }

    /// The plan for `[2, 3, 70, 64]` tensors with these row strides and first elements.
    fn plan(inputs: [(isize, u64); 3], splits: u32) -> Result<Plan> {
        let shape = [2, 3, 70, 64];
        let problem = Problem::new(shape, shape, shape, false, None)?;
        let tensor = |(row_stride, first): (isize, u64)| RawTensor {
            address: (1 << 20) + 2 * first,
            shape,
            strides: [0, 1 << 14, row_stride, 1],
        };
        let [q, k, v] = inputs.map(tensor);
        let args = RawForward {
            q,
            k,
            v,
            // Rows of odd length, which nothing copies.
            o: RawTensor {
                strides: [3 << 14, 1 << 14, 65, 1],
                ..tensor((65, 0))
            },
            ..RawForward::row_major(&problem)
        };
        let facts = Facts::emulated(Class::Sm80);
        let attention = Attention::new().kernel("forward_f16_d64").splits(splits);
        attention.plan(Some(&facts), Dtype::F16.into(), &args)
    }

    #[test]
    fn only_what_is_not_aligned_is_copied() {
        const PLACES: [usize; 3] = [
            offset_of!(ForwardParams, q.address),
            offset_of!(ForwardParams, k.address),
            offset_of!(ForwardParams, v.address),
        ];
        for (inputs, copied) in [
            ([(64, 0), (64, 8), (-72, 0)], [false; 3]),
            ([(65, 0), (64, 0), (64, 0)], [true, false, false]),
            ([(64, 0), (64, 1), (64, 0)], [false, true, false]),
            ([(64, 0), (64, 0), (-68, 0)], [false, false, true]),
            ([(0, 4), (1, 0), (60, 0)], [true; 3]),
        ] {
            for splits in [1, 2] {
                let plan = plan(inputs, splits).expect("valid");
                let packs = plan.steps.iter().filter(|step| step.entry.name == "pack");
                assert_eq!(packs.count(), copied.iter().filter(|&&c| c).count());
                let mut steps = plan.steps.iter();
                let main = steps.find(|step| step.entry.name == plan.kernel);
                let main = main.expect("attention");
                let found = PLACES.map(|place| main.places.contains(&place));
                assert_eq!(found, copied, "{inputs:?}");
                assert_eq!(plan.splits, splits);
                assert_eq!(steps.count(), splits as usize - 1, "what combines");
                // A call that needs no workspace must not wait on any device.
                let needed = splits > 1 || copied.contains(&true);
                assert_eq!(plan.workspace_bytes > 0, needed);
                let o_aligned = offset_of!(ForwardParams, o_aligned);
                assert_eq!(main.params[o_aligned..][..4], [0; 4]);
            }
        }
    }

    /// Every place lies in the workspace, and no two overlap.
    #[test]
    fn workspaces_hold_what_the_steps_share() {
        let plan = plan([(65, 0), (63, 0), (61, 0)], 2).expect("valid");
        let main = &plan.steps[3];
        let address = |&place: &usize| {
            let bytes = main.params[place..][..8].try_into().expect("eight bytes");
            u64::from_ne_bytes(bytes) as usize
        };
        let mut starts: Vec<usize> = main.places.iter().map(address).collect();
        starts.push(plan.workspace_bytes);
        // One head of one batch of each input, and two splits of all rows.
        let (packed, rows) = (2 * 3 * 70 * 64, 2 * 2 * 3 * 70);
        let sizes = [packed, packed, packed, 4 * 64 * rows, 4 * 2 * rows];
        assert_eq!(starts.len(), sizes.len() + 1);
        for (pair, size) in starts.windows(2).zip(sizes) {
            assert!(
                pair[0] % 256 == 0 && pair[0] + size <= pair[1],
                "{starts:?}"
            );
        }
    }
}
