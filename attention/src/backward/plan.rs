//! The plan of a backward call: copies of inputs whose rows are not aligned, statistics of the rows, the gradients, and
//! dq from sums to 16 bits.

use super::RawBackward;
use super::choice::{Main, MainSpec};
use crate::device::Facts;
use crate::error::{Error, Result};
use crate::forward::Problem;
use crate::options::{
    self, PAIRS, RawOptions, RawSequences, Tiles, WARPGROUP_ROWS, full, may_be_far, score_shape,
};
use crate::plan::{Entry, Plan, Steps, grid};
use crate::tensor::RawTensor;
use kernels::abi::{BackwardParams, Divisor, ForwardParams, Order, ROW_PADDING, Switch, TensorRef};
use kernels::catalog::{self, Backward, Family, HopperBackward, HopperWay, Kernel, SumBias};
use std::mem::offset_of;

/// A plan in the making.
pub(super) struct Draft<'a> {
    pub problem: &'a Problem,
    /// Whether key tiles add to dq in turns.
    pub takes_turns: bool,
    /// What all steps have in common, with [places](Steps::places) in the workspace.
    pub params: BackwardParams,
    pub steps: Steps,
}

impl Main {
    /// The kernel of the catalog.
    fn kernel(&self) -> &'static Kernel {
        catalog::kernel(match self.spec {
            MainSpec::Plain(main) => Family::Backward(Backward::Main(main)),
            MainSpec::Hopper(kernel) => Family::HopperBackward(kernel),
        })
    }

    /// Keys of a tile, and queries that it visits at a time.
    fn tile(&self) -> [u32; 2] {
        match self.spec {
            MainSpec::Plain(main) => [main.tile.keys, main.tile.queries],
            MainSpec::Hopper(kernel) => [HopperBackward::TILE, kernel.visited()],
        }
    }

    /// Columns of the sums of dq: none if dS is stored.
    fn sum_columns(&self) -> u32 {
        match self.spec {
            MainSpec::Plain(main) => main.dim,
            MainSpec::Hopper(kernel) if kernel.way == HopperWay::Sums => kernel.dim,
            MainSpec::Hopper(_) => 0,
        }
    }
}

/// The plan for a [valid](Problem::validate) problem by a kernel that serves it.
pub(super) fn plan(
    main: Main,
    problem: &Problem,
    facts: &Facts,
    args: &RawBackward,
    deterministic: bool,
) -> Result<Plan> {
    let kernel = |backward| catalog::kernel(Family::Backward(backward));
    let main_kernel = main.kernel();
    let dtype = main_kernel.dtype().expect("it computes gradients of one");
    let [prepare, convert] = [Backward::Prepare(dtype), Backward::Convert(dtype)].map(kernel);
    let [tile_keys, tile_queries] = main.tile();
    let sum_columns = main.sum_columns();
    let (heads, kv_heads) = (
        problem.batch * problem.heads,
        problem.batch * problem.kv_heads,
    );
    let key_tiles = problem.seqlen_kv.div_ceil(tile_keys as usize);
    // No overflow in 128 bits: `validate` has `batch * heads` below 2^63 and lengths below 2^31.
    let blocks = kv_heads as u128 * key_tiles as u128;
    grid(main_kernel.name, blocks)?;
    grid(main_kernel.name, heads as u128)?;
    let padded = problem.seqlen_q.next_multiple_of(ROW_PADDING as usize);
    let rows = heads.checked_mul(padded).ok_or(Steps::OVERFLOW)?;
    let far_marks = padded / ROW_PADDING as usize;
    // All at a time; where no row is far, few leave at once.
    let most_far_blocks = 4 * facts.multiprocessors as usize;
    let bytes = |numbers: usize| {
        let bytes = rows.checked_mul(numbers * size_of::<f32>());
        bytes.ok_or(Steps::OVERFLOW)
    };

    let mut steps = Steps::default();
    let forward = offset_of!(BackwardParams, forward);
    let [q, k, v] = [
        (args.q, offset_of!(ForwardParams, q.address)),
        (args.k, offset_of!(ForwardParams, k.address)),
        (args.v, offset_of!(ForwardParams, v.address)),
    ]
    .map(|(input, place)| steps.input(input, forward + place));
    let d_o = steps.input(args.d_o, offset_of!(BackwardParams, d_o.address))?;
    let [d_sinks_head] = args.d_sinks.map_or([0], |d_sinks| d_sinks.used_strides());
    let d_bias = match args.d_bias {
        Some(d_bias) => Some(full(&d_bias, "d_bias", PAIRS, score_shape(problem, 1))?),
        None => None,
    };
    let [o, dq, dk, dv] = [args.o, args.dq, args.dk, args.dv].map(TensorRef::from);
    let aligned = |tensor: TensorRef| u32::from(tensor.is_aligned());
    let place = forward + offset_of!(ForwardParams, options);
    let mut options = steps.options(problem, &args.options, place, true)?;
    let tiles = Tiles {
        queries: tile_queries,
        keys: tile_keys,
        at_end: false,
        part: match main.spec {
            MainSpec::Plain(_) => tile_keys,
            MainSpec::Hopper(_) => WARPGROUP_ROWS,
        },
        group: problem.group(),
    };
    steps.map_mask(problem, &args.options, tiles, true, &mut options, place)?;
    let parts = parts(problem, &args.options, tile_keys as usize);
    // Two parts have the same sum in either order.
    let takes_turns = sum_columns > 0 && deterministic && parts > 2;
    // Key tiles of sequences begin with the last one.
    let ascends_in_turns = takes_turns && args.options.sequences.is_none();
    // All of these fit: the grid holds all heads, and `validate` bounds the lengths and the dim.
    let mut params = BackwardParams {
        forward: ForwardParams {
            q: q?,
            k: k?,
            v: v?,
            o,
            lse: args.lse.address,
            heads: problem.heads as u32,
            tile_heads: Divisor::new(problem.kv_heads as u32),
            group: Divisor::new(problem.group() as u32),
            order: Order::new(
                kv_heads as u32,
                key_tiles as u32,
                [wave_heads(problem, facts, ascends_in_turns), 1],
            ),
            seqlen_q: problem.seqlen_q as u32,
            seqlen_kv: problem.seqlen_kv as u32,
            dim: problem.dim as u32,
            scale: problem.scale,
            o_aligned: aligned(o),
            batch_heads: heads as u32,
            splits: 1,
            split_keys: (key_tiles as u32) * tile_keys,
            causal: u32::from(problem.causal),
            options,
            ..ForwardParams::default()
        },
        d_o,
        dq,
        dk,
        dv,
        d_lse: args.d_lse.map_or(0, |d_lse| d_lse.address),
        rows: steps.reserve([bytes(2)?, 1, 1])?,
        dq_sum: 0,
        turns: 0,
        far_count: 0,
        far: 0,
        far_marks: 0,
        d_sinks: args.d_sinks.map_or(0, |d_sinks| d_sinks.address),
        d_sinks_head: d_sinks_head as i64,
        d_bias: options::pairs(d_bias),
        padded_rows: padded as u32,
        sum_columns,
        dq_aligned: aligned(dq),
        dk_aligned: aligned(dk),
        dv_aligned: aligned(dv),
        lse_rows: Divisor::new(args.lse.shape[2] as u32),
    };
    steps.places.push(offset_of!(BackwardParams, rows));
    let is_far = may_be_far(problem, &args.options);
    if is_far {
        params.far = steps.reserve([bytes(2)?, 1, 1])?;
        params.far_marks = steps.reserve([heads * far_marks, size_of::<u32>(), 1])?;
        steps.places.extend([
            offset_of!(BackwardParams, far),
            offset_of!(BackwardParams, far_marks),
        ]);
    }
    if sum_columns > 0 {
        params.dq_sum = steps.reserve_zeros(bytes(sum_columns as usize)?)?;
        steps.places.push(offset_of!(BackwardParams, dq_sum));
    }
    if takes_turns {
        let tiles = rows / tile_queries as usize;
        params.turns = steps.reserve_zeros(tiles * size_of::<u32>())?;
        steps.places.push(offset_of!(BackwardParams, turns));
    }
    if is_far {
        params.far_count = steps.reserve_zeros(size_of::<u32>())?;
        steps.places.push(offset_of!(BackwardParams, far_count));
    }
    let (rows, columns) = (rows as u128, u128::from(sum_columns));
    let row_blocks = rows / u128::from(Backward::PREPARED_ROWS);
    // It reads rows of o and d_o.
    let mut of_values = params;
    of_values.forward.dim = problem.dim_v as u32;
    steps.launch(
        prepare.into(),
        row_blocks,
        prepare.shared_bytes(),
        &of_values,
    )?;
    if is_far {
        let [sums, _] = far_entries(dtype, &args.options)?;
        let switches = options::switches(problem, &args.options);
        let sums = Entry { switches, ..sums };
        let shared_bytes = kernel(Backward::FarSums(dtype)).shared_bytes();
        let blocks = (heads * far_marks).min(most_far_blocks);
        steps.launch(sums, blocks as u128, shared_bytes, &params)?;
    }
    // Kernels add pair by pair, in any order where several pairs have one element.
    let is_added = args.d_bias.is_some() && !(deterministic && d_bias.is_some_and(repeats));
    if let Some(d_bias) = args.d_bias.filter(|_| is_added) {
        let zero_bias = kernel(Backward::ZeroBias);
        let blocks = d_bias.shape[..3].iter().map(|&n| n as u128).product();
        steps.launch(zero_bias.into(), blocks, zero_bias.shared_bytes(), &params)?;
    }
    let mut draft = Draft {
        problem,
        takes_turns,
        params,
        steps,
    };
    // Only Hopper adds four numbers at a time.
    let is_hopper = matches!(main.spec, MainSpec::Hopper(_));
    let in_vectors = is_hopper && d_bias.is_some_and(|d_bias| d_bias.has_vectors(4));
    let entry = Entry {
        switches: options::switches(problem, &args.options)
            .with(Switch::BiasGradient, is_added && !in_vectors)
            .with(Switch::BiasGradientVectors, is_added && in_vectors),
        ..main.entry
    };
    match main.spec {
        MainSpec::Plain(_) => {
            let shared_bytes = main_kernel.shared_bytes();
            draft.steps.launch(entry, blocks, shared_bytes, &params)?;
        }
        MainSpec::Hopper(kernel) => match kernel.way {
            HopperWay::Sums => draft.launch_hopper_sums(kernel, entry, blocks)?,
            HopperWay::Stored => draft.launch_hopper_stored(kernel, entry, facts)?,
        },
    }
    let mut steps = draft.steps;
    if sum_columns > 0 {
        let warps = rows / 16 * columns / 32;
        let blocks = warps.div_ceil(u128::from(Backward::WARPS));
        steps.launch(convert.into(), blocks, convert.shared_bytes(), &params)?;
    }
    if is_far {
        let [_, far] = far_entries(dtype, &args.options)?;
        let far = Entry {
            switches: entry.switches,
            ..far
        };
        let shared_bytes = kernel(Backward::Far(dtype)).shared_bytes();
        steps.launch(far, most_far_blocks as u128, shared_bytes, &params)?;
    }
    if let Some(d_bias) = args.d_bias.filter(|_| !is_added) {
        let dims = SumBias::DIMS.into_iter();
        let dim = dims.min_by_key(|&dim| (dim < problem.widest() as u32, dim));
        let sums = SumBias {
            dtype,
            dim: dim.expect("there are kernels"),
        };
        let [kept @ .., queries, keys] = d_bias.shape;
        let query_tiles = queries.div_ceil(sums.queries() as usize);
        let key_tiles = keys.div_ceil(SumBias::KEYS as usize);
        let tiles = [kept[0], kept[1], query_tiles, key_tiles];
        let sum_bias = kernel(Backward::SumBias(sums));
        let entry = Entry {
            switches: options::switches(problem, &args.options),
            ..sum_bias.into()
        };
        let blocks = tiles.map(|n| n as u128).iter().product();
        steps.launch(entry, blocks, sum_bias.shared_bytes(), &params)?;
    }
    if params.d_sinks != 0 {
        let sinks = kernel(Backward::Sinks);
        let blocks = problem.heads as u128;
        steps.launch(sinks.into(), blocks, sinks.shared_bytes(), &params)?;
    }
    Ok(steps.finish(entry.name, 1))
}

/// Whether an axis of a tensor of pairs has one element for several of the problem.
fn repeats(pairs: RawTensor) -> bool {
    let axes = pairs.shape.into_iter().zip(pairs.strides);
    axes.take(3)
        .any(|(extent, stride)| extent > 1 && stride == 0)
}

/// The kernels that find the sums and the gradients of far rows.
fn far_entries(dtype: catalog::Dtype, options: &RawOptions) -> Result<[Entry; 2]> {
    let [sums, far] = [Backward::FarSums(dtype), Backward::Far(dtype)]
        .map(|far| catalog::kernel(Family::Backward(far)))
        .map(|kernel| match options.custom {
            None => Some(kernel.into()),
            Some(custom) => custom.kernels.entry(kernel),
        });
    let both = sums.zip(far).ok_or(Error::NotCompiled)?;
    Ok(both.into())
}

/// The most key tiles of `tile_keys` keys that add a part other than 0 to a row of dq.
fn parts(problem: &Problem, options: &RawOptions, tile_keys: usize) -> usize {
    let sequences = options.sequences.as_ref();
    match sequences.and_then(RawSequences::rows_alike) {
        // A sequence begins anywhere in a tile.
        Some([_, keys]) => (keys - 1).div_ceil(tile_keys) + 1,
        None => problem.seqlen_kv.div_ceil(tile_keys),
    }
}

/// How many key/value heads take turns: as many as share the L2 cache with their q, do and sums of dq, in waves of about
/// one size.
///
/// Under the causal mask a key tile begins at its own queries: in turns, where the tile before begins at the same time, it
/// waits until that tile gets there, in each wave once more. Half as many heads as multiprocessors leave two tiles
/// of a head at a time. Without a mask tiles of a head wait only one step for each other.
fn wave_heads(problem: &Problem, facts: &Facts, ascends_in_turns: bool) -> u32 {
    let share = facts.l2_bytes as usize / 3 * 2;
    let row_bytes = (2 * size_of::<u16>() + size_of::<f32>()) * problem.dim;
    let bytes = row_bytes * problem.seqlen_q * problem.group();
    let heads = problem.batch * problem.kv_heads;
    let least = match ascends_in_turns && problem.causal {
        true => facts.multiprocessors as usize / 2,
        false => 1,
    };
    let fitting = (share / bytes).max(least).max(1);
    heads.div_ceil(heads.div_ceil(fitting)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Attention, Dtype};
    use kernels::catalog::class::Class;

    #[test]
    fn causal_tiles_that_wait_for_their_turns_have_many_heads_beside_them() {
        let facts = Facts::emulated(Class::Sm80);
        let waves = |batch, causal, deterministic| {
            let [q, kv] = [[batch, 16, 4096, 128], [batch, 8, 4096, 128]];
            let problem = Problem::new(q, kv, kv, causal, None).expect("a valid problem");
            wave_heads(&problem, &facts, deterministic)
        };
        // All heads, or about half of 108.
        assert_eq!(waves(4, true, true), 32);
        assert_eq!(waves(16, true, true), 43);
        // A group of two heads takes 8 MB of 27.
        for (causal, deterministic) in [(false, true), (true, false), (false, false)] {
            assert_eq!(waves(4, causal, deterministic), 3);
        }
    }

    /// Sums alone are zeroed where at most two key tiles add to a row, and counters of turns beside them else.
    #[test]
    fn two_key_tiles_take_no_turns() {
        let facts = Facts::emulated(Class::Sm80);
        let zeros = |kernel: &str, [batch, seqlen]: [usize; 2]| {
            let shape = [batch, 1, seqlen, 64];
            let problem = Problem::new(shape, shape, shape, true, None).expect("a valid problem");
            let attention = Attention::new().causal(true).kernel(kernel);
            let args = RawBackward::row_major(&problem);
            let plan = attention.backward_plan(Some(&facts), Dtype::F16, &args);
            plan.expect("a kernel for it").zeros.len()
        };
        let tiles = [[2, 128], [2, 256], [2, 257]];
        assert_eq!(
            tiles.map(|sizes| zeros("backward_f16_d64", sizes)),
            [1, 1, 2]
        );
        // Sequences of any number begin in one tile, and end in the next.
        let packed = [[200, 64], [1000, 33]];
        assert_eq!(
            packed.map(|sizes| zeros("backward_optional_f16_d64", sizes)),
            [1, 1]
        );
    }
}
