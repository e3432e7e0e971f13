//! Arguments to inputs, inputs to measured and checked results, results to a report.

use crate::args::{Args, Check, Task};
use crate::forward::ForwardCall;
use crate::inputs::{Inputs, Source};
use crate::measure::{self, Repeat};
use crate::output::Output;
use crate::progress::Progress;
use crate::report::{self, Outcome};
use crate::{device, gemm};
use anyhow::{Context, Result, bail, ensure};
use attention::check::{self, Forward};
use attention::kernel;
use attention::ladder::{Rung, with_options};
use attention::{
    Accumulation, Attention, Device, Dtype, Element, Error, Problem, RawForward, Strided, Tensor,
    bf16, f16,
};
use clap::Parser;
use indicatif::HumanBytes;
use rayon::ThreadPoolBuilder;
use std::hint::black_box;
use std::process::ExitCode;

/// Rows that `--check sample` compares.
const SAMPLE: usize = 256;

/// Runs the command: 0 if all checks passed, 1 if a check or the device failed, 2 for bad input.
pub fn main() -> ExitCode {
    let args = Args::parse();
    let error = match run_task(&args) {
        Ok(true) => return ExitCode::SUCCESS,
        Ok(false) => return ExitCode::from(1),
        Err(error) => error,
    };
    if let Some(Error::Cuda { .. } | Error::Emulator { .. }) = error.downcast_ref() {
        eprintln!("error: {error:#}");
        return ExitCode::from(1);
    }
    // Names of files and tensors may hold line breaks.
    let line = format!("{error:#}").replace(char::is_control, " ");
    eprintln!("error: {line}");
    ExitCode::from(2)
}

fn run_task(args: &Args) -> Result<bool> {
    let threads = ThreadPoolBuilder::new().build_global();
    threads.context("cannot start threads")?;
    match &args.task {
        None => run(args),
        Some(Task::Gemm(args)) => gemm::run(args),
    }
}

/// Whether all checks passed.
fn run(args: &Args) -> Result<bool> {
    if args.list_kernels {
        report::list_kernels()?;
        return Ok(true);
    }
    let source = Source::open(args)?;
    let device = device::choose(&args.run)?;
    let kernels = kernels(args, &device, source.dtype(), &source.problem())?;
    match source.dtype() {
        Dtype::F16 => compute::<f16>(args, &device, source, &kernels),
        Dtype::Bf16 => compute::<bf16>(args, &device, source, &kernels),
    }
}

/// A kernel to run.
struct Choice {
    /// Its name, followed by the options of a kernel of the ladder.
    name: String,
    call: Attention,
    /// Type of its accumulators.
    acc: Accumulation,
}

/// The kernels to run; each of them serves the problem.
fn kernels(args: &Args, device: &Device, dtype: Dtype, problem: &Problem) -> Result<Vec<Choice>> {
    ensure!(
        args.splits <= 1 || !device.is_cpu(),
        "--splits is {}, but the CPU does not split the keys; type --device emulator",
        args.splits
    );
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
            let (typed, ladder) = (&args.kernel, with_options());
            bail!("--kernel {typed} takes no {option}; these kernels of the ladder do: {ladder}");
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
                    args,
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
    source: Source,
    kernels: &[Choice],
) -> Result<bool> {
    let problem = source.problem();
    expect_memory(args, device, T::DTYPE, &problem, kernels)?;
    let output = args.output.as_ref();
    let output = output.map(|path| Output::open(path, source.file()));
    let output = output.transpose()?;
    let progress = Progress::start();
    progress.stage("preparing q, k and v");
    let inputs: Inputs<T> = source.load()?;
    if inputs.not_finite != [0; 3] {
        let [q, k, v] = inputs.not_finite;
        let dtype = T::DTYPE.name();
        progress.suspend(|| {
            eprintln!("note: rows with NaN or infinity, as {dtype}: {q} of q, {k} of k, {v} of v");
        });
    }
    let q = Tensor::new(device, problem.q_shape(), &inputs.q)?;
    let k = Tensor::new(device, problem.kv_shape(), &inputs.k)?;
    let v = Tensor::new(device, problem.kv_shape(), &inputs.v)?;

    let mut outcomes = Vec::new();
    for Choice { name, call, acc } in kernels {
        let raw = RawForward::row_major(&problem);
        let splits = call.plan(device.facts(), T::DTYPE, &raw)?.splits;
        // Elements that a kernel leaves out must not pass the check.
        let mut o = poisoned(device, problem.q_shape(), T::from_f32(f32::NAN))?;
        let mut lse = poisoned(device, problem.lse_shape(), f32::NAN)?;
        let times = measure::times(
            device,
            Repeat::new(&args.run, device),
            &progress,
            name,
            || call.forward_into(&q, &k, &v, &mut o, &mut lse),
        )?;
        let (o, lse) = (o.to_vec()?, lse.to_vec()?);

        progress.stage(&format!("checking {name}"));
        let rows = match args.run.check {
            Check::Off => None,
            Check::Full => Some(check::all_rows(&problem)),
            Check::Sample => Some(check::sample_rows(&problem, SAMPLE, args.run.seed)),
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
        let counters = args.run.counters.then(|| device.counters());
        let outcome = Outcome::new(
            device,
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
        if args.run.json {
            progress.suspend(|| report::json_line(&outcome))?;
        }
        if let Some(wrong) = checked.filter(|checked| !checked.passed()) {
            progress.suspend(|| eprintln!("{name} is wrong: {wrong}"));
        } else if let Some(output) = &output {
            output.write(&problem, &o, &lse)?;
        }
        outcomes.push(outcome);
    }
    progress.finish();
    if !args.run.json {
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

/// The kernels that there is memory for, or all if there are none; the scores of `naive` are the first
/// to be too large.
fn fitting(
    mut choices: Vec<Choice>,
    args: &Args,
    device: &Device,
    dtype: Dtype,
    problem: &Problem,
) -> Vec<Choice> {
    let fits = |choice: &Choice| {
        let alone = std::slice::from_ref(choice);
        expect_memory(args, device, dtype, problem, alone).is_ok()
    };
    if choices.iter().any(fits) {
        choices.retain(fits);
    }
    choices
}

/// Compares the memory that the problem needs with what is free, before anything is allocated.
fn expect_memory(
    args: &Args,
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
        let plan = call.plan(device.facts(), dtype, &RawForward::row_major(problem))?;
        workspace = workspace.max(plan.workspace_bytes as u64);
    }
    let on_device = inputs.saturating_add(outputs).saturating_add(workspace);
    // The host keeps the inputs for the check, the poison, and the copies of o and lse.
    let on_host = inputs.saturating_add(outputs.saturating_mul(2));
    let check = match args.run.check {
        Check::Off => 0,
        Check::Sample | Check::Full => {
            // Each thread keeps one head's k, scaled k, rounded k and v in f64.
            let head = size(&[4, problem.seqlen_kv, problem.dim], size_of::<f64>());
            let heads = problem.batch.saturating_mul(problem.kv_heads);
            head.saturating_mul(heads.min(rayon::current_num_threads()) as u64)
        }
    };
    let sizes = match args.input {
        None => "batch, heads, seqlen and dim are",
        Some(_) => "the tensors of --input are",
    };
    expect_free(device, on_device, on_host.saturating_add(check), sizes)
}

/// Compares the bytes that a device and the host, which may be one, need for these `sizes` with what is
/// free.
pub fn expect_free(device: &Device, on_device: u64, on_host: u64, sizes: &str) -> Result<()> {
    let (host, on_host) = if device.is_cpu() {
        (device.clone(), on_host.saturating_add(on_device))
    } else if device.is_emulator() {
        // Its memory is the host's, which takes two bytes for each.
        let emulated = on_device.saturating_mul(2);
        (device.clone(), on_host.saturating_add(emulated))
    } else {
        (Device::cpu(), on_host)
    };
    let mut needs = vec![(&host, on_host)];
    if *device != host {
        needs.push((device, on_device));
    }
    for (place, needed) in needs {
        let free = place
            .free_memory()
            .context("cannot tell how much memory is free")?;
        ensure!(
            needed <= free,
            "{sizes} too large: they need {} of memory on {}, which has {} free",
            HumanBytes(needed),
            place.name(),
            HumanBytes(free),
        );
    }
    // Free memory may still be more than this process is allowed (`ulimit -v`), of which each thread
    // and the rest of the program take a part.
    let threads = rayon::current_num_threads() as u64;
    let with_threads = on_host.saturating_add((threads + 2) * (64 << 20));
    let mut all = Vec::<u8>::new();
    let allowed =
        usize::try_from(with_threads).is_ok_and(|size| all.try_reserve_exact(size).is_ok());
    black_box(all);
    ensure!(
        allowed,
        "{sizes} too large: they need {} of memory, more than this process may have",
        HumanBytes(on_host)
    );
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
            let args = Args::parse_from(["attention", "--kernel", "ladder", "--check", "off"]);
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
