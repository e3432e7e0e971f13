//! Times the kernels beside their peers, draws the results, and profiles a kernel.

mod args;
mod bench;
mod choice;
mod command;
mod contender;
mod copy;
mod e4m3;
mod failure;
mod first_use;
mod gemm;
mod gradients;
mod grid;
mod host_time;
mod keys;
mod launch;
mod names;
mod ncu;
mod options;
mod peer;
mod peers;
mod plan;
mod plot;
mod profile;
mod results;
mod roofline;
mod rounded;
mod run;
mod sass;
mod shape;
mod stats;
mod subject;
mod table;
mod terminal;
mod timeline;

use anyhow::{Context, Result};
use args::{Args, Task};
use choice::Choice;
use clap::Parser;
use command::driver_version;
use failure::Failure;
use ferroattn::Device;
use grid::Grid;
use peers::Peers;
use plan::Plan;
use results::Results;
use shape::Shape;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::SystemTime;
use subject::Subject;
use terminal::print;

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Run(error)) => fail(&error, 1),
        Err(Failure::Input(error)) => fail(&error, 2),
    }
}

fn run(args: &Args) -> Result<(), Failure> {
    match &args.task {
        None if args.run.grid == Some(Grid::Gemm) => {
            bench(&args.run, || Ok((gemm::shapes(), Grid::Gemm.suffix())))
        }
        None if args.run.grid == Some(Grid::FirstUse) => first_use::run(),
        None if args.run.grid == Some(Grid::Host) => host_time::run(),
        None => bench(&args.run, || shapes(&args.run)),
        Some(Task::Plot(plot)) => plot::run(plot).map_err(Failure::Input),
        Some(Task::Profile(profile)) if profile.sass => sass::run(profile).map_err(Failure::Input),
        Some(Task::Profile(profile)) if profile.timeline => timeline::run(profile),
        Some(Task::Profile(profile)) => profile::run(profile),
        Some(Task::Launch { call }) => launch::run(call).map_err(Failure::Run),
    }
}

fn fail(error: &anyhow::Error, status: u8) -> ExitCode {
    eprintln!("error: {error:#}");
    ExitCode::from(status)
}

/// Measures shapes. `shapes` also gives the end of the name of the file of results.
fn bench<S: Subject>(
    args: &args::Run,
    shapes: impl FnOnce() -> Result<(Vec<S>, Option<String>)>,
) -> Result<(), Failure> {
    let plan = Plan {
        kernel: Choice::from(args.kernel.as_str()),
        splits: args.splits,
        invariant: args.batch_invariant.then_some(args.split_keys),
        iters: args.iters,
        warmup: args.warmup,
        seed: args.seed,
    };
    let (mut shapes, suffix) = shapes()?;
    shapes[0].check_names(&plan.kernel)?;
    let device = Device::cuda(0).map_err(anyhow::Error::from)?;
    retain_served(&mut shapes, &device, &plan.kernel)?;
    let mut peers = match &*args.peers {
        [] => Peers::default(),
        names => Peers::start(names, S::peers(&shapes))?,
    };
    let results = Results {
        device: device.name().to_owned(),
        date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        driver: driver_version(),
        versions: versions(&peers),
        copy_gbs: Some(copy::bandwidth(&device).map_err(Failure::Run)?),
        seed: plan.seed,
        iters: plan.iters,
        warmup: plan.warmup,
        measurements: Vec::new(),
    };
    let file = args.results.join(results.file_name(suffix.as_deref()));
    let file = args.output.clone().unwrap_or(file);
    // Saved after each shape, so that an interrupted run keeps its results.
    let progress = |results: &Results<S>| {
        if let Some(last) = results.measurements.last() {
            let done = results.measurements.len();
            eprintln!("{done}/{}: {}", shapes.len(), last.shape);
        }
        results.save(&file)
    };
    let results = run::run(&device, &mut peers, &shapes, &plan, results, progress);
    let results = results.map_err(Failure::Run)?;
    print(format_args!(
        "{}\n{}",
        table::render(&results),
        file.display()
    ));
    Ok(())
}

/// The shapes of attention to measure, and the end of the name of their file.
fn shapes(args: &args::Run) -> Result<(Vec<Shape>, Option<String>)> {
    match (&args.shape, &args.grid) {
        (Some(shape), _) => {
            shape.problem()?;
            Ok((vec![*shape], Some("shape".to_owned())))
        }
        (None, grid) => {
            let grid = grid.as_ref().unwrap_or(&Grid::Quick);
            Ok((grid.shapes()?, grid.suffix()))
        }
    }
}

/// Drops the shapes that no chosen kernel serves.
fn retain_served<S: Subject>(shapes: &mut Vec<S>, device: &Device, kernel: &Choice) -> Result<()> {
    let first = shapes[0];
    shapes.retain(|shape| shape.kernels(kernel, device).is_ok());
    if shapes.is_empty() {
        first
            .kernels(kernel, device)
            .context("no shape is served")?;
    }
    Ok(())
}

fn versions(peers: &Peers) -> BTreeMap<String, String> {
    let mut versions = peers.versions();
    versions.insert("ferroattn".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
    versions
}

#[cfg(test)]
mod tests {
    use super::{Args, Failure, run};
    use clap::Parser;

    #[test]
    fn bad_input_needs_no_gpu() {
        for (line, said) in [
            ("--foo", "'--foo'"),
            (
                "--grid full --dim 64",
                "'--grid <GRID>' cannot be used with",
            ),
            ("--iters 0", "at least 1"),
            ("--grid nope", "cannot read nope"),
            ("--dim 0", "it must be from 1 to 1024"),
            ("--window 5", "it must be LEFT,RIGHT"),
            ("--softcap 0", "softcap is 0; it must be finite"),
            ("--pass sideways", "[possible values: forward, backward]"),
            ("--pass backward --kernel zzz", "no kernel \"zzz\""),
            ("--kernel zzz", "no kernel \"zzz\""),
            ("--kernel split-q:swizzle=foo", "swizzle=foo"),
            ("--grid gemm --kernel gemm-simpel", "gemm-simple"),
            ("plto", "a similar subcommand exists: 'plot'"),
            ("plot --foo", "'--foo'"),
            ("profile --kernel zzz", "no kernel \"zzz\""),
            ("profile --heads 0", "heads is 0"),
            ("profile --sass --heads 8 --kv-heads 0", "kv_heads is 0"),
            ("profile --sass --target sm_75", "sm_80, sm_86"),
        ] {
            let words = std::iter::once("bench").chain(line.split_whitespace());
            let message = match Args::try_parse_from(words) {
                Err(error) => {
                    assert_eq!(error.exit_code(), 2, "{line}");
                    error.to_string()
                }
                Ok(args) => match run(&args) {
                    Err(Failure::Input(error)) => format!("{error:#}"),
                    _ => panic!("{line}: no bad input"),
                },
            };
            assert!(message.contains(said), "{message}");
        }
    }
}
