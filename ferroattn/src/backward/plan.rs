//! The plan of a backward call: copies of inputs whose rows are not aligned, statistics of the rows, the gradients, and
//! dq from sums to 16 bits.

use super::RawBackward;
use super::bias::BiasGradient;
use super::choice::{Main, MainSpec};
use super::draft::Draft;
use super::packed::Call;
use super::tensors::Tensors;
use crate::device::Facts;
use crate::entry::Entry;
use crate::error::Result;
use crate::forward::Problem;
use crate::options::{self, PAIRS, Spaced, Tables, Tiles, WARPGROUP_ROWS, full, score_shape};
use crate::plan::{Plan, Steps, grid};
use crate::spread::Spread;
use crate::tensor::RawTensor;
use kernels::abi::{
    BackwardParams, Divisor, ForwardParams, Order, PrepareParams, ROW_PADDING, TensorRef,
};
use kernels::catalog::{self, Backward, Family, HopperBackward, HopperWay, Kernel};
use std::mem::offset_of;

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

    /// Multiprocessors for each head of a wave under the causal mask, where a head has so many key tiles and they take turns:
    /// `docs/tuning.md` has what waves measured.
    fn sharing(&self, key_tiles: usize) -> usize {
        let most = match self.spec {
            MainSpec::Plain(_) => 4,
            MainSpec::Hopper(_) => 16,
        };
        (key_tiles / 8).clamp(2, most)
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
pub(super) fn plan(main: Main, facts: &Facts, call: &Call) -> Result<Plan> {
    let Call { problem, args, .. } = call;
    let mut draft = Draft::new(main, facts, call)?;
    draft.reserve(main, facts)?;
    let is_hopper = matches!(main.spec, MainSpec::Hopper(_));
    let d_bias = full_d_bias(problem, args)?;
    let bias_gradient = BiasGradient::new(d_bias, call.deterministic, is_hopper);
    let switches = bias_gradient.switches(options::switches(problem, &args.options));
    let entry = Entry {
        switches,
        ..main.entry
    };

    draft.launch_prepare()?;
    draft.launch_far_sums()?;
    draft.launch_zero_bias(bias_gradient)?;
    draft.launch_main(main, entry)?;
    draft.launch_convert()?;
    draft.launch_far(switches)?;
    draft.launch_sum_bias(bias_gradient)?;
    draft.launch_sinks()?;
    draft.write_outputs()?;
    Ok(draft.steps.finish(entry.name, 1))
}

/// The gradient of the bias, if it is tables, in the shape of all pairs.
fn full_d_bias(problem: &Problem, args: &RawBackward) -> Result<Option<RawTensor>> {
    let shape = score_shape(problem, 1);
    let d_bias = args.d_bias.as_ref();
    d_bias
        .map(|d_bias| full(d_bias, "d_bias", PAIRS, shape))
        .transpose()
}

impl<'a> Draft<'a> {
    /// The parameters of all steps, and copies of inputs whose rows are not aligned.
    fn new(main: Main, facts: &Facts, call: &'a Call) -> Result<Self> {
        let Call {
            args,
            spaced,
            deterministic,
            ..
        } = call;
        let [tile_keys, tile_queries] = main.tile();
        let lengths = [call.problem.seqlen_q, call.problem.seqlen_kv];
        let tiles = [tile_queries.max(ROW_PADDING), tile_keys];
        let spread = Spread::of_call(&args.options, lengths, tiles)?;
        let rows = |side: usize| spread[side].map_or(lengths[side], |spread| spread.rows);
        let problem = &Problem {
            seqlen_q: rows(0),
            seqlen_kv: rows(1),
            ..call.problem
        };
        let sum_columns = main.sum_columns();
        let [heads, kv_heads] = [problem.heads, problem.kv_heads].map(|n| problem.batch * n);
        let key_tiles = problem.seqlen_kv.div_ceil(tile_keys as usize);
        // No overflow in 128 bits: `validate` has `batch * heads` below 2^63 and lengths below 2^31.
        grid(main.kernel().name, kv_heads as u128 * key_tiles as u128)?;
        grid(main.kernel().name, heads as u128)?;
        let padded = problem.seqlen_q.next_multiple_of(ROW_PADDING as usize);
        let rows = heads.checked_mul(padded).ok_or(Steps::OVERFLOW)?;

        let mut steps = Steps::default();
        let tensors = Tensors::new(&mut steps, args, spread.each_ref().map(Option::as_ref))?;
        let [d_sinks_head] = args.d_sinks.map_or([0], |d_sinks| d_sinks.used_strides());
        let d_bias = full_d_bias(problem, args)?;
        let aligned = |tensor: TensorRef| u32::from(tensor.is_aligned());
        let place = offset_of!(BackwardParams, forward) + offset_of!(ForwardParams, options);
        let tables = Tables::of_gradients(*spaced, spread);
        let mut options = steps.options(&call.problem, &args.options, tables, place)?;
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
        let parts = parts(call, tile_keys as usize);
        // Two parts have the same sum in either order.
        let takes_turns = sum_columns > 0 && *deterministic && parts > 2;
        // Key tiles of sequences begin with the last one.
        let ascends_in_turns = takes_turns && !args.options.has_ranges();
        let least = match ascends_in_turns && problem.causal {
            true => facts.multiprocessors as usize / main.sharing(key_tiles),
            false => 1,
        };
        let waves = [wave_heads(problem, facts, least), 1];
        // All of these fit: the grid holds all heads, and `validate` bounds the lengths and the dim.
        let params = BackwardParams {
            forward: ForwardParams {
                q: tensors.q,
                k: tensors.k,
                v: tensors.v,
                o: tensors.o,
                lse: tensors.lse,
                heads: problem.heads as u32,
                tile_heads: Divisor::new(problem.kv_heads as u32),
                group: Divisor::new(problem.group() as u32),
                order: Order::new(kv_heads as u32, key_tiles as u32, waves),
                seqlen_q: problem.seqlen_q as u32,
                seqlen_kv: problem.seqlen_kv as u32,
                dim: problem.dim as u32,
                scale: problem.scale,
                o_aligned: aligned(tensors.o),
                batch_heads: heads as u32,
                splits: 1,
                split_keys: (key_tiles as u32) * tile_keys,
                causal: u32::from(problem.causal),
                options,
                ..ForwardParams::default()
            },
            d_o: tensors.d_o,
            dq: tensors.dq,
            dk: tensors.dk,
            dv: tensors.dv,
            d_lse: tensors.d_lse,
            d_sinks: args.d_sinks.map_or(0, |d_sinks| d_sinks.address),
            d_sinks_head: d_sinks_head as i64,
            d_bias: options::pairs(d_bias),
            padded_rows: padded as u32,
            sum_columns,
            dq_aligned: aligned(tensors.dq),
            dk_aligned: aligned(tensors.dk),
            dv_aligned: aligned(tensors.dv),
            lse_rows: Divisor::new(match spread[0] {
                Some(spread) => spread.rows as u32,
                None => args.lse.shape[2] as u32,
            }),
            ..BackwardParams::default()
        };
        let dtype = main.kernel().dtype();
        Ok(Draft {
            problem: *problem,
            args,
            dtype: dtype.expect("it computes gradients of one"),
            multiprocessors: facts.multiprocessors,
            rows,
            takes_turns,
            params,
            zeros: 0..0,
            counter: 0,
            stored: None,
            spread,
            steps,
        })
    }

    /// Reserves what the rows, the sums of dq and counters take of the workspace.
    fn reserve(&mut self, main: Main, facts: &Facts) -> Result<()> {
        self.params.rows = self.steps.reserve([self.row_bytes(2)?, 1, 1])?;
        self.steps.places.push(offset_of!(BackwardParams, rows));
        self.reserve_far()?;
        let start = self.steps.reserve([0; 3])?;
        let sum_columns = self.params.sum_columns as usize;
        if sum_columns > 0 {
            let bytes = self.row_bytes(sum_columns)?;
            self.params.dq_sum = self.steps.reserve([bytes, 1, 1])?;
            self.steps.places.push(offset_of!(BackwardParams, dq_sum));
        }
        if self.takes_turns {
            let [_, tile_queries] = main.tile();
            let tiles = self.rows / tile_queries as usize;
            self.params.turns = self.steps.reserve([tiles, size_of::<u32>(), 1])?;
            self.steps.places.push(offset_of!(BackwardParams, turns));
        }
        if let MainSpec::Hopper(kernel) = main.spec {
            self.reserve_counters(kernel, main.entry.name, facts)?;
        }
        // Both ends are multiples of 256.
        self.zeros = start..self.steps.reserve([0; 3])?;
        Ok(())
    }

    /// Writes the statistics of the rows, from rows of o and d_o, and zeros.
    fn launch_prepare(&mut self) -> Result<()> {
        let blocks = self.rows as u128 / u128::from(Backward::PREPARED_ROWS);
        let kernel = catalog::kernel(Family::Backward(Backward::Prepare(self.dtype)));
        let mut params = PrepareParams {
            backward: self.params,
            zeros: self.zeros.start,
            zero_bytes: self.zeros.end - self.zeros.start,
        };
        params.backward.forward.dim = self.problem.dim_v as u32;
        let step = self
            .steps
            .launch(kernel.into(), blocks, kernel.launch.shared_bytes, &params)?;
        step.places.push(offset_of!(PrepareParams, zeros));
        Ok(())
    }

    /// Computes dk and dv, and the sums of dq or dq itself.
    fn launch_main(&mut self, main: Main, entry: Entry) -> Result<()> {
        let kv_heads = (self.problem.batch * self.problem.kv_heads) as u128;
        let [tile_keys, _] = main.tile();
        let blocks = kv_heads * self.problem.seqlen_kv.div_ceil(tile_keys as usize) as u128;
        match main.spec {
            MainSpec::Plain(_) => {
                let (shared_bytes, params) = (main.kernel().launch.shared_bytes, self.params);
                self.steps.launch(entry, blocks, shared_bytes, &params)?;
                Ok(())
            }
            MainSpec::Hopper(kernel) => self.launch_hopper(kernel, entry, blocks),
        }
    }

    /// Rounds dq from its sums, if there are any.
    fn launch_convert(&mut self) -> Result<()> {
        if self.params.sum_columns == 0 {
            return Ok(());
        }
        let warps = self.rows as u128 / 16 * u128::from(self.params.sum_columns) / 32;
        let blocks = warps.div_ceil(u128::from(Backward::WARPS));
        self.launch(Backward::Convert(self.dtype), blocks)
    }

    /// Copies gradients from where kernels wrote them, if rows are no whole vectors.
    fn write_outputs(&mut self) -> Result<()> {
        let (args, params) = (self.args, self.params);
        let [of_queries, of_keys] = self.spread;
        let outputs = [
            (args.dq, params.dq, of_queries),
            (args.dk, params.dk, of_keys),
            (args.dv, params.dv, of_keys),
        ];
        outputs
            .into_iter()
            .try_for_each(|(output, written, spread)| {
                self.steps.gather(output, written, spread.as_ref())
            })
    }

    /// Sums the gradient of the sinks, if it is tables.
    fn launch_sinks(&mut self) -> Result<()> {
        if self.params.d_sinks == 0 {
            return Ok(());
        }
        self.launch(Backward::Sinks, self.problem.heads as u128)
    }
}

/// The most key tiles of `tile_keys` keys that add a part other than 0 to a row of dq.
fn parts(call: &Call, tile_keys: usize) -> usize {
    match call.spaced {
        // A sequence begins anywhere in a tile.
        Some(Spaced {
            rows: [_, keys], ..
        }) => (keys - 1).div_ceil(tile_keys) + 1,
        None => call.problem.seqlen_kv.div_ceil(tile_keys),
    }
}

/// How many key/value heads take turns: as many as share the L2 cache with their q, do and sums of dq, and at least `least`,
/// in waves of about one size.
///
/// Under the causal mask a key tile begins at its own queries: in turns, where the tile before begins at the same time, it
/// waits until that tile gets there, in each wave once more. More heads fill that time, but each has fewer tiles in work that
/// read its queries from the cache.
fn wave_heads(problem: &Problem, facts: &Facts, least: usize) -> u32 {
    let share = facts.l2_bytes as usize / 3 * 2;
    let row_bytes = (2 * size_of::<u16>() + size_of::<f32>()) * problem.dim;
    let bytes = row_bytes * problem.seqlen_q * problem.group();
    let heads = problem.batch * problem.kv_heads;
    let fitting = (share / bytes).max(least).max(1);
    heads.div_ceil(heads.div_ceil(fitting)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Class;
    use crate::plan::Step;
    use crate::{Attention, Dtype};

    /// The step that writes statistics and zeros.
    fn prepare(plan: &Plan) -> &Step {
        let mut steps = plan.steps.iter();
        let found = steps.find(|step| step.entry.name == "backward_f16_prepare");
        found.expect("a step of all plans")
    }

    /// Bytes of zeros that it writes.
    fn zero_bytes(plan: &Plan) -> usize {
        let place = offset_of!(PrepareParams, zero_bytes);
        let bytes = prepare(plan).params[place..][..8].try_into();
        u64::from_ne_bytes(bytes.expect("eight bytes")) as usize
    }

    /// The driver fills nothing, and kernels are few: each is some microseconds of a call on the host.
    #[test]
    fn a_kernel_writes_all_zeros() {
        let shape = [1, 16, 1000, 64];
        let problem = Problem::new(shape, shape, shape, true, None).expect("a valid problem");
        let args = RawBackward::row_major(&problem);
        for (kernel, steps, expected) in [
            ("backward_hopper_stored_f16_d64_causal", 2, 256..=4096),
            ("backward_hopper_f16_d64_causal", 3, 4 << 20..=5 << 20),
            ("backward_f16_d64", 3, 4 << 20..=5 << 20),
        ] {
            let facts = Facts::emulated(Class::Sm90);
            let attention = Attention::new().causal(true).kernel(kernel);
            let plan = attention.backward_plan(Some(&facts), Dtype::F16, &args);
            let plan = plan.expect("a kernel for it");
            assert_eq!((plan.steps.len(), plan.zeros.len()), (steps, 0), "{kernel}");
            let bytes = zero_bytes(&plan);
            assert!(expected.contains(&bytes), "{kernel}: {bytes}");
            let place = offset_of!(PrepareParams, zeros);
            assert!(prepare(&plan).places.contains(&place), "{kernel}");
        }
    }

    #[test]
    fn causal_tiles_that_wait_for_their_turns_have_heads_beside_them() {
        let waves = |kernel: &str, seqlen: usize, causal: bool, deterministic: bool| {
            let [q, kv] = [16, 8].map(|heads| [16, heads, seqlen, 128]);
            let problem = Problem::new(q, kv, kv, causal, None).expect("a valid problem");
            let facts = Facts {
                multiprocessors: 128,
                ..Facts::emulated(Class::Sm90)
            };
            let args = RawBackward::row_major(&problem);
            let options = Attention::new().causal(causal).deterministic(deterministic);
            let plan = options
                .kernel(kernel)
                .backward_plan(Some(&facts), Dtype::F16, &args)
                .expect("a kernel for it");
            let place = offset_of!(PrepareParams, backward.forward.order);
            let bytes = &prepare(&plan).params[place..][..size_of::<Order>()];
            let tiles = seqlen.div_ceil(128) as u32;
            let is_found =
                |&wave: &u32| bytemuck::bytes_of(&Order::new(128, tiles, [wave, 1])) == bytes;
            (1..=128).find(is_found).expect("an order")
        };
        let [plain, hopper] = ["backward_f16_d128", "backward_hopper_f16_d128_causal"];
        // Of 128 heads about a half of the multiprocessors, a quarter, an eighth, a sixteenth.
        for (seqlen, heads) in [(2048, 64), (4096, 32), (8192, 16), (16384, 8), (65536, 8)] {
            assert_eq!(waves(hopper, seqlen, true, true), heads, "{seqlen}");
            assert_eq!(waves(plain, seqlen, true, true), heads.max(32), "{seqlen}");
        }
        // A group of two heads takes 8 MB of 33.
        assert_eq!(waves(hopper, 4096, true, false), 4);
        for deterministic in [false, true] {
            assert_eq!(waves(plain, 4096, false, deterministic), 4);
        }
    }

    /// Sums alone are zeroed where at most two key tiles add to a row, and counters of turns beside them else.
    #[test]
    fn two_key_tiles_take_no_turns() {
        let facts = Facts::emulated(Class::Sm80);
        // Whether there are counters beside the sums of dq, of so many rows.
        let takes_turns = |kernel: &str, [batch, seqlen]: [usize; 2], rows: usize| {
            let shape = [batch, 1, seqlen, 64];
            let problem = Problem::new(shape, shape, shape, true, None).expect("a valid problem");
            let attention = Attention::new().causal(true).kernel(kernel);
            let args = RawBackward::row_major(&problem);
            let plan = attention.backward_plan(Some(&facts), Dtype::F16, &args);
            let bytes = zero_bytes(&plan.expect("a kernel for it"));
            bytes > rows.next_multiple_of(128) * 64 * size_of::<f32>()
        };
        for (seqlen, expected) in [(128_usize, false), (256, false), (257, true)] {
            let rows = 2 * seqlen.next_multiple_of(128);
            let found = takes_turns("backward_f16_d64", [2, seqlen], rows);
            assert_eq!(found, expected, "{seqlen} keys");
        }
        // Sequences of any number begin in one tile, and end in the next.
        for [batch, seqlen] in [[200, 64], [1000, 33]] {
            let rows = batch * seqlen;
            assert!(!takes_turns(
                "backward_optional_f16_d64",
                [batch, seqlen],
                rows
            ));
        }
    }
}
