//! The command line.

use crate::choice::Choice;
use crate::grid::Grid;
use crate::peers::PeerName;
use crate::shape::Shape;
use clap::builder::PossibleValuesParser;
use clap::{Parser, Subcommand};
use ferroattn::Class;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Times the project's attention kernels on the first CUDA device, beside other implementations with --peers.
/// Keeps the results in a file and prints them as a table.
///
/// Exit status: 0 on success, 1 if a kernel or a device failed, 2 for bad input or no GPU.
#[derive(Parser)]
#[command(name = "bench", version, args_override_self = true)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    pub task: Option<Task>,
    #[command(flatten)]
    pub run: Run,
}

/// Other tasks than timing.
#[derive(Subcommand)]
pub enum Task {
    /// Draw charts of results
    Plot(Plot),
    /// Run one call under ncu, NVIDIA's profiler, and print the main figures of its report
    Profile(Profile),
    /// Launch one call and nothing else, for a profiler to watch
    #[command(hide = true)]
    Launch {
        /// The call as JSON
        #[arg(value_parser = |text: &str| serde_json::from_str::<Call>(text))]
        call: Call,
    },
}

/// The kernels and shapes to time.
#[derive(clap::Args)]
pub struct Run {
    /// quick, full, backward, decode, serving, options, ladder, gemm (matrix products), first-use (how long the driver compiles
    /// kernels), host (what calls take on the host), or a JSON file with a list of shapes [default: quick, if no shape is given]
    #[arg(long, conflicts_with = "Shape")]
    pub grid: Option<Grid>,
    #[command(flatten)]
    pub shape: Option<Shape>,
    /// auto: the best kernel (of matrix products the best of each kind); all: every kernel that serves the
    /// shape; ladder: the ladder's kernels, with each option in turn; or names with commas between them.
    /// Kernels of the ladder take options: shared-kv:stages=2:swizzle=pad:acc=f16:o-store=direct
    #[arg(long, value_name = "NAMES", default_value = "auto")]
    pub kernel: String,
    /// Splits of the keys; 0 for as many as fill the GPU
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub splits: u32,
    /// Batch invariant calls, too, in turns with the others; their names end in :batch-invariant
    #[arg(long)]
    pub batch_invariant: bool,
    /// Keys of a split of batch invariant calls, but those of packed sequences; 0 for no splits
    #[arg(
        long,
        value_name = "KEYS",
        default_value_t = 0,
        requires = "batch_invariant"
    )]
    pub split_keys: u32,
    /// Other implementations to time, in turns with the kernels; names with commas between them
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub peers: Vec<PeerName>,
    /// Timed launches of each contender and shape
    #[arg(long, value_name = "COUNT", default_value_t = 20, value_parser = positive)]
    pub iters: usize,
    /// Untimed launches of each contender, before the timed ones
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    pub warmup: usize,
    /// Seed of the inputs
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// File of the results [default: DEVICE-DATE.json in the folder of results]
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Folder of results
    #[arg(long, value_name = "FOLDER", default_value = "RESULTS")]
    pub results: PathBuf,
}

/// The results to draw.
#[derive(clap::Args)]
pub struct Plot {
    /// One file of results [default: the newest full grid and ladder in the folder of results]
    pub file: Option<PathBuf>,
    /// Folder of results
    #[arg(long, value_name = "FOLDER", default_value = "RESULTS")]
    pub results: PathBuf,
    /// Folder for the charts
    #[arg(long, value_name = "FOLDER", default_value = "charts")]
    pub charts: PathBuf,
    /// Markdown file whose tables of rates to write anew; may be repeated
    #[arg(long, value_name = "FILE")]
    pub tables: Vec<PathBuf>,
}

/// The call to profile.
#[derive(clap::Args)]
pub struct Profile {
    #[command(flatten)]
    pub call: Call,
    /// Assemble the kernel with ptxas and count its instructions instead; needs no GPU. Takes the names of all
    /// kernels, of matrix products too
    #[arg(long)]
    pub sass: bool,
    /// Record what the roles of a block of a kernel for Hopper do over time instead; needs the feature `ladder`. plot
    /// draws it
    #[arg(long, conflicts_with_all = ["sass", "kernel", "splits"])]
    pub timeline: bool,
    /// The architecture that --sass assembles for
    #[arg(long, value_name = "SM", default_value = "sm_90", requires = "sass", value_parser = targets())]
    pub target: String,
    /// Folder of ncu's reports
    #[arg(long, value_name = "FOLDER", default_value = "profiles")]
    pub reports: PathBuf,
    /// Folder of results, for --timeline
    #[arg(long, value_name = "FOLDER", default_value = "RESULTS")]
    pub results: PathBuf,
}

/// One call of one kernel.
#[derive(Clone, Debug, PartialEq, clap::Args, Serialize, Deserialize)]
pub struct Call {
    #[command(flatten)]
    pub shape: Shape,
    /// auto for the best kernel, or a kernel's name; kernels of the ladder take options
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub kernel: String,
    /// Splits of the keys; 0 for as many as fill the GPU
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub splits: u32,
}

impl Call {
    /// The one kernel to run.
    pub fn choice(&self) -> Choice {
        match self.kernel.as_str() {
            "auto" => Choice::Auto,
            name => Choice::Named(vec![name.to_owned()]),
        }
    }
}

/// Every target that kernels have tiles for, the oldest first.
fn targets() -> PossibleValuesParser {
    let mut targets: Vec<_> = Class::ALL
        .iter()
        .flat_map(|class| kernels::catalog::class::Class::from(*class).targets())
        .collect();
    targets.sort_unstable_by_key(|target| (target.len(), **target));
    PossibleValuesParser::new(targets)
}

fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("it must be at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(error) => Err(format!("{error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::{Args, Task};
    use crate::grid::Grid;
    use crate::peers::PeerName;
    use clap::{CommandFactory, Parser};

    fn parse(line: &str) -> Result<Args, clap::Error> {
        Args::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn the_command_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn a_shape_or_a_grid() {
        let run = |line| parse(line).expect("valid").run;
        assert!(run("bench --iters 7").shape.is_none());
        let shape = run("bench --causal").shape.expect("one shape");
        assert_eq!(shape.to_string(), "B 1 H 8 N 4096 D 64 f16 causal");
        let shape = run("bench --dtype bf16 --kv-heads 2").shape.expect("one");
        assert_eq!(shape.to_string(), "B 1 H 8/2 N 4096 D 64 bf16 full");
        assert_eq!(run("bench --grid full").grid, Some(Grid::Full));
        assert!(parse("bench --grid full --dim 64").is_err());
        assert!(parse("bench --iters 0").is_err());
    }

    #[test]
    fn splits_of_so_many_keys_are_of_batch_invariant_calls() {
        let run = |line| parse(line).map(|args| args.run.split_keys).ok();
        let line = "bench --grid serving --batch-invariant --split-keys 2048";
        assert_eq!(run(line), Some(2048));
        assert_eq!(run("bench --grid serving --batch-invariant"), Some(0));
        assert_eq!(run("bench --grid serving --split-keys 2048"), None);
    }

    #[test]
    fn peers_are_names_with_commas() {
        let run = |line| parse(line).map(|args| args.run.peers).ok();
        let both = [PeerName::Torch, PeerName::Flashinfer];
        assert_eq!(run("bench --peers torch,flashinfer"), Some(both.into()));
        assert_eq!(run("bench"), Some(Vec::new()));
        assert_eq!(run("bench --peers torch,no"), None);
    }

    #[test]
    fn later_arguments_win() {
        let run = parse("bench --results a --results b").expect("valid").run;
        assert_eq!(run.results.to_str(), Some("b"));
    }

    #[test]
    fn the_call_of_a_profile_is_launched() {
        let line = "bench profile --batch 2 --heads 4 --kv-heads 2 --seqlen 16 --seqlen-kv 32 \
                    --dim 128 --dtype bf16 --causal --kernel x --splits 3";
        let Some(Task::Profile(profile)) = parse(line).expect("valid").task else {
            panic!("a profile");
        };
        let json = serde_json::to_string(&profile.call).expect("plain data");
        let args = Args::try_parse_from(["bench", "launch", &json]).expect("valid");
        let Some(Task::Launch { call }) = args.task else {
            panic!("a launch");
        };
        assert_eq!(call, profile.call);
        assert_eq!((call.kernel.as_str(), call.splits), ("x", 3));
    }

    #[test]
    fn a_profile_is_of_one_call() {
        let args = parse("bench profile --dim 128 --sass --target sm_80").expect("valid");
        let Some(Task::Profile(profile)) = args.task else {
            panic!("a profile");
        };
        assert!(profile.sass && profile.call.shape.dim == 128);
        assert!(parse("bench profile --grid full").is_err());
        let error = parse("bench profile --sass --target sm_75")
            .err()
            .expect("too old");
        let targets = "sm_80, sm_86, sm_89, sm_90, sm_100, sm_120";
        assert!(error.to_string().contains(targets), "{error}");
    }
}
