//! `--grid first-use`: how long the first call with a kernel takes, while the driver compiles it.

use crate::bench::Bench;
use crate::failure::Failure;
use crate::shape::{Dtype, Pass, Shape};
use crate::terminal::print;
use crate::{grid, table};
use anyhow::{Context, Result};
use ferroattn::{Attention, Device, Facts, f16};
use std::num::NonZeroUsize;
use std::process::Command;
use std::time::Instant;

/// The variable that turns off the driver's cache of compiled kernels, on disk. It must be set before the driver starts.
const NO_CACHE: &str = "CUDA_CACHE_DISABLE";

/// A call, and the kernel that it takes in place of the best one.
type Case = (Shape, Option<&'static str>);

/// Forward and backward passes: plain, with one option, with a bias, a mask and a softcap.
fn cases() -> Vec<Case> {
    let plain = |dim, pass| Shape {
        pass,
        ..grid::shape((1, 2, 1024), dim, Dtype::F16, false)
    };
    let softcap = |shape| Shape {
        softcap: Some(30.0),
        ..shape
    };
    let bias = |shape| Shape {
        bias: true,
        ..shape
    };
    let all = |shape| Shape {
        block_mask: NonZeroUsize::new(2),
        ..bias(softcap(shape))
    };
    let [small, large] = [64, 128].map(|dim| plain(dim, Pass::Forward));
    let gradients = plain(128, Pass::Backward);
    let causal = Shape {
        causal: true,
        ..large
    };
    let best = [large, causal, softcap(large), bias(large), all(large)];
    let best = best.into_iter().chain([small, all(small)]);
    let best = best.chain([gradients, all(gradients)]);
    let sm80 = [
        (large, "forward_f16_d128"),
        (all(large), "optional_f16_d128"),
        (gradients, "backward_f16_d128"),
        (all(gradients), "backward_optional_f16_d128"),
    ];
    let sm80 = sm80.map(|(shape, kernel)| (shape, Some(kernel)));
    best.map(|shape| (shape, None)).chain(sm80).collect()
}

/// Times all cases, in a process of its own if the driver would use its cache in this one.
///
/// # Errors
/// If there is no GPU, or a call fails.
pub fn run() -> Result<(), Failure> {
    if std::env::var_os(NO_CACHE).is_some() {
        Device::cuda(0).map_err(anyhow::Error::from)?;
        return calls().and_then(|()| warm_ups()).map_err(Failure::Run);
    }
    let program = std::env::current_exe().map_err(anyhow::Error::from)?;
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1)).env(NO_CACHE, "1");
    let status = command.status().map_err(anyhow::Error::from)?;
    std::process::exit(status.code().unwrap_or(1));
}

/// Times each call on a device that has compiled nothing for it, and prints the times.
fn calls() -> Result<()> {
    let mut rows = table::empty(&["call", "kernel", "first s", "second ms"], [2, 3]);
    for (shape, kernel) in cases() {
        let device = Device::cuda(0)?;
        let name = plan(device.facts(), &shape, kernel)?.kernel;
        let [first, second] = two_calls(&device, &shape, kernel).context(name)?;
        rows.add_row([
            shape.to_string(),
            name.to_owned(),
            format!("{first:.3}"),
            format!("{:.3}", 1e3 * second),
        ]);
    }
    print(rows);
    Ok(())
}

/// The call of a case, without tensors of options.
fn attention(shape: &Shape, kernel: Option<&str>) -> Attention<'static> {
    let attention = shape.attention();
    match kernel {
        Some(kernel) => attention.kernel(kernel),
        None => attention,
    }
}

fn plan(facts: Option<&Facts>, shape: &Shape, kernel: Option<&str>) -> Result<ferroattn::Plan> {
    let (attention, problem) = (attention(shape, kernel), shape.problem()?);
    let dtype = shape.dtype.into();
    let plan = match shape.pass {
        Pass::Forward => attention.plan(facts, dtype, &shape.planned(&problem)),
        Pass::Backward => attention.backward_plan(facts, dtype, &shape.planned_backward(&problem)),
    };
    Ok(plan?)
}

/// Seconds of the first call, and of the same call again.
fn two_calls(device: &Device, shape: &Shape, kernel: Option<&str>) -> Result<[f64; 2]> {
    let mut bench = match shape.pass {
        Pass::Forward => Bench::<f16>::new(device, shape, 0)?,
        Pass::Backward => Bench::backward(device, shape, 0)?,
    };
    device.synchronize()?;
    let mut seconds = [0.0; 2];
    for seconds in &mut seconds {
        let start = Instant::now();
        bench.launch(&attention(shape, kernel))?;
        device.synchronize()?;
        *seconds = start.elapsed().as_secs_f64();
    }
    Ok(seconds)
}

/// Compiles all kernels of the cases one after another, then again several at once, and prints both times.
fn warm_ups() -> Result<()> {
    let facts = *Device::cuda(0)?.facts().context("a GPU")?;
    let plans = cases().into_iter();
    let plans = plans.map(|(shape, kernel)| plan(Some(&facts), &shape, kernel));
    let plans: Vec<_> = plans.collect::<Result<_>>()?;
    for (how, size) in [("one call after another", 1), ("at once", plans.len())] {
        let device = Device::cuda(0)?;
        let start = Instant::now();
        for plans in plans.chunks(size) {
            device.warm_up(plans)?;
        }
        let seconds = start.elapsed().as_secs_f64();
        print(format_args!("warm-up, {how}: {seconds:.3} s"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{cases, plan, two_calls};
    use ferroattn::{Class, Device, Facts};
    use std::collections::HashSet;

    /// Each on an H100.
    #[test]
    fn each_case_has_a_kernel() {
        let facts = Facts::emulated(Class::Sm90);
        let kernels = cases().into_iter().map(|(shape, kernel)| {
            let found = plan(Some(&facts), &shape, kernel).expect("served").kernel;
            assert!(kernel.is_none_or(|kernel| kernel == found), "{found}");
            assert!(kernel.is_some() || found.contains("hopper"), "{found}");
            found
        });
        let kernels: HashSet<_> = kernels.collect();
        assert_eq!(kernels.len(), 11, "{kernels:?}");
    }

    #[test]
    fn calls_are_timed() {
        let (mut shape, _) = cases()[4];
        (shape.seqlen, shape.heads) = (40, 1);
        let seconds = two_calls(&Device::cpu(), &shape, None).expect("served");
        assert!(seconds.iter().all(|&seconds| seconds > 0.0));
    }
}
