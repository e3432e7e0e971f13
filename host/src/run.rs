//! Arguments to inputs, inputs to measured and checked results, results to a report.

use crate::args::{self, Args, Check, Task};
use crate::forward::ForwardCall;
use crate::inputs::{Inputs, Source};
use crate::measure::{self, Repeat};
use crate::progress::Progress;
use crate::report::{self, Outcome};
use crate::{device, gemm, output};
use anyhow::{Context, Result, anyhow, bail, ensure};
use attention::check::{self, Forward};
use attention::kernel;
use attention::ladder::{Rung, with_options};
use attention::{
    Accumulation, Attention, Device, Dtype, Element, Error, Problem, Strided, Tensor, bf16, f16,
};
use indicatif::HumanBytes;
use std::process::ExitCode;

/// Rows that `--check sample` compares.
const SAMPLE: usize = 256;

/// Runs the command: 0 if all checks passed, 1 if one failed or the device did, 2 for bad input.
pub fn main() -> ExitCode {
    let args = match args::parse() {
        Ok(args) => args,
        Err(message) => {
            eprintln!("error: {message}");
            return ExitCode::from(2);
        }
    };
    let passed = match &args.task {
        None => run(&args),
        Some(Task::Gemm(args)) => gemm::run(args),
    };
    match passed {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error:#}");
            let device_failed = matches!(
                error.downcast_ref(),
                Some(Error::Cuda { .. } | Error::Emulator { .. })
            );
            ExitCode::from(if device_failed { 1 } else { 2 })
        }
    }
}

/// Whether all checks passed.
fn run(args: &Args) -> Result<bool> {
    if args.list_kernels {
        report::list_kernels()?;
        return Ok(true);
    }
    if let Some(path) = &args.output {
        output::probe(path)?;
    }
    let source = Source::open(args).map_err(|error| with_dims(args, error))?;
    let problem = source.problem();
    let device = device::choose(args.device, args.seed, args.counters)?;
    let kernels = kernels(args, &device, source.dtype(), &problem)?;
    match source.dtype() {
        Dtype::F16 => compute::<f16>(args, &device, &source, &kernels),
        Dtype::Bf16 => compute::<bf16>(args, &device, &source, &kernels),
    }
}

/// Of a wrong head dim, what the kernel allows that was asked for.
fn with_dims(args: &Args, error: anyhow::Error) -> anyhow::Error {
    let rung = Rung::ALL.iter().find(|rung| rung.name() == args.kernel);
    match (error.downcast_ref(), rung) {
        (Some(Error::Dim(dim)), Some(rung)) => anyhow!(
            "dim is {dim}; for {} it must be a multiple of 8 from 8 to {}",
            rung.name(),
            rung.max_dim()
        ),
        _ => error,
    }
}

/// A kernel to run.
struct Choice {
    /// With the options that were asked for.
    name: String,
    call: Attention,
    /// What it sums in.
    acc: Accumulation,
}

/// The kernels to run, of which each can.
fn kernels(args: &Args, device: &Device, dtype: Dtype, problem: &Problem) -> Result<Vec<Choice>> {
    let call = Attention::new()
        .causal(problem.causal)
        .scale(problem.scale)
        .splits(args.splits);
    let on_ladder = |rung: &Rung| -> attention::Result<Choice> {
        let ladder = args.on_rung(*rung);
        ladder.check(device, dtype, problem)?;
        Ok(Choice {
            name: ladder.to_string(),
            call: call.clone().ladder(ladder),
            acc: ladder.sums_in(),
        })
    };
    let named = |name: &str| -> Result<Choice> {
        if let Some(rung) = Rung::ALL.iter().find(|rung| rung.name() == name) {
            return Ok(on_ladder(rung)?);
        }
        let checked = kernel::check(device, name, dtype, problem);
        let exists = !matches!(checked, Err(Error::UnknownKernel { .. }));
        if let Some(option) = args.ladder_option().filter(|_| exists) {
            let others = with_options();
            bail!("kernel {name} has no {option}; these have: {others}");
        }
        checked?;
        Ok(Choice {
            name: name.to_owned(),
            call: call.clone().kernel(name),
            acc: Accumulation::default(),
        })
    };
    let suitable = || kernel::suitable(device, dtype, problem).into_iter();
    let choices: Vec<_> = match args.kernel.as_str() {
        "auto" => suitable().take(1).map(named).collect::<Result<_>>()?,
        "all" => suitable().map(named).collect::<Result<_>>()?,
        "ladder" => {
            let rungs = Rung::ALL.iter().map(on_ladder);
            let (serve, others): (Vec<_>, Vec<_>) = rungs.partition(Result::is_ok);
            match others.into_iter().next_back() {
                Some(Err(reason)) if serve.is_empty() => return Err(reason.into()),
                _ => fitting(
                    serve.into_iter().flatten().collect(),
                    device,
                    dtype,
                    problem,
                ),
            }
        }
        name => vec![named(name)?],
    };
    if choices.len() > 1 && args.output.is_some() {
        bail!(
            "--output takes the result of one kernel; --kernel {} runs {}",
            args.kernel,
            choices.len()
        );
    }
    ensure!(
        !choices.is_empty(),
        "no kernel serves this problem on {}",
        device.name()
    );
    Ok(choices)
}

fn compute<T: Element>(
    args: &Args,
    device: &Device,
    source: &Source,
    kernels: &[Choice],
) -> Result<bool> {
    let problem = source.problem();
    expect_memory(device, T::DTYPE, &problem, kernels)?;
    let progress = Progress::start();
    progress.stage("preparing q, k and v");
    let inputs: Inputs<T> = source.load()?;
    let q = Tensor::new(device, problem.q_shape(), &inputs.q)?;
    let k = Tensor::new(device, problem.kv_shape(), &inputs.k)?;
    let v = Tensor::new(device, problem.kv_shape(), &inputs.v)?;

    let mut outcomes = Vec::new();
    for Choice { name, call, acc } in kernels {
        let splits = call.split_count(device, T::DTYPE, &problem)?;
        // What a kernel leaves out must not pass for a result.
        let mut o = poisoned(device, problem.q_shape(), T::from_f32(f32::NAN))?;
        let mut lse = poisoned(device, problem.lse_shape(), f32::NAN)?;
        let times = measure::times(
            device,
            Repeat::new(args.warmup, args.iters, device),
            &progress,
            name,
            || call.forward_into(&q, &k, &v, &mut o, &mut lse),
        )?;
        let (o, lse) = (o.to_vec()?, lse.to_vec()?);

        progress.stage(&format!("checking {name}"));
        let rows = match args.check {
            Check::Off => None,
            Check::Full => Some(check::all_rows(&problem)),
            Check::Sample => Some(check::sample_rows(&problem, SAMPLE, args.seed)),
        };
        let forward = Forward {
            problem: &problem,
            q: Strided::contiguous(&inputs.q, problem.q_shape()),
            k: Strided::contiguous(&inputs.k, problem.kv_shape()),
            v: Strided::contiguous(&inputs.v, problem.kv_shape()),
            o: Strided::contiguous(&o, problem.q_shape()),
            lse: &lse,
            acc: *acc,
        };
        let checked = rows.map(|rows| check::check(&forward, &rows));
        let counters = args.counters.then(|| device.counters());
        let outcome = Outcome::new(
            device.name(),
            name,
            ForwardCall {
                splits,
                dtype: T::DTYPE.name(),
                problem,
            },
            &times,
            checked.map(Into::into),
            counters,
        );
        if args.json {
            progress.suspend(|| report::json_line(&outcome))?;
        }
        if let Some(wrong) = checked.filter(|checked| !checked.passed()) {
            progress.suspend(|| eprintln!("{name} is wrong: {wrong}"));
        } else if let Some(path) = &args.output {
            output::write(path, &problem, &o, &lse)?;
        }
        outcomes.push(outcome);
    }
    progress.finish();
    if !args.json {
        report::table(&outcomes)?;
    }
    Ok(!outcomes.iter().any(Outcome::is_wrong))
}

pub fn poisoned<T: bytemuck::Pod, const R: usize>(
    device: &Device,
    shape: [usize; R],
    poison: T,
) -> attention::Result<Tensor<T, R>> {
    Tensor::new(device, shape, &vec![poison; shape.iter().product()])
}

/// Those that there is memory for, if there are such: the scores of `naive` are the first to be too large.
fn fitting(
    mut choices: Vec<Choice>,
    device: &Device,
    dtype: Dtype,
    problem: &Problem,
) -> Vec<Choice> {
    let fits = |choice: &Choice| {
        let alone = std::slice::from_ref(choice);
        expect_memory(device, dtype, problem, alone).is_ok()
    };
    if choices.iter().any(fits) {
        choices.retain(fits);
    }
    choices
}

/// Compares what the problem needs with what is free, before anything is allocated.
fn expect_memory(
    device: &Device,
    dtype: Dtype,
    problem: &Problem,
    kernels: &[Choice],
) -> Result<()> {
    let size = |shape: &[usize], element: usize| {
        shape.iter().fold(element as u64, |bytes, &extent| {
            bytes.saturating_mul(extent as u64)
        })
    };
    let qo = size(&problem.q_shape(), size_of::<u16>());
    let kv = size(&problem.kv_shape(), size_of::<u16>());
    let lse = size(&problem.lse_shape(), size_of::<f32>());
    let inputs = qo.saturating_add(kv.saturating_mul(2));
    let outputs = qo.saturating_add(lse);

    let mut workspace = 0;
    for Choice { call, .. } in kernels {
        workspace = workspace.max(call.workspace_bytes(device, dtype, problem)? as u64);
    }
    let on_device = inputs.saturating_add(outputs).saturating_add(workspace);
    // The host keeps the inputs for the check, the poison, and what it reads back.
    let on_host = inputs.saturating_add(outputs.saturating_mul(2));
    expect_free(device, on_device, on_host, "batch, heads, seqlen and dim")
}

/// Whether a device and the host, which may be one, have so many bytes free for problems of these
/// `sizes`.
pub fn expect_free(device: &Device, on_device: u64, on_host: u64, sizes: &str) -> Result<()> {
    let needs = if device.is_cpu() {
        vec![(device.clone(), on_host.saturating_add(on_device))]
    } else if device.is_emulator() {
        // Its memory is the host's, which takes two bytes for each.
        let emulated = on_device.saturating_mul(2);
        vec![(device.clone(), on_host.saturating_add(emulated))]
    } else {
        vec![(device.clone(), on_device), (Device::cpu(), on_host)]
    };
    for (place, needed) in needs {
        let free = place
            .free_memory()
            .context("cannot tell how much memory is free")?;
        ensure!(
            needed <= free,
            "{sizes} are too large: they need {} of memory on {}, which has {} free",
            HumanBytes(needed),
            place.name(),
            HumanBytes(free),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Args, kernels};
    use attention::emulator::Options;
    use attention::ladder::Rung;
    use attention::{Device, Dtype, Problem};
    use clap::Parser;

    #[test]
    fn of_the_ladder_runs_what_there_is_memory_for() {
        let device = Device::emulator(Options::default()).expect("an emulator");
        let names = |seqlen| {
            let args = Args::parse_from(["attention", "--kernel", "ladder"]);
            let shape = [1, 1, seqlen, 64];
            let problem = Problem::new(shape, shape, shape, false, None).expect("valid");
            let kernels = kernels(&args, &device, Dtype::F16, &problem).expect("some");
            kernels.into_iter().map(|kernel| kernel.name)
        };
        let all = || Rung::ALL.iter().map(|rung| rung.name());
        assert!(names(100).eq(all()));
        // The scores would be 4 TB.
        assert!(names(1_000_000).eq(all().filter(|&name| name != "naive")));
    }
}
