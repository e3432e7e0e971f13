//! Plans of attention calls by kernels of the ladder.

use crate::catalog::{Kernel, Loop};
use crate::kernel::Ladder;
use crate::options::{NaivePass, Rung};
use crate::params::{LadderParams, Options};
use ferroattn::internals::{Draft, Entry, MainKernel, Planner, Waves, has_map};
use ferroattn::{Facts, Plan, Problem, RawForward, Result};
use kernels::abi::Switches;
use kernels::catalog::Dtype;

include!(concat!(env!("OUT_DIR"), "/modules.rs"));

impl From<&'static Kernel> for Entry {
    fn from(kernel: &'static Kernel) -> Self {
        Entry {
            name: kernel.spec.name,
            module: kernel.spec.module,
            target: kernel.spec.target,
            threads: kernel.spec.launch.threads,
            modules: COMPILED_MODULES,
            switches: Switches::NONE,
        }
    }
}

// SAFETY: `Draft` made the plan, of kernels that take its parameters, each with its own options behind them.
unsafe impl Planner for Ladder {
    /// `naive` and `fa1` do not split the keys. `wgmma` computes in the place of the other rungs for Hopper what no tensor
    /// map can describe.
    fn plan(
        &self,
        facts: Option<&Facts>,
        dtype: Dtype,
        problem: &Problem,
        args: &RawForward,
        splits: Option<u32>,
    ) -> Result<Plan> {
        let has_maps = [args.q, args.k, args.v].iter().all(has_map);
        let ladder = match self.rung.is_for_hopper() && !has_maps {
            true => Ladder::new(Rung::Wgmma),
            false => *self,
        };
        let (chosen, facts) = ladder.choose(dtype, problem, facts)?;
        self.check_compiled()?;
        let (shape, options) = (chosen.kernel.shape, chosen.options);
        let (tile, takes_maps) = (shape.tile(), chosen.kernel.spec.takes_maps());
        let kernel = MainKernel {
            entry: chosen.kernel.into(),
            dtype,
            q_rows: match shape.main_loop {
                // A block takes all rows of its head.
                Loop::Fa1 => u32::MAX,
                _ => tile.q_rows,
            },
            keys: tile.keys,
            shared_bytes: chosen.shared_bytes,
            blocks_per_sm: tile.blocks_per_sm,
            is_grouped: false,
            may_group: false,
            waves: Waves::Heads,
            slices: 1,
            sides: 1,
            v_chunks: 1,
            takes_units: false,
            may_combine: false,
            map_dim: takes_maps.then(|| shape.dim()),
            values_in_keys: false,
            reads_e4m3: false,
            is_fp8: false,
            rounds_q: false,
            has_votes: false,
        };
        let splits = match shape.main_loop {
            Loop::Naive | Loop::Fa1 => Some(1),
            _ => splits,
        };
        let mut draft = Draft::new(kernel, problem, facts, args, splits)?;
        let block = |options| move |forward| LadderParams { forward, options };
        if shape.main_loop == Loop::Naive {
            draft.reserve_partials(problem.seqlen_kv)?;
            for pass in [NaivePass::Scores, NaivePass::Softmax, NaivePass::Output] {
                let pass = pass as u32;
                draft.launch(block(Options { pass, ..options }))?;
            }
            return draft.finish();
        }
        let combines = draft.splits() > 1 || shape.main_loop == Loop::Fa1;
        if combines {
            draft.reserve_partials(problem.dim)?;
        }
        match takes_maps {
            // A block for each tile.
            true => draft.launch_by_maps(problem, shape.dim(), u32::MAX)?,
            false => draft.launch(block(options))?,
        }
        if combines {
            draft.combine()?;
        }
        draft.finish()
    }
}
