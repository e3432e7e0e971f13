//! Calls by kernels [under watch](crate::timeline).

use crate::plan::COMPILED_MODULES;
use crate::timeline::{TIMELINES, Timeline};
use attention::plan::{Entry, Plan};
use attention::{Attention, Error, Facts, Planner, Problem, RawForward, Result};
use kernels::catalog::Dtype;

/// The library's own plan, with its kernel under watch.
#[derive(Clone, Copy, Debug)]
pub struct Recorder {
    /// Where the kernel writes: [`clocks`](crate::timeline::TimelineParams::clocks).
    pub clocks: u64,
}

impl From<&'static Timeline> for Entry {
    fn from(timeline: &'static Timeline) -> Self {
        Entry {
            name: timeline.name,
            module: timeline.module,
            modules: COMPILED_MODULES,
            ..timeline.kernel.into()
        }
    }
}

impl Planner for Recorder {
    fn plan(
        &self,
        facts: Option<&Facts>,
        dtype: Dtype,
        problem: &Problem,
        args: &RawForward,
        splits: Option<u32>,
    ) -> Result<Plan> {
        let attention = Attention::new().causal(problem.causal).scale(problem.scale);
        let attention = attention.splits(splits.unwrap_or(1));
        let mut plan = attention.plan(facts, dtype.into(), args)?;
        let refused = |reason| Error::unsuitable(plan.kernel, reason);
        let watched = TIMELINES
            .iter()
            .find(|timeline| timeline.kernel.name == plan.kernel);
        let watched = watched.ok_or_else(|| {
            refused(
                "has no timeline; kernels for Hopper have one, for f16 and head dims 128 and 256",
            )
        })?;
        if !cfg!(feature = "ptx") {
            return Err(refused(
                "has a timeline in programs with the feature `ladder`",
            ));
        }
        for step in &mut plan.steps {
            if step.entry.name == plan.kernel {
                step.entry = watched.into();
                step.params.extend(self.clocks.to_ne_bytes());
            }
        }
        plan.kernel = watched.name;
        Ok(plan)
    }
}
