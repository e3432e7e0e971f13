//! The kernels that `--kernel` names.

use crate::args::{Args, Pass};
use crate::tensors::Pairs;
use anyhow::{Result, bail, ensure};
use ferroattn::kernel;
use ferroattn::{
    Accumulation, Attention, Device, Dtype, Error, Problem, RawBackward, RawForward, RawOptions,
    RawTensor,
};
use ladder::{Ladder, Rung, with_options};
use std::slice;

/// An attention call to compute.
pub struct Task<'a> {
    pub args: &'a Args,
    pub device: &'a Device,
    /// Element type of o, and of q, k and v unless they are e4m3.
    pub dtype: Dtype,
    pub problem: Problem,
    /// Options' tensors with an element for each pair.
    pub pairs: Pairs,
}

/// A kernel to run.
pub struct Choice {
    /// Its name, followed by the options of a kernel of the ladder.
    pub name: String,
    /// Without the tensors of options.
    pub call: Attention<'static>,
    /// Type of its accumulators.
    pub acc: Accumulation,
    /// Splits of the keys.
    pub splits: u32,
    /// Bytes of its workspace.
    pub workspace_bytes: usize,
}

impl Task<'_> {
    /// The kernels of the forward pass to run; each of them serves the problem. The best one, where it only prepares
    /// the backward pass.
    pub fn choices(&self) -> Result<Vec<Choice>> {
        let Task { args, device, .. } = self;
        ensure!(
            args.splits <= 1 || !device.is_cpu(),
            "--splits is {}, but the CPU does not split the keys; type --device emulator",
            args.splits
        );
        let suitable =
            || kernel::suitable(device.facts(), self.dtype, &self.own(), &self.options());
        let named = |name: &str| self.named(name);
        let kernel = match args.pass {
            Pass::Backward => "auto",
            _ => &args.kernel,
        };
        let choices: Vec<_> = match kernel {
            "auto" => suitable()?.into_iter().take(1).map(named).collect(),
            "all" => self.all(suitable()?),
            "ladder" => self.ladder(),
            name => named(name).map(|choice| vec![choice]),
        }?;
        let count = choices.len();
        ensure!(
            count <= 1 || args.output.is_none(),
            "--output takes the result of one kernel; --kernel {kernel} runs {count}"
        );
        ensure!(
            !choices.is_empty(),
            "no kernel serves this problem on {}",
            device.name()
        );
        Ok(choices)
    }

    /// The kernel of the backward pass to run, if that is computed; it serves the problem.
    pub fn backward(&self) -> Result<Option<Choice>> {
        let Args { pass, kernel, .. } = self.args;
        if *pass == Pass::Forward {
            return Ok(None);
        }
        let any = ["auto", "all"].contains(&kernel.as_str());
        ensure!(
            *pass == Pass::Backward || any || kernel == kernel::CPU,
            "--pass both takes no --kernel {kernel}, because each pass has its own kernels"
        );
        let is_rung = Rung::ALL.iter().any(|rung| rung.name() == kernel);
        ensure!(
            !is_rung && kernel != "ladder",
            "--kernel {kernel} computes the forward pass alone"
        );
        ensure!(
            *pass == Pass::Both || self.args.splits <= 1,
            "--splits is for the forward pass; type --pass both"
        );
        ensure!(
            *pass == Pass::Both || self.args.modifiers.split_keys.is_none(),
            "--split-keys is for the forward pass; type --pass both"
        );
        for (option, keys) in [
            ("--append", self.args.modifiers.append),
            ("--prefix", self.args.modifiers.prefix),
        ] {
            ensure!(keys.is_none(), "{option} is for the forward pass alone");
        }
        let mut call = self.args.call();
        if !any {
            call = call.kernel(kernel);
        }
        let mut tensors = RawBackward::row_major(&self.problem);
        tensors.options = self.options();
        tensors.d_sinks = tensors.options.sinks;
        let d_bias = self.pairs.bias.map(|(_, shape)| shape);
        tensors.d_bias = d_bias.map(RawTensor::row_major);
        let plan = call.backward_plan(self.device.facts(), self.dtype, &tensors)?;
        Ok(Some(Choice {
            name: plan.kernel.to_owned(),
            call,
            acc: Accumulation::default(),
            splits: plan.splits,
            workspace_bytes: plan.workspace_bytes,
        }))
    }

    /// The problem as calls take it: that of the keys that no prefix has.
    fn own(&self) -> Problem {
        self.args.modifiers.own(&self.problem)
    }

    /// The tensors of options, to plan with.
    fn options(&self) -> RawOptions {
        let (modifiers, own) = (&self.args.modifiers, self.own());
        let mut options = modifiers.planned(&own, &self.pairs, self.dtype);
        self.args.plan_fp8(&mut options);
        options
    }

    fn choice(
        &self,
        name: String,
        acc: Accumulation,
        by: impl FnOnce(Attention<'static>) -> Attention<'static>,
    ) -> ferroattn::Result<Choice> {
        let call = by(self.args.call().splits(self.args.splits));
        let own = self.own();
        let ([k, v], _) = self.args.modifiers.cache_shapes(&own);
        let tensors = RawForward {
            k: RawTensor::row_major(k),
            v: RawTensor::row_major(v),
            options: self.options(),
            ..RawForward::row_major(&own)
        };
        let plan = call.plan(self.device.facts(), self.dtype, &tensors)?;
        Ok(Choice {
            name,
            call,
            acc,
            splits: plan.splits,
            workspace_bytes: plan.workspace_bytes,
        })
    }

    fn named(&self, name: &str) -> Result<Choice> {
        if let Some(rung) = Rung::ALL.iter().find(|rung| rung.name() == name) {
            return self.on_rung(rung);
        }
        let checked = match kernel::check(
            self.device.facts(),
            name,
            self.dtype,
            &self.own(),
            &self.options(),
        ) {
            // Names of the ladder may be similar.
            Err(Error::UnknownKernel { near, .. }) if near.is_empty() => {
                Ladder::named(name).map(|_| ())
            }
            checked => checked,
        };
        let exists = !matches!(checked, Err(Error::UnknownKernel { .. }));
        if let Some(option) = self.args.ladder_option().filter(|_| exists) {
            let (typed, ladder) = (&self.args.kernel, with_options());
            bail!("--kernel {typed} takes no {option}; these kernels of the ladder do: {ladder}");
        }
        checked?;
        let acc = Accumulation::default();
        // The library chooses one for each part of a call with a prefix, whose queries see all of the prefix.
        let is_free = self.args.kernel == "auto" && self.args.modifiers.prefix.is_some();
        Ok(self.choice(name.to_owned(), acc, |call| match is_free {
            true => call,
            false => call.kernel(name),
        })?)
    }

    /// Choices by these names, which serve the problem; with a prefix those of them that serve the call on it, too.
    fn all(&self, names: Vec<&str>) -> Result<Vec<Choice>> {
        let choices = names.into_iter().map(|name| self.named(name));
        match self.args.modifiers.prefix {
            None => choices.collect(),
            Some(_) => Ok(choices.flatten().collect()),
        }
    }

    fn on_rung(&self, rung: &Rung) -> Result<Choice> {
        let has_dim_v = self.problem.dim_v != self.problem.dim;
        let is_e4m3 = self.args.is_e4m3();
        let option = self.args.modifiers.first();
        let option = option.or(is_e4m3.then_some("--dtype fp8"));
        if let Some(option) = option.or(has_dim_v.then_some("--dim-v")) {
            let kernel = &self.args.kernel;
            bail!("--kernel {kernel} takes no {option}; the ladder has plain and causal attention");
        }
        let ladder = self.args.on_rung(*rung);
        ladder.check(self.device, self.dtype, &self.problem)?;
        let (name, acc) = (ladder.to_string(), ladder.sums_in());
        Ok(self.choice(name, acc, |call| call.planner(ladder))?)
    }

    /// The kernels of the ladder that serve the problem and that there is memory for, or all that serve it if
    /// there is memory for none; the scores of `naive` are the first to be too large.
    fn ladder(&self) -> Result<Vec<Choice>> {
        // Only the kernels with options can take one.
        let takes = |rung: &&Rung| rung.has_options() || self.args.ladder_option().is_none();
        let rungs = Rung::ALL.iter().filter(takes);
        let rungs = rungs.map(|rung| self.on_rung(rung));
        let (serve, others): (Vec<_>, Vec<_>) = rungs.partition(Result::is_ok);
        if let (true, Some(Err(reason))) = (serve.is_empty(), others.into_iter().next_back()) {
            return Err(reason);
        }
        Ok(self.fitting(serve.into_iter().flatten().collect()))
    }

    /// The choices that there is memory for, or all if there is memory for none.
    fn fitting(&self, mut choices: Vec<Choice>) -> Vec<Choice> {
        let fits = |choice: &Choice| self.expect_memory(slice::from_ref(choice)).is_ok();
        if choices.iter().any(fits) {
            choices.retain(fits);
        }
        choices
    }
}

#[cfg(test)]
mod tests {
    use super::{Args, Choice, Pairs, Task};
    use clap::Parser;
    use ferroattn::{Accumulation, Attention, Device, Dtype, Problem};

    #[test]
    fn the_ladder_is_what_there_is_memory_for() {
        let args = Args::parse_from(["attention", "--kernel", "ladder", "--check", "off"]);
        let shape = [1, 1, 100, 64];
        let task = Task {
            args: &args,
            device: &Device::cpu(),
            dtype: Dtype::F16,
            problem: Problem::new(shape, shape, shape, false, None).expect("valid"),
            pairs: Pairs::default(),
        };
        let names = |workspaces: [(&str, usize); 2]| {
            let choices = workspaces.map(|(name, workspace_bytes)| Choice {
                name: name.to_owned(),
                call: Attention::new(),
                acc: Accumulation::default(),
                splits: 1,
                workspace_bytes,
            });
            let fitting = task.fitting(choices.into()).into_iter();
            fitting.map(|choice| choice.name).collect::<Vec<_>>()
        };
        // The scores of a million queries and keys.
        let scores = 1 << 42;
        assert_eq!(names([("naive", 40_000), ("fa1", 0)]), ["naive", "fa1"]);
        assert_eq!(names([("naive", scores), ("fa1", 0)]), ["fa1"]);
        // Each of them then says what it lacks.
        assert_eq!(names([("naive", scores), ("fa1", scores)]).len(), 2);
    }
}
