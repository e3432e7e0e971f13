//! `attention gemm`: matrix products, measured and checked.

use crate::args::{Run, one_of, whole};
use crate::device;
use crate::measure;
use crate::memory::{bytes, expect_free, poisoned};
use crate::progress::Progress;
use crate::report::{Call, Checked, Report};
use anyhow::{Result, bail, ensure};
use ferroattn::check::Comparison;
use ferroattn::gemm::MULTISTAGE;
use ferroattn::gemm::check::{Product, check, sample};
use ferroattn::{
    Accumulation, Device, Dtype, Element, Gemm, GemmProblem, RawGemm, Tensor, bf16, f16, random,
};
use kernels::abi::{MAX_DEPTH, MAX_SEQLEN};
use kernels::catalog::KERNELS;
use serde::Serialize;
use std::fmt;
use std::ops::RangeInclusive;

/// The matrices to multiply, and the kernels.
#[derive(Debug, clap::Args)]
pub struct GemmArgs {
    /// Rows of A and C
    #[arg(long, value_name = "M", default_value_t = 2048)]
    #[arg(value_parser = whole(0..=MAX_SEQLEN as usize))]
    m: usize,
    /// Rows of B, columns of C
    #[arg(long, value_name = "N", default_value_t = 2048)]
    #[arg(value_parser = whole(0..=MAX_SEQLEN as usize))]
    n: usize,
    /// Columns of A and B
    #[arg(long, value_name = "K", default_value_t = 2048)]
    #[arg(value_parser = whole(0..=MAX_DEPTH as usize))]
    k: usize,
    /// Element type of A, B and C; f32 on the CPU only
    #[arg(long, default_value = "f16", value_parser = one_of(&Dtype::ALL, Dtype::name))]
    dtype: Dtype,
    /// Type of the accumulators; f16 for f16 elements only, and not on the CPU
    #[arg(long, default_value = "f32", value_parser = one_of(&Accumulation::ALL, Accumulation::name))]
    acc: Accumulation,
    /// auto: gemm-simple, gemm-multistage and, on compute capability 9.0, gemm-hopper, each with its best kernel;
    /// all: every kernel of these that fits the device; one of these names; or the name of a kernel from
    /// --list-kernels
    #[arg(long, value_name = "NAME", default_value = "auto")]
    kernel: String,
    #[arg(long, value_name = "COUNT", value_parser = whole(all_stages()))]
    #[arg(help = format!(
        "Tiles of A and B in shared memory, {} to {} [default: the best number]",
        all_stages().start(),
        all_stages().end()
    ))]
    stages: Option<u32>,
    #[command(flatten)]
    run: Run,
}

/// The numbers of tiles in shared memory that kernels have.
fn all_stages() -> RangeInclusive<u32> {
    let kernels = KERNELS.iter().filter_map(|kernel| kernel.gemm());
    let stages = kernels
        .map(|gemm| gemm.tile.stages)
        .filter(|&stages| stages > 0);
    let least = stages.clone().min().expect("a kernel with stages");
    least..=stages.max().unwrap_or(least)
}

/// A matrix product in the report.
#[derive(Serialize)]
struct GemmCall {
    dtype: &'static str,
    acc: &'static str,
    #[serde(flatten)]
    problem: GemmProblem,
}

impl fmt::Display for GemmCall {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let GemmProblem { m, n, k } = self.problem;
        let (dtype, acc) = (self.dtype, self.acc);
        write!(
            f,
            "C = A B^T, m {m}, n {n}, k {k}, {dtype}, accumulation in {acc}"
        )
    }
}

impl Call for GemmCall {
    fn flops(&self) -> f64 {
        self.problem.flops()
    }
}

/// Whether all checks passed.
pub fn run(args: &GemmArgs) -> Result<bool> {
    let problem = GemmProblem::new([args.m, args.k], [args.n, args.k])?;
    let chosen = device::choose(&args.run)?;
    let device = &chosen.device;
    let right = match args.dtype {
        Dtype::F16 => compute::<f16>(args, device, &problem),
        Dtype::Bf16 => compute::<bf16>(args, device, &problem),
        Dtype::F32 => compute::<f32>(args, device, &problem),
        other => bail!("the command computes no {}", other.name()),
    }?;
    chosen.advise(&args.run);
    Ok(right)
}

/// The calls to make, each with its kernel's name.
fn calls(
    args: &GemmArgs,
    device: &Device,
    dtype: Dtype,
    problem: &GemmProblem,
) -> Result<Vec<(&'static str, Gemm)>> {
    let mut any = Gemm::new().accumulation(args.acc);
    if let Some(stages) = args.stages {
        any = any.stages(stages);
    }
    let names = match args.kernel.as_str() {
        "all" => any.suitable(device.facts(), dtype)?,
        "auto" => any.families(device.facts(), dtype)?,
        name => vec![name],
    };
    let call = |name: &str| {
        let call = any.clone().kernel(name);
        let plan = call.plan(device.facts(), dtype, &RawGemm::row_major(*problem))?;
        Ok((plan.kernel, call))
    };
    let calls = names.into_iter().map(call).collect::<Result<_>>()?;
    if device.is_cpu() {
        let (staged, half) = (args.stages.is_some(), args.acc == Accumulation::Half);
        let instead = "type --device emulator";
        ensure!(!staged, "--stages is for {MULTISTAGE}; {instead}");
        ensure!(!half, "--acc f16 is not for the CPU; {instead}");
    }
    Ok(calls)
}

fn compute<T: Element>(args: &GemmArgs, device: &Device, problem: &GemmProblem) -> Result<bool> {
    let calls = calls(args, device, T::DTYPE, problem)?;
    expect_memory(device, T::DTYPE, problem)?;
    let progress = Progress::start();
    progress.stage("preparing A and B");
    let [a, b] = random::matrices::<T>(problem, args.run.seed);
    let on_device = [
        Tensor::new(device, problem.a_shape(), &a)?,
        Tensor::new(device, problem.b_shape(), &b)?,
    ];
    let mut report = Report::new(&args.run, device, &progress);
    for (name, call) in &calls {
        let mut c = poisoned(device, problem.c_shape(), T::from_f32(f32::NAN))?;
        let times = measure::times(&args.run, device, &progress, name, || {
            call.forward_into(&on_device[0], &on_device[1], &mut c)
        })?;
        let c = c.to_vec()?;

        progress.stage(&format!("checking {name}"));
        let product = Product {
            problem: *problem,
            accumulation: args.acc,
            a: &a,
            b: &b,
            c: &c,
        };
        let count = args.run.check.rows();
        let rows = sample(problem.m, count, args.run.seed);
        let columns = sample(problem.n, count, args.run.seed + 1);
        let worst = (count > 0).then(|| check(&product, &rows, &columns));
        let checked = worst.flatten().map(|worst| Checked {
            rows: rows.len(),
            worst,
            failure: (!worst.passed()).then(|| element(&worst)),
        });
        let call = GemmCall {
            dtype: T::DTYPE.name(),
            acc: args.acc.name(),
            problem: *problem,
        };
        report.add(name, call, &times, checked)?;
    }
    Ok(report.finish()?)
}

fn element(wrong: &Comparison) -> String {
    let [_, _, row, column] = wrong.worst;
    let (found, expected, error) = (wrong.found, wrong.expected, wrong.max_abs_err);
    let tolerance = wrong.tolerance;
    format!(
        "C[{row}, {column}] is {found} for {expected}, error {error:.3e}, tolerance {tolerance:.3e}"
    )
}

/// Compares the memory that the problem needs with what is free, before anything is allocated.
fn expect_memory(device: &Device, dtype: Dtype, problem: &GemmProblem) -> Result<()> {
    let shapes = [problem.a_shape(), problem.b_shape(), problem.c_shape()];
    let [a, b, c] = shapes.map(|shape| bytes(shape, dtype.bytes()));
    // The host keeps the inputs for the check, the poison, and the copy of C.
    expect_free(device, a + b + c, a + b + 2 * c, "m, n and k are")
}
