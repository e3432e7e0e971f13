//! The command line.

use crate::element_type::ElementType;
use crate::gemm::GemmArgs;
use crate::modifiers::Modifiers;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand, ValueEnum};
use ferroattn::{Accumulation, Attention, Class, Dtype, Problem};
use kernels::abi::MAX_SEQLEN;
use kernels::catalog::MAX_HEAD_DIM;
use ladder::{Ladder, MAX_STAGES, OStore, Rung, Swizzles};
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

/// The error of clap, which takes every word behind an option for a subcommand: one that is no [`Task`] is an unexpected
/// argument.
pub fn named(error: clap::Error) -> clap::Error {
    let command = Args::command();
    let (ErrorKind::ArgumentConflict, Some(ContextValue::String(word))) =
        (error.kind(), error.get(ContextKind::InvalidSubcommand))
    else {
        return error;
    };
    if command.find_subcommand(word).is_some() {
        return error;
    }
    let mut named = clap::Error::new(ErrorKind::UnknownArgument).with_cmd(&command);
    let word = ContextValue::String(word.clone());
    named.insert(ContextKind::InvalidArg, word);
    if let Some(usage) = error.get(ContextKind::Usage) {
        named.insert(ContextKind::Usage, usage.clone());
    }
    named
}

/// Computes exact attention, softmax(scale * Q K^T + mask) V, or its gradients, on an NVIDIA GPU or on the CPU,
/// checks the result against a plain f64 implementation, and prints how long it took.
///
/// Exit status: 0 if all checks passed, 1 if a check or the device failed, 2 for bad input.
#[derive(Debug, Parser)]
#[command(name = "attention", version, allow_negative_numbers = true)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    /// Another task than attention.
    #[command(subcommand)]
    pub task: Option<Task>,
    /// Independent sequences
    #[arg(long, value_name = "B", default_value_t = 1, conflicts_with = "input")]
    #[arg(value_parser = whole(1..=usize::MAX))]
    pub batch: usize,
    /// Query heads
    #[arg(long, value_name = "H", default_value_t = 8, conflicts_with = "input")]
    #[arg(value_parser = whole(1..=usize::MAX))]
    pub heads: usize,
    /// Key/value heads; heads must be a multiple of it [default: heads]
    #[arg(long, value_name = "H", conflicts_with = "input")]
    #[arg(value_parser = whole(1..=usize::MAX))]
    pub kv_heads: Option<usize>,
    /// Queries per head
    #[arg(long, value_name = "N", default_value_t = 4096)]
    #[arg(conflicts_with = "input", value_parser = whole(1..=MAX_SEQLEN as usize))]
    pub seqlen: usize,
    /// Keys per head [default: seqlen]
    #[arg(long, value_name = "M", conflicts_with = "input")]
    #[arg(value_parser = whole(1..=MAX_SEQLEN as usize))]
    pub seqlen_kv: Option<usize>,
    /// Head dim, at most 1024
    #[arg(long, value_name = "D", default_value_t = 64, conflicts_with = "input")]
    #[arg(value_parser = dim)]
    pub dim: usize,
    /// Head dim of v and o [default: dim]
    #[arg(long, value_name = "D", conflicts_with = "input", value_parser = dim)]
    pub dim_v: Option<usize>,
    /// Element type of q, k, v and o, f32 on the CPU only; fp8 is e4m3, with o of --o-dtype [default: the input
    /// file's, or f16 for F32 and random inputs]
    #[arg(long, value_parser = one_of(&ElementType::ALL, ElementType::name))]
    pub dtype: Option<ElementType>,
    /// Element type of o; with --dtype fp8 [default: f16]
    #[arg(long, value_parser = one_of(&Dtype::ALL, Dtype::name))]
    pub o_dtype: Option<Dtype>,
    /// What to compute: o and lse, their gradients dq, dk and dv, or both, with a row of the table each
    #[arg(long, default_value = "forward")]
    pub pass: Pass,
    /// Query i sees only keys up to i + seqlen_kv - seqlen
    #[arg(long)]
    pub causal: bool,
    /// Softmax scale [default: 1 / sqrt(dim)]
    #[arg(long, value_name = "S", allow_hyphen_values = true, value_parser = finite)]
    pub scale: Option<f32>,
    #[command(flatten)]
    pub modifiers: Modifiers,
    /// auto: the best kernel; all: every kernel that serves the problem; ladder: every kernel of the
    /// ladder that serves it with the given options; or a name from --list-kernels
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub kernel: String,
    /// Ladder only: buffers that tiles pass through, 1 to 3 [default: as many as fit]
    #[arg(long, value_name = "COUNT", value_parser = whole(1..=MAX_STAGES))]
    pub stages: Option<u32>,
    /// Ladder only: which tiles are swizzled in shared memory [default: qkv]
    #[arg(long, value_parser = one_of(Swizzles::ALL, Swizzles::name))]
    pub swizzle: Option<Swizzles>,
    /// Ladder only: type of the accumulators [default: f32]
    #[arg(long, value_parser = one_of(&Accumulation::ALL, Accumulation::name))]
    pub acc: Option<Accumulation>,
    /// Ladder only: how o is stored [default: shared]
    #[arg(long, value_parser = one_of(OStore::ALL, OStore::name))]
    pub o_store: Option<OStore>,
    /// Splits of the keys, which more blocks of the GPU share; 0 for as many as fill it. The CPU and the
    /// kernels naive and fa1 do not split
    #[arg(long, value_name = "COUNT", default_value_t = 0, value_parser = whole(0..=u32::MAX))]
    pub splits: u32,
    /// Read q, k and v from a safetensors file, and d_o, the gradient of o, if it is there: [batch, heads, seqlen,
    /// dim], F16, BF16 or F32. It may have the tensors of --alibi, --sinks, --bias and --mask, too
    #[arg(long, value_name = "FILE")]
    pub input: Option<PathBuf>,
    /// Write o and lse, or dq, dk and dv (d_sinks with --sinks, d_bias with --bias), or all, to a safetensors file, once
    /// the check has passed
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Print the table of kernels and do nothing else
    #[arg(long, exclusive = true)]
    pub list_kernels: bool,
    #[command(flatten)]
    pub run: Run,
}

/// Where and how often to run, and what to check and print.
#[derive(Debug, clap::Args)]
pub struct Run {
    /// auto, cuda, cuda:I, cpu, emulator or emulator:CLASS. auto takes the first CUDA device that works,
    /// or else the CPU. The emulator runs the GPU's kernels on the CPU, checked and very slowly; CLASS
    /// is sm_80 (the default), sm_86, sm_90 or sm_100
    #[arg(long, default_value = "auto")]
    pub device: DeviceName,
    /// Runs before the timed ones [default: 5; on the CPU no new one starts after 0.5 seconds; on the
    /// emulator none]
    #[arg(long, value_name = "COUNT", value_parser = whole(0..=usize::MAX))]
    pub warmup: Option<usize>,
    /// Timed runs [default: 20; on the CPU no new one starts after 1.5 seconds; on the emulator 1]
    #[arg(long, value_name = "COUNT", value_parser = whole(1..=usize::MAX))]
    pub iters: Option<usize>,
    /// Seed of the random inputs, and of the choice of rows to check
    #[arg(long, default_value_t = 0, value_parser = whole(0..=u64::MAX))]
    pub seed: u64,
    /// Rows of the result to compare with an f64 implementation. The gradients of sinks and of a bias take all rows:
    /// of a large problem, only full compares them
    #[arg(long, default_value = "sample")]
    pub check: Check,
    /// Print one JSON object per kernel instead of a table; null stands for a number that is not
    /// finite, was not checked, or means nothing on the emulator
    #[arg(long)]
    pub json: bool,
    /// On the emulator, also print what each launch did: instructions, work for each mma, memory
    /// traffic, bank conflicts
    #[arg(long)]
    pub counters: bool,
}

impl Args {
    /// The call, without tensors of options.
    pub fn call(&self) -> Attention<'static> {
        let call = Attention::new().causal(self.causal).fp8(self.rounding());
        let call = self.modifiers.set(call);
        match self.scale {
            Some(scale) => call.scale(scale),
            None => call,
        }
    }

    /// A kernel of the ladder with the given options.
    pub fn on_rung(&self, rung: Rung) -> Ladder {
        Ladder {
            rung,
            stages: self.stages,
            swizzles: self.swizzle,
            acc: self.acc,
            o_store: self.o_store,
        }
    }

    /// The first given option that only kernels of the ladder take.
    pub fn ladder_option(&self) -> Option<&'static str> {
        let given = [
            self.stages.map(|_| "--stages"),
            self.swizzle.map(|_| "--swizzle"),
            self.acc.map(|_| "--acc"),
            self.o_store.map(|_| "--o-store"),
        ];
        given.into_iter().flatten().next()
    }
}

/// Takes a value that is `allowed`, or says what it must be.
pub fn value<T: FromStr>(
    given: &str,
    allowed: impl Fn(&T) -> bool,
    must_be: impl Display,
) -> Result<T, String> {
    let value = given.parse().ok().filter(allowed);
    value.ok_or_else(|| format!("it must be {must_be}"))
}

/// Takes a whole number of a range.
pub fn whole<T>(range: RangeInclusive<T>) -> impl Fn(&str) -> Result<T, String> + Clone
where
    T: FromStr + PartialOrd + Display + Clone,
{
    move |given| {
        let (first, last) = (range.start(), range.end());
        let must_be = format_args!("a whole number from {first} to {last}");
        value(given, |number| range.contains(number), must_be)
    }
}

/// Takes a head dim that some kernel serves.
fn dim(given: &str) -> Result<usize, String> {
    const MAX: usize = MAX_HEAD_DIM as usize;
    let must_be = format_args!("a whole number from 1 to {MAX}");
    value(given, |dim| (1..=MAX).contains(dim), must_be)
}

/// Takes a number that is finite as an `f32`.
fn finite(given: &str) -> Result<f32, String> {
    let must_be = format_args!("a number from {:e} to {:e}", f32::MIN, f32::MAX);
    value(given, |number: &f32| number.is_finite(), must_be)
}

/// Takes one of `all` by its name.
pub fn one_of<T: Copy + Send + Sync>(
    all: &'static [T],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    let names = PossibleValuesParser::new(all.iter().map(|&value| name(value)));
    let named = move |given: String| all.iter().find(|&&value| name(value) == given);
    names.map(move |given| *named(given).expect("the parser takes no other name"))
}

/// Another task than attention.
#[derive(Debug, Subcommand)]
pub enum Task {
    /// Multiply matrices, C = A B^T, with the kernels that show how a fast one is made; check the result
    /// and print how long it took
    #[command(allow_negative_numbers = true)]
    Gemm(GemmArgs),
}

/// Which passes are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Pass {
    /// Attention
    Forward,
    /// Its gradients
    Backward,
    /// Attention, then its gradients
    Both,
}

/// Which rows are checked.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Check {
    /// 256 rows, the first and the last among them
    Sample,
    /// All rows
    Full,
    /// None
    Off,
}

impl Check {
    /// Whether sums over all rows are compared, too.
    pub fn with_sums(self, problem: &Problem) -> bool {
        /// Operations of a forward pass whose rows all take about 20 seconds on two cores.
        const SMALL: f64 = 4e10;
        match self {
            Check::Sample => problem.flops() <= SMALL,
            Check::Full => true,
            Check::Off => false,
        }
    }

    /// Most rows to compare.
    pub fn rows(self) -> usize {
        match self {
            Check::Sample => 256,
            Check::Full => usize::MAX,
            Check::Off => 0,
        }
    }
}

/// A device on the command line.
#[derive(Clone, Copy, Debug)]
pub enum DeviceName {
    /// The first CUDA device, or else the CPU.
    Auto,
    /// The CUDA device of this index.
    Cuda(usize),
    /// The CPU.
    Cpu,
    /// The emulator, as a device of a class.
    Emulator(Class),
}

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let mut parts = name.splitn(2, ':');
        let device = match [parts.next(), parts.next()] {
            [Some("auto"), None] => Some(DeviceName::Auto),
            [Some("cpu"), None] => Some(DeviceName::Cpu),
            [Some("cuda"), None] => Some(DeviceName::Cuda(0)),
            [Some("cuda"), Some(index)] => index.parse().ok().map(DeviceName::Cuda),
            [Some("emulator"), None] => Some(DeviceName::Emulator(Class::Sm80)),
            [Some("emulator"), Some(name)] => {
                let class = Class::ALL.iter().find(|class| class.name() == name);
                class.copied().map(DeviceName::Emulator)
            }
            _ => None,
        };
        device.ok_or_else(|| {
            let classes = Class::ALL.iter().map(|class| class.name());
            let classes = Vec::from_iter(classes).join(", emulator:");
            format!("it must be auto, cuda, cuda:0, cuda:1, ..., cpu, emulator, emulator:{classes}")
        })
    }
}
