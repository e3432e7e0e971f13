//! `bench profile`: what ncu sees of one call.

use crate::args::{Call, Profile};
use crate::ncu;
use crate::results::slug;
use crate::{Failure, print};
use anyhow::{Context, Result, ensure};
use attention::Device;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Profiles the call, prints what matters, and keeps ncu's own report.
pub fn run(args: &Profile) -> Result<(), Failure> {
    let shape = &args.call.shape;
    shape.problem().map_err(anyhow::Error::from)?;
    let choice = args.call.choice();
    choice.check_names(shape)?;
    let device = Device::cuda(0).map_err(anyhow::Error::from)?;
    choice.kernels(&device, shape)?;
    let version = Command::new("ncu").arg("--version").output();
    version.context("ncu, the profiler of NVIDIA's toolkit, is not in the PATH")?;
    report(args).map_err(Failure::Run)
}

fn report(args: &Profile) -> Result<()> {
    let report = record(args)?;
    print(ncu::summary(&read(&report, "raw")?)?);
    print(ncu::shared_memory(&read(&report, "source")?)?);
    print(report.display());
    Ok(())
}

/// Runs the call under ncu, at the clocks as they are.
fn record(args: &Profile) -> Result<PathBuf> {
    std::fs::create_dir_all(&args.reports)?;
    let name = format!("{}-{}", args.call.shape, args.call.kernel);
    let report = args.reports.join(slug(&name)).with_extension("ncu-rep");
    let metrics: Vec<_> = ncu::METRICS.iter().map(|(_, metric)| *metric).collect();
    let mut ncu = Command::new("ncu");
    ncu.args(["--clock-control", "none", "--set", "full", "--metrics"]);
    ncu.arg(metrics.join(",")).arg("--force-overwrite");
    ncu.arg("--export").arg(&report);
    ncu.arg(std::env::current_exe()?).arg("launch");
    ncu.args(arguments(&args.call));
    output(&mut ncu)?;
    Ok(report)
}

/// A page of a report, as CSV.
fn read(report: &Path, page: &str) -> Result<String> {
    let mut ncu = Command::new("ncu");
    ncu.arg("--import").arg(report);
    ncu.args(["--page", page, "--csv"]);
    if page == "source" {
        ncu.args(["--print-source", "sass"]);
    }
    output(&mut ncu)
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.output()?;
    let text = String::from_utf8(output.stdout)?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {text}{said}");
    Ok(text)
}

/// The call as arguments of `bench launch`.
fn arguments(call: &Call) -> Vec<String> {
    let shape = &call.shape;
    let mut arguments = vec![
        format!("--kernel={}", call.kernel),
        format!("--splits={}", call.splits),
    ];
    for (name, size) in [
        ("batch", shape.batch),
        ("heads", shape.heads),
        ("kv-heads", shape.kv_heads()),
        ("seqlen", shape.seqlen),
        ("seqlen-kv", shape.seqlen_kv()),
        ("dim", shape.dim),
    ] {
        arguments.push(format!("--{name}={size}"));
    }
    arguments.push(format!("--dtype={}", shape.dtype));
    if shape.causal {
        arguments.push("--causal".to_owned());
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::arguments;
    use crate::args::{Args, Task};
    use clap::Parser;

    #[test]
    fn the_launch_is_that_of_the_profile() {
        let line = "bench profile --batch 2 --heads 4 --kv-heads 2 --seqlen 16 --seqlen-kv 32 \
                    --dim 128 --dtype bf16 --causal --kernel x --splits 3";
        let args = Args::try_parse_from(line.split_whitespace()).expect("valid");
        let Some(Task::Profile(profile)) = args.task else {
            panic!("a profile");
        };
        let line = ["bench".to_owned(), "launch".to_owned()].into_iter();
        let args = Args::try_parse_from(line.chain(arguments(&profile.call))).expect("valid");
        let Some(Task::Launch(call)) = args.task else {
            panic!("a launch");
        };
        assert_eq!(call.shape, profile.call.shape);
        assert_eq!((call.kernel.as_str(), call.splits), ("x", 3));
    }
}
