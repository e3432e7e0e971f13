//! The kernels that `--kernel` names.

use crate::args::{Args, Check};
use crate::memory::expect_free;
use anyhow::{Result, bail, ensure};
use attention::kernel;
use attention::{Accumulation, Attention, Device, Dtype, Error, Problem, RawForward};
use ladder::{Ladder, Rung, with_options};

/// A kernel to run.
pub struct Choice {
    /// Its name, followed by the options of a kernel of the ladder.
    pub name: String,
    pub call: Attention,
    /// Type of its accumulators.
    pub acc: Accumulation,
    /// Splits of the keys.
    pub splits: u32,
    workspace_bytes: u64,
}

/// The kernels to run; each of them serves the problem.
pub fn choices(
    args: &Args,
    device: &Device,
    dtype: Dtype,
    problem: &Problem,
) -> Result<Vec<Choice>> {
    ensure!(
        args.splits <= 1 || !device.is_cpu(),
        "--splits is {}, but the CPU does not split the keys; type --device emulator",
        args.splits
    );
    let call = Attention::new()
        .causal(problem.causal)
        .scale(problem.scale)
        .splits(args.splits);
    let choice = |name: String, call: Attention, acc| {
        let plan = call.plan(device.facts(), dtype, &RawForward::row_major(problem))?;
        Ok(Choice {
            name,
            call,
            acc,
            splits: plan.splits,
            workspace_bytes: plan.workspace_bytes as u64,
        })
    };
    let on_ladder = |rung: &Rung| -> attention::Result<Choice> {
        let ladder = args.on_rung(*rung);
        ladder.check(device, dtype, problem)?;
        let call = call.clone().planner(ladder);
        choice(ladder.to_string(), call, ladder.sums_in())
    };
    let named = |name: &str| -> Result<Choice> {
        if let Some(rung) = Rung::ALL.iter().find(|rung| rung.name() == name) {
            return Ok(on_ladder(rung)?);
        }
        let checked = match kernel::check(device, name, dtype, problem) {
            // Names of the ladder may be similar.
            Err(Error::UnknownKernel { near, .. }) if near.is_empty() => {
                Ladder::named(name).map(|_| ())
            }
            checked => checked,
        };
        let exists = !matches!(checked, Err(Error::UnknownKernel { .. }));
        if let Some(option) = args.ladder_option().filter(|_| exists) {
            let (typed, ladder) = (&args.kernel, with_options());
            bail!("--kernel {typed} takes no {option}; these kernels of the ladder do: {ladder}");
        }
        checked?;
        let call = call.clone().kernel(name);
        Ok(choice(name.to_owned(), call, Accumulation::default())?)
    };
    let suitable = || kernel::suitable(device, dtype, problem);
    let choices: Vec<_> = match args.kernel.as_str() {
        "auto" => suitable()?
            .into_iter()
            .take(1)
            .map(named)
            .collect::<Result<_>>()?,
        "all" => suitable()?.into_iter().map(named).collect::<Result<_>>()?,
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
pub fn expect_memory(
    args: &Args,
    device: &Device,
    dtype: Dtype,
    problem: &Problem,
    choices: &[Choice],
) -> Result<()> {
    let size = |shape: &[usize], element: usize| {
        shape.iter().fold(element as u64, |bytes, &extent| {
            bytes.saturating_mul(extent as u64)
        })
    };
    let qo = size(&problem.q_shape(), dtype.bytes());
    let kv = size(&problem.kv_shape(), dtype.bytes());
    let lse = size(&problem.lse_shape(), size_of::<f32>());
    let inputs = qo.saturating_add(kv.saturating_mul(2));
    let outputs = qo.saturating_add(lse);

    let workspaces = choices.iter().map(|choice| choice.workspace_bytes);
    let workspace = workspaces.max().unwrap_or(0);
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

#[cfg(test)]
mod tests {
    use super::{Args, choices};
    use attention::emulator::Options;
    use attention::{Device, Dtype, Problem};
    use clap::Parser;
    use ladder::Rung;

    #[test]
    fn the_ladder_is_what_there_is_memory_for() {
        let device = Device::emulator(Options::default()).expect("an emulator");
        let names = |seqlen| {
            let args = Args::parse_from(["attention", "--kernel", "ladder", "--check", "off"]);
            let shape = [1, 1, seqlen, 64];
            let problem = Problem::new(shape, shape, shape, false, None).expect("valid");
            let choices = choices(&args, &device, Dtype::F16, &problem).expect("some");
            choices.into_iter().map(|choice| choice.name)
        };
        let all = || Rung::ALL.iter().map(|rung| rung.name());
        assert!(names(100).eq(all()));
        // The scores would be 4 TB.
        assert!(names(1_000_000).eq(all().filter(|&name| name != "naive")));
    }
}
