//! `attention`: the forward and the backward pass, measured and checked.

use crate::args::{Args, Pass};
use crate::cache::Cache;
use crate::call::{AttentionCall, BACKWARD, FORWARD};
use crate::choice::{Choice, Task};
use crate::device;
use crate::inputs::{Inputs, Source, rows_not_finite};
use crate::measure;
use crate::memory::poisoned;
use crate::operands::Operands;
use crate::output::{Gradients, Output, Results};
use crate::progress::Progress;
use crate::report::{Checked, Report};
use crate::tensors;
use anyhow::{Result, bail};
use ferroattn::backward::{
    self,
    check::{Backward, sample_keys},
};
use ferroattn::check::{Forward, sample_rows};
use ferroattn::{BackwardInputs, Dtype, Element, HostOptions, Problem, Tensor, bf16, f16};

/// Whether all checks passed.
pub fn run(args: &Args) -> Result<bool> {
    args.expect_fp8()?;
    let source = Source::open(args)?;
    let chosen = device::choose(&args.run)?;
    let task = Task {
        args,
        device: &chosen.device,
        dtype: source.dtype,
        problem: source.problem,
        pairs: source.pairs,
    };
    let mut choices = task.choices()?;
    let backward = task.backward()?;
    choices.extend(backward);
    task.expect_memory(&choices)?;
    let backward = choices.pop_if(|_| args.pass != Pass::Forward);
    let right = match task.dtype {
        Dtype::F16 => compute::<f16>(&task, source, &choices, backward),
        Dtype::Bf16 => compute::<bf16>(&task, source, &choices, backward),
        Dtype::F32 => compute::<f32>(&task, source, &choices, backward),
        other => bail!("the command computes no {}", other.name()),
    }?;
    chosen.advise(&args.run);
    Ok(right)
}

/// The tensors of a problem: in host memory, and on the device.
struct Tensors<'a, T: Element> {
    inputs: &'a Inputs<T>,
    /// Tensors of options, on the device.
    options: tensors::Tensors,
    /// Tensors of options, on the CPU.
    host_options: HostOptions<'a>,
    operands: Operands<T>,
}

fn compute<T: Element>(
    task: &Task,
    source: Source,
    choices: &[Choice],
    backward: Option<Choice>,
) -> Result<bool> {
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
    progress.stage("preparing the inputs");
    let inputs: Inputs<T> = source.load()?;
    note_not_finite(&inputs, &problem, &progress);
    let call = inputs.options.given_to(&args.call());
    let prefix = args.modifiers.prefix.unwrap_or(0);
    let mut tensors = Tensors {
        inputs: &inputs,
        options: inputs.options.on(device)?.without_prefix(prefix)?,
        host_options: call.host_options(&problem)?,
        operands: Operands::new(device, args, &problem, &inputs.qkv)?,
    };
    let mut report = Report::new(&args.run, device, &progress);
    let mut results = Results {
        forward: None,
        gradients: None,
    };
    let mut right = true;
    if args.pass != Pass::Backward {
        for choice in choices {
            results.forward = forward(task, choice, &mut tensors, &mut report)?;
            right &= results.forward.is_some();
        }
    }
    if let Some(choice) = backward {
        results.gradients = gradients(task, &choice, &choices[0], &tensors, &mut report)?;
        right &= results.gradients.is_some();
    }
    if let Some(output) = output.filter(|_| right) {
        output.write(&problem, &results)?;
    }
    Ok(report.finish()?)
}

/// Says how many rows hold NaN or infinity, if any do.
fn note_not_finite<T: Element>(inputs: &Inputs<T>, problem: &Problem, progress: &Progress) {
    let Problem { dim, dim_v, .. } = *problem;
    let named = [("q", dim), ("k", dim), ("v", dim_v), ("d_o", dim_v)].into_iter();
    let tensors = named.zip(inputs.qkv.iter().chain(&inputs.d_o));
    let counts = tensors.map(|((name, dim), data)| (name, rows_not_finite(data, dim)));
    let counts: Vec<_> = counts.collect();
    if counts.iter().any(|(_, rows)| *rows > 0) {
        let counts = counts
            .iter()
            .map(|(name, rows)| format!("{rows} of {name}"));
        let counts = Vec::from_iter(counts).join(", ");
        let dtype = T::DTYPE.name();
        progress.bar.suspend(|| {
            eprintln!("note: rows with NaN or infinity, as {dtype}: {counts}");
        });
    }
}

/// A kernel's o and lse, unless they are wrong.
fn forward<T: Element>(
    task: &Task,
    choice: &Choice,
    tensors: &mut Tensors<T>,
    report: &mut Report<AttentionCall>,
) -> Result<Option<(Vec<T>, Vec<f32>)>> {
    let (run, device, problem) = (&task.args.run, task.device, &task.problem);
    let Tensors {
        inputs,
        options,
        host_options,
        operands,
    } = tensors;
    let (name, call) = (&choice.name, options.given_to(&choice.call));
    let mut o = poisoned(device, problem.o_shape(), T::from_f32(f32::NAN))?;
    let mut lse = poisoned(device, problem.lse_shape(), f32::NAN)?;
    let times = measure::times(run, device, report.progress(), name, || {
        operands.forward(&call, &mut o, &mut lse)
    })?;
    let (o, lse) = (o.to_vec()?, lse.to_vec()?);

    report.progress().stage(&format!("checking {name}"));
    let [q, k, v] = &inputs.qkv;
    let forward = Forward {
        problem,
        options: *host_options,
        q,
        k,
        v,
        o: &o,
        lse: &lse,
        acc: choice.acc,
    };
    let count = run.check.rows();
    let checked = (count > 0).then(|| {
        let rows = sample_rows(problem, count, run.seed);
        let found = operands.check(task.args, &forward, &rows);
        Checked {
            rows: found.rows,
            worst: found.o,
            failure: (!found.passed()).then(|| found.to_string()),
        }
    });
    let passed = report.add(name, task.call_of(FORWARD, choice), &times, checked)?;
    Ok(passed.then_some((o, lse)))
}

/// A kernel's dq, dk and dv, unless they are wrong; o and lse come from a kernel of the forward pass.
fn gradients<T: Element>(
    task: &Task,
    choice: &Choice,
    forward: &Choice,
    tensors: &Tensors<T>,
    report: &mut Report<AttentionCall>,
) -> Result<Option<Gradients<T>>> {
    let (run, device, problem) = (&task.args.run, task.device, &task.problem);
    let Tensors {
        inputs,
        options,
        operands,
        ..
    } = tensors;
    let Operands::Alike {
        q,
        cache: Cache { k, v, .. },
    } = operands
    else {
        unreachable!("calls on e4m3 have no gradients");
    };
    let (name, call) = (&choice.name, options.given_to(&choice.call));
    let given = inputs.d_o.as_ref().expect("it is needed");
    let d_o = Tensor::new(device, problem.o_shape(), given)?;
    let (o, lse) = options.given_to(&forward.call).forward(q, k, v)?;
    let poison = T::from_f32(f32::NAN);
    let d_sinks = options.sinks.as_ref();
    let d_sinks = d_sinks.map(|sinks| poisoned(device, sinks.shape(), f32::NAN));
    let d_bias = task.pairs.bias;
    let d_bias = d_bias.map(|(_, shape)| poisoned(device, shape, f32::NAN));
    let dq = poisoned(device, problem.q_shape(), poison)?;
    let dk = poisoned(device, problem.k_shape(), poison)?;
    let dv = poisoned(device, problem.v_shape(), poison)?;
    let mut gradients = ferroattn::Gradients::new(dq, dk, dv);
    gradients.d_sinks = d_sinks.transpose()?;
    gradients.d_bias = d_bias.transpose()?;
    let read = BackwardInputs::new(q, k, v, &o, &lse, &d_o);
    let times = measure::times(run, device, report.progress(), name, || {
        call.backward_into(&read, gradients.view_mut())
    })?;
    let ferroattn::Gradients { dq, dk, dv, .. } = &gradients;
    let d_sinks = gradients.d_sinks.as_ref().map(Tensor::to_vec);
    let d_bias = match &gradients.d_bias {
        Some(d_bias) => Some((d_bias.shape(), d_bias.to_vec()?)),
        None => None,
    };
    let gradients = Gradients {
        inputs: [dq.to_vec()?, dk.to_vec()?, dv.to_vec()?],
        d_sinks: d_sinks.transpose()?,
        d_bias,
    };

    report.progress().stage(&format!("checking {name}"));
    let checked = check_gradients(task, tensors, &gradients, report.progress());
    let passed = report.add(name, task.call_of(BACKWARD, choice), &times, checked)?;
    Ok(passed.then_some(gradients))
}

/// Compares gradients with the reference, as far as `--check` says.
fn check_gradients<T: Element>(
    task: &Task,
    tensors: &Tensors<T>,
    gradients: &Gradients<T>,
    progress: &Progress,
) -> Option<Checked> {
    let (run, problem, inputs) = (&task.args.run, &task.problem, tensors.inputs);
    let count = run.check.rows();
    if count == 0 {
        return None;
    }
    let with_sums = run.check.with_sums(problem);
    let sums = [
        gradients.d_sinks.is_some().then_some("d_sinks"),
        gradients.d_bias.is_some().then_some("d_bias"),
    ];
    for name in sums.into_iter().flatten().filter(|_| !with_sums) {
        let note = || eprintln!("note: {name} is not checked; --check full does, slowly");
        progress.bar.suspend(note);
    }
    let d_bias = gradients.d_bias.as_ref();
    let d_bias = d_bias.map(|(shape, d_bias)| (*shape, &d_bias[..]));
    let ([q, k, v], [dq, dk, dv]) = (&inputs.qkv, &gradients.inputs);
    let backward = Backward {
        problem,
        options: tensors.host_options,
        q,
        k,
        v,
        d_o: inputs.d_o.as_ref().expect("it is needed"),
        d_lse: None,
        dq,
        dk,
        dv,
        d_sinks: gradients.d_sinks.as_deref().filter(|_| with_sums),
        d_bias: d_bias.filter(|_| with_sums),
    };
    let rows = sample_rows(problem, count, run.seed);
    let keys = sample_keys(problem, count, run.seed);
    let found = backward::check::check(&backward, &rows, &keys);
    Some(Checked {
        rows: found.rows + found.keys,
        worst: found.worst(),
        failure: (!found.passed()).then(|| found.to_string()),
    })
}
