//! The command line.

use crate::gemm::GemmArgs;
use attention::ladder::{Ladder, OStore, Rung, Swizzles};
use attention::{Accumulation, Class, Dtype};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::str::FromStr;

/// Computes exact attention, softmax(scale * Q K^T + mask) V, on an NVIDIA GPU or on the CPU, checks
/// the result against a plain f64 implementation, and prints how long it took.
///
/// Exit status: 0 if all checks passed, 1 if a check or the device failed, 2 for bad input.
#[derive(Debug, Parser)]
#[command(name = "attention", version, allow_negative_numbers = true)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    /// What else there is to do.
    #[command(subcommand)]
    pub task: Option<Task>,
    /// Independent sequences
    #[arg(long, value_name = "B", default_value_t = 1, conflicts_with = "input")]
    #[arg(value_parser = number::<usize>(WHOLE))]
    pub batch: usize,
    /// Query heads
    #[arg(long, value_name = "H", default_value_t = 8, conflicts_with = "input")]
    #[arg(value_parser = number::<usize>(WHOLE))]
    pub heads: usize,
    /// Key/value heads, of which heads is a multiple [default: heads]
    #[arg(long, value_name = "H", conflicts_with = "input")]
    #[arg(value_parser = number::<usize>(WHOLE))]
    pub kv_heads: Option<usize>,
    /// Queries per head
    #[arg(
        long,
        value_name = "N",
        default_value_t = 4096,
        conflicts_with = "input"
    )]
    #[arg(value_parser = number::<usize>(WHOLE))]
    pub seqlen: usize,
    /// Keys per head [default: seqlen]
    #[arg(long, value_name = "M", conflicts_with = "input")]
    #[arg(value_parser = number::<usize>(WHOLE))]
    pub seqlen_kv: Option<usize>,
    /// Head dim: a multiple of 8, at most 1024
    #[arg(long, value_name = "D", default_value_t = 64, conflicts_with = "input")]
    #[arg(value_parser = number::<usize>("a multiple of 8 from 8 to 1024"))]
    pub dim: usize,
    /// Element type of q, k, v and o [default: that of the input file, else f16]
    #[arg(long)]
    pub dtype: Option<ElementType>,
    /// Query i sees only keys up to i + seqlen_kv - seqlen
    #[arg(long)]
    pub causal: bool,
    /// Softmax scale [default: 1 / sqrt(dim)]
    #[arg(long, value_name = "S", allow_hyphen_values = true)]
    pub scale: Option<f32>,
    /// auto for the best kernel, all for every one that serves the problem, ladder for every one of the
    /// ladder that does, with the options that are given, or a name from --list-kernels
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub kernel: String,
    /// Of a kernel of the ladder: buffers that tiles pass through, 1, 2 or 3 [default: as many as fit]
    #[arg(long, value_name = "COUNT")]
    #[arg(value_parser = number::<u32>("1, 2 or 3"))]
    pub stages: Option<u32>,
    /// Of a kernel of the ladder: which tiles are swizzled in shared memory [default: qkv]
    #[arg(long, value_parser = one_of(Swizzles::ALL, Swizzles::name))]
    pub swizzle: Option<Swizzles>,
    /// Of a kernel of the ladder: what products are summed in [default: f32]
    #[arg(long, value_parser = one_of(&Accumulation::ALL, Accumulation::name))]
    pub acc: Option<Accumulation>,
    /// Of a kernel of the ladder: how o is stored [default: shared]
    #[arg(long, value_parser = one_of(OStore::ALL, OStore::name))]
    pub o_store: Option<OStore>,
    /// Splits of the keys, for as many blocks of the GPU to work on at once; 0 for as many as fill it.
    /// The CPU does not split, nor do the kernels naive and fa1
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    #[arg(value_parser = number::<u32>("a whole number up to 4294967295"))]
    pub splits: u32,
    /// auto, cuda, cuda:I, cpu, emulator or emulator:CLASS; auto takes the first CUDA device if there
    /// is one that works, else the CPU; the emulator runs the GPU's kernels, checked, and very slowly,
    /// those of the class sm_80 (the default), sm_86, sm_90 or sm_100
    #[arg(long, default_value = "auto")]
    pub device: DeviceName,
    /// Runs before the timed ones [default: 5; on the CPU no new one starts after half a second; on
    /// the emulator none]
    #[arg(long, value_name = "COUNT")]
    #[arg(value_parser = number::<usize>(WHOLE))]
    pub warmup: Option<usize>,
    /// Timed runs, at least 1 [default: 20; on the CPU no new one starts after 1.5 seconds; on the
    /// emulator 1]
    #[arg(long, value_name = "COUNT")]
    #[arg(value_parser = number::<usize>(WHOLE))]
    pub iters: Option<usize>,
    /// Seed of the random q, k and v, and of the rows that are checked
    #[arg(long, default_value_t = 0)]
    #[arg(value_parser = number::<u64>(WHOLE))]
    pub seed: u64,
    /// Rows of the result to compare with the f64 implementation
    #[arg(long, default_value = "sample")]
    pub check: Check,
    /// Read q, k and v from a safetensors file: [batch, heads, seqlen, dim], F16, BF16 or F32
    #[arg(long, value_name = "FILE")]
    pub input: Option<PathBuf>,
    /// Write o and lse to a safetensors file, once the check has passed
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Print one JSON object a kernel instead of a table; a number that is not finite, or was not
    /// checked, is null
    #[arg(long)]
    pub json: bool,
    /// On the emulator, also print what each launch of each kernel did: instructions, bank conflicts,
    /// memory traffic; if the keys are split, that which combines the splits too
    #[arg(long)]
    pub counters: bool,
    /// Print the table of kernels and do nothing else
    #[arg(long, exclusive = true)]
    pub list_kernels: bool,
}

impl Args {
    /// A kernel of the ladder with the options that were given.
    pub fn on_rung(&self, rung: Rung) -> Ladder {
        Ladder {
            rung,
            stages: self.stages,
            swizzles: self.swizzle,
            acc: self.acc,
            o_store: self.o_store,
        }
    }

    /// An option of kernels of the ladder that was given.
    pub fn ladder_option(&self) -> Option<&'static str> {
        let options = [
            ("--stages", self.stages.is_some()),
            ("--swizzle", self.swizzle.is_some()),
            ("--acc", self.acc.is_some()),
            ("--o-store", self.o_store.is_some()),
        ];
        let given = options.into_iter().find(|(_, given)| *given);
        given.map(|(option, _)| option)
    }
}

/// Takes a number; says what is allowed where something else is given.
pub fn number<T: FromStr>(
    allowed: &'static str,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync {
    move |given| given.parse().map_err(|_| format!("it must be {allowed}"))
}

/// What a `usize` or `u64` is allowed to be.
pub const WHOLE: &str = "a whole number up to 18446744073709551615";

/// Takes one of some values, by its name.
pub fn one_of<T: Copy + Send + Sync>(
    all: &'static [T],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    let names = PossibleValuesParser::new(all.iter().map(|&value| name(value)));
    let named = move |given: String| all.iter().find(|&&value| name(value) == given);
    names.map(move |given| *named(given).expect("the parser takes no other name"))
}

/// What there is to do beside attention.
#[derive(Debug, Subcommand)]
pub enum Task {
    /// Multiply matrices, C = A B^T, by the kernels that show how a fast one is made; check the result
    /// and print how long it took
    #[command(allow_negative_numbers = true)]
    Gemm(GemmArgs),
}

/// Which rows are checked.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Check {
    /// Some hundred rows, the first and the last among them
    Sample,
    /// All rows
    Full,
    /// None
    Off,
}

/// A [`Dtype`] on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ElementType {
    /// IEEE binary16
    F16,
    /// bfloat16
    Bf16,
}

impl From<ElementType> for Dtype {
    fn from(element: ElementType) -> Self {
        match element {
            ElementType::F16 => Dtype::F16,
            ElementType::Bf16 => Dtype::Bf16,
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
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "auto" => Ok(DeviceName::Auto),
            "cuda" => Ok(DeviceName::Cuda(0)),
            "cpu" => Ok(DeviceName::Cpu),
            "emulator" => Ok(DeviceName::Emulator(Class::Sm80)),
            _ => with_index(name).or_else(|| with_class(name)).ok_or(
                "allowed are auto, cuda, cuda:I (with I = 0, 1, ...), cpu, emulator, \
                 emulator:sm_80, emulator:sm_86, emulator:sm_90 and emulator:sm_100",
            ),
        }
    }
}

/// `cuda:I`.
fn with_index(name: &str) -> Option<DeviceName> {
    let index = name.strip_prefix("cuda:")?;
    index.parse().ok().map(DeviceName::Cuda)
}

/// `emulator:CLASS`.
fn with_class(name: &str) -> Option<DeviceName> {
    let name = name.strip_prefix("emulator:")?;
    let mut classes = Class::ALL.iter();
    let class = classes.find(|class| class.name() == name)?;
    Some(DeviceName::Emulator(*class))
}

/// Parses the command line, or says in one line what is wrong with it.
pub fn parse() -> Result<Args, String> {
    let args: Args = cli::parse()?;
    let (iters, counters, device) = match &args.task {
        None => (args.iters, args.counters, args.device),
        Some(Task::Gemm(gemm)) => (gemm.iters, gemm.counters, gemm.device),
    };
    if iters == Some(0) {
        return Err("--iters is 0; it must be at least 1".to_owned());
    }
    if counters && !matches!(device, DeviceName::Emulator(_)) {
        return Err("--counters needs --device emulator".to_owned());
    }
    Ok(args)
}
