//! Calls by kernels [under watch](crate::timeline).

use crate::plan::COMPILED_MODULES;
use crate::timeline::{TIMELINES, Timeline};
use ferroattn::Plan;
use ferroattn::internals::{Entry, Planner};
use ferroattn::{Attention, Error, Facts, Problem, RawForward, Result};
use kernels::catalog::Dtype;

/// The library's own plan, with its kernel under watch.
#[derive(Clone, Copy, Debug)]
pub struct Recorder {
    /// Where the kernel writes: [`clocks`](crate::timeline::TimelineParams::clocks).
    clocks: u64,
}

impl Recorder {
    /// A recorder of kernels that write clocks to this address.
    ///
    /// # Safety
    /// All clocks that a call's kernel [writes](crate::timeline::TimelineParams::clocks) fit at the address, in memory of the
    /// call's device that nothing else touches, for all calls with the recorder.
    pub unsafe fn new(clocks: u64) -> Self {
        Recorder { clocks }
    }
}

impl From<&'static Timeline> for Entry {
    fn from(timeline: &'static Timeline) -> Self {
        Entry {
            name: timeline.spec.name,
            module: timeline.spec.module,
            modules: COMPILED_MODULES,
            ..timeline.kernel.into()
        }
    }
}

// SAFETY: the plan is the library's. The kernel under watch is the plan's own, and writes clocks besides, where `new` was
// promised room.
unsafe impl Planner for Recorder {
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
        plan.kernel = watched.spec.name;
        Ok(plan)
    }
}
