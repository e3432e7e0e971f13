//! `attention`: attention, measured and checked.

use crate::args::Args;
use crate::choice::{Choice, Task};
use crate::device;
use crate::inputs::{Source, rows_not_finite};
use crate::measure;
use crate::memory::poisoned;
use crate::output::Output;
use crate::progress::Progress;
use crate::report::{Call, Checked, Report};
use anyhow::Result;
use attention::check::{Forward, check, sample_rows};
use attention::{Dtype, Element, Problem, Tensor, bf16, f16};
use serde::Serialize;
use std::fmt;

/// An attention call: what was computed, and how it was divided.
#[derive(Serialize)]
struct ForwardCall {
    /// Splits of the keys.
    splits: u32,
    /// Element type of q, k, v and o.
    dtype: &'static str,
    /// Sizes and options.
    #[serde(flatten)]
    problem: Problem,
}

impl fmt::Display for ForwardCall {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Problem {
            batch,
            heads,
            kv_heads,
            seqlen_q,
            seqlen_kv,
            dim,
            causal,
            ..
        } = self.problem;
        let dtype = self.dtype;
        let causal = if causal { ", causal" } else { "" };
        write!(
            f,
            "batch {batch}, heads {heads}, kv_heads {kv_heads}, seqlen {seqlen_q}, \
             seqlen_kv {seqlen_kv}, dim {dim}, {dtype}{causal}"
        )
    }
}

impl Call for ForwardCall {
    fn columns(&self) -> Vec<(&str, String)> {
        vec![("splits", self.splits.to_string())]
    }

    fn flops(&self) -> f64 {
        self.problem.flops()
    }
}

/// Whether all checks passed.
pub fn run(args: &Args) -> Result<bool> {
    let source = Source::open(args)?;
    let task = Task {
        args,
        device: &device::choose(&args.run)?,
        dtype: source.dtype,
        problem: source.problem,
    };
    let choices = task.choices()?;
    task.expect_memory(&choices)?;
    match task.dtype {
        Dtype::F16 => compute::<f16>(&task, source, &choices),
        Dtype::Bf16 => compute::<bf16>(&task, source, &choices),
        Dtype::F32 => compute::<f32>(&task, source, &choices),
    }
}

fn compute<T: Element>(task: &Task, source: Source, choices: &[Choice]) -> Result<bool> {
    let &Task {
        args,
        device,
        problem,
        ..
    } = task;
    let output = args.output.as_ref();
    let output = output.map(|path| Output::open(path, source.file()));
    let output = output.transpose()?;
    let progress = Progress::start();
    progress.stage("preparing q, k and v");
    let inputs: [Vec<T>; 3] = source.load()?;
    let not_finite = inputs
        .each_ref()
        .map(|data| rows_not_finite(data, problem.dim));
    if not_finite != [0; 3] {
        let ([q, k, v], dtype) = (not_finite, T::DTYPE.name());
        progress.bar.suspend(|| {
            eprintln!("note: rows with NaN or infinity, as {dtype}: {q} of q, {k} of k, {v} of v");
        });
    }
    let q = Tensor::new(device, problem.q_shape(), &inputs[0])?;
    let k = Tensor::new(device, problem.kv_shape(), &inputs[1])?;
    let v = Tensor::new(device, problem.kv_shape(), &inputs[2])?;

    let mut report = Report::new(&args.run, device, &progress);
    for choice in choices {
        let Choice { name, call, .. } = choice;
        let mut o = poisoned(device, problem.q_shape(), T::from_f32(f32::NAN))?;
        let mut lse = poisoned(device, problem.lse_shape(), f32::NAN)?;
        let times = measure::times(&args.run, device, &progress, name, || {
            call.forward_into(&q, &k, &v, &mut o, &mut lse)
        })?;
        let (o, lse) = (o.to_vec()?, lse.to_vec()?);

        progress.stage(&format!("checking {name}"));
        let forward = Forward {
            problem: &problem,
            q: &inputs[0],
            k: &inputs[1],
            v: &inputs[2],
            o: &o,
            lse: &lse,
            acc: choice.acc,
        };
        let count = args.run.check.rows();
        let checked = (count > 0).then(|| {
            let rows = sample_rows(&problem, count, args.run.seed);
            let found = check(&forward, &rows);
            Checked {
                rows: found.rows,
                worst: found.o,
                failure: (!found.passed()).then(|| found.to_string()),
            }
        });
        let call = ForwardCall {
            splits: choice.splits,
            dtype: T::DTYPE.name(),
            problem,
        };
        if report.add(name, call, &times, checked)?
            && let Some(output) = &output
        {
            output.write(&problem, &o, &lse)?;
        }
    }
    Ok(report.finish()?)
}
