//! `bench profile`: one call under ncu.

use crate::args::Profile;
use crate::command::output;
use crate::failure::Failure;
use crate::ncu;
use crate::results::slug;
use crate::subject::Subject;
use crate::terminal::print;
use anyhow::{Context, Result};
use ferroattn::Device;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Profiles the call, prints the main figures, and keeps ncu's own report.
pub fn run(args: &Profile) -> Result<(), Failure> {
    let shape = &args.call.shape;
    shape.problem().map_err(anyhow::Error::from)?;
    let choice = args.call.choice();
    shape.check_names(&choice)?;
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

/// Runs the call under ncu without clock control.
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
    ncu.arg(serde_json::to_string(&args.call)?);
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
