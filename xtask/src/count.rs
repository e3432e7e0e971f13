//! `cargo xtask profile --emulator`: what the kernels do, counted.

use crate::shell;
use anyhow::{Context, Result, ensure};
use comfy_table::{CellAlignment, Table, presets};
use kernels::table::{Family, KERNELS, Kernel};
use serde_json::Value;
use std::process::Command;

/// Runs every kernel on the emulator, but for those that copy the inputs of others, and prints what
/// it counted. Fails if `ldmatrix` has a bank conflict, or a copy of a tile touches a sector in part.
pub fn run(seqlen: usize) -> Result<()> {
    let host = ["build", "--quiet", "--release", "-p", "host"];
    shell::run(shell::cargo().args(host))?;
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header([
        "entry",
        "warp-instr.",
        "mma",
        "mma MFLOP",
        "barriers",
        "ldmatrix wavefronts",
        "extra",
        "other shared",
        "extra",
        "sectors",
        "extra",
        "KB read",
        "KB written",
    ]);
    let mut breaches = Vec::new();
    // All inputs are aligned: none is copied.
    let counted = KERNELS
        .iter()
        .filter(|kernel| kernel.family != Family::Pack);
    for kernel in counted {
        let counters = count(kernel, seqlen)?;
        let sum = |of: &str, prefixes: &[&str]| -> u64 {
            let accesses = counters["accesses"].as_array().into_iter().flatten();
            accesses
                .filter(|access| {
                    let instruction = access["instruction"].as_str().unwrap_or_default();
                    prefixes
                        .iter()
                        .any(|prefix| instruction.starts_with(prefix))
                })
                .map(|access| access[of].as_u64().unwrap_or_default())
                .sum()
        };
        let extra = |what: &str, prefixes: &[&str]| {
            sum(what, prefixes) - sum(&format!("ideal_{what}"), prefixes)
        };
        let number = |name: &str| counters[name].as_u64().unwrap_or_default();
        let (matrices, others) = (["ldmatrix"], ["ld.shared", "st.shared", "cp.async"]);
        let (all, tiles) = ([""], ["cp.async", "ld.global.v4", "st.global.v4"]);
        let instructions = counters["instructions"].as_object().into_iter().flatten();
        let instructions: u64 = instructions.filter_map(|(_, count)| count.as_u64()).sum();
        table.add_row([
            kernel.name.to_string(),
            instructions.to_string(),
            number("mma").to_string(),
            (number("mma_flops") / 1_000_000).to_string(),
            number("barriers").to_string(),
            sum("wavefronts", &matrices).to_string(),
            extra("wavefronts", &matrices).to_string(),
            sum("wavefronts", &others).to_string(),
            extra("wavefronts", &others).to_string(),
            sum("sectors", &all).to_string(),
            extra("sectors", &all).to_string(),
            (sum("bytes_read", &all) / 1024).to_string(),
            (sum("bytes_written", &all) / 1024).to_string(),
        ]);
        if extra("wavefronts", &matrices) > 0 {
            breaches.push(format!("{}: ldmatrix has bank conflicts", kernel.name));
        }
        if extra("sectors", &tiles) > 0 {
            breaches.push(format!("{}: sectors of a tensor in part", kernel.name));
        }
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    println!("{table}");
    println!("batch 1, heads 1, seqlen {seqlen}, whole head dims; m, n and k {seqlen}");
    ensure!(breaches.is_empty(), "{}", breaches.join("\n"));
    Ok(())
}

/// What the command counts for a kernel at its own head dim.
fn count(kernel: &Kernel, seqlen: usize) -> Result<Value> {
    let mut command = shell::cargo();
    command.args(["run", "--quiet", "--release", "-p", "host", "--"]);
    let length = seqlen.to_string();
    match kernel.family {
        Family::Gemm { accumulation, .. } => {
            // An H100 has the shared memory for all of them.
            command.args([
                "gemm",
                "--device",
                "emulator:sm_90",
                "--kernel",
                kernel.name,
            ]);
            command.args(["--m", &length, "--n", &length, "--k", &length]);
            command.args(["--acc", accumulation.name()]);
        }
        _ => attention(&mut command, kernel, &length),
    }
    command.args(["--counters", "--json", "--check", "off"]);
    command.args(["--dtype", kernel.dtype.name()]);
    let mut line: Value = serde_json::from_str(&shell::output(&mut command)?)?;
    let launches = line["counters"].as_array_mut();
    let mut launches = launches.context("the command prints counters")?.iter_mut();
    let counted = launches.find(|launch| launch["kernel"] == kernel.name);
    Ok(counted.context("the kernel ran")?.take())
}

/// The options of a kernel of attention.
fn attention(command: &mut Command, kernel: &Kernel, seqlen: &str) {
    command.args(["--device", "emulator", "--heads", "1", "--seqlen", seqlen]);
    command.args(["--dim", &kernel.head_dim.to_string()]);
    match kernel.family {
        Family::Combine => command.args(["--splits", "2"]),
        _ => command.args(["--splits", "1", "--kernel", kernel.name]),
    };
    if kernel.family == (Family::Forward { causal: true }) {
        command.arg("--causal");
    }
}
