//! `cargo xtask profile --emulator`: what the kernels do, counted.

use crate::shell;
use anyhow::{Context, Result, ensure};
use comfy_table::{CellAlignment, Table, presets};
use kernels::catalog::class::Class;
use kernels::catalog::{Dtype, Family, Forward, Gemm, KERNELS, Kernel, Kind, MAX_HEAD_DIM};
use ladder::Rung;
use serde_json::Value;

/// Runs kernels on the emulator and prints what it counted: those that `names` lists, or all if it is empty. Fails if `ldmatrix` has a bank conflict, or a copy of a tile touches a sector in part.
pub fn run(seqlen: u32, names: &[&str]) -> Result<()> {
    let mut calls = calls(seqlen);
    calls.retain(|call| names.is_empty() || names.contains(&call.name()));
    let on_ladder = |call: &Call| call.kernel.is_none();
    let host = program(calls.iter().any(on_ladder));
    shell::run(shell::cargo().args(["build"]).args(host))?;
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
    for (label, counters) in count(&calls, host)? {
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
            label.clone(),
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
            breaches.push(format!("{label}: ldmatrix has bank conflicts"));
        }
        if extra("sectors", &tiles) > 0 {
            breaches.push(format!("{label}: sectors of a tensor in part"));
        }
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    println!("{table}");
    println!(
        "batch 1, heads 1, seqlen {seqlen}, whole head dims; m, n and k {seqlen}; {COMBINED} splits to \
         combine"
    );
    ensure!(breaches.is_empty(), "{}", breaches.join("\n"));
    Ok(())
}

/// Arguments of cargo for the program, with or without the kernels of the ladder.
fn program(ladder: bool) -> &'static [&'static str] {
    let arguments = &["--quiet", "--release", "-p", "host", "--features", "ladder"];
    if ladder { arguments } else { &arguments[..4] }
}

/// Head dims that kernels of the ladder, which serve many, are counted at.
const LADDER_DIMS: [u32; 2] = [64, 128];

/// Splits that the combine kernels are counted for, and keys enough for one block in each split.
const COMBINED: u32 = 2;
const COMBINED_KEYS: u32 = 512;

/// A run of the program. It counts the launches of `kernel`, or all launches if there is none.
struct Call {
    label: String,
    kernel: Option<&'static str>,
    arguments: Vec<String>,
}

/// Kernels that are counted: all but the one that copies unaligned inputs, which these calls do not have.
fn kernels() -> impl Iterator<Item = &'static Kernel> {
    KERNELS
        .iter()
        .filter(|kernel| !matches!(kernel.family, Family::Pack(_) | Family::BulkCopy(_)))
}

/// The kernel or rung of the ladder of this name, if it can be counted.
pub fn name(name: &str) -> Result<&'static str, &'static str> {
    let rungs = Rung::ALL.iter().map(|rung| rung.name());
    let mut names = kernels().map(|kernel| kernel.name).chain(rungs);
    let found = names.find(|known| *known == name);
    found.ok_or("no kernel or rung of the ladder that the emulator counts has this name")
}

/// Calls that launch each kernel; rungs of the ladder with the options that suit each.
fn calls(seqlen: u32) -> Vec<Call> {
    let mut calls: Vec<_> = kernels().map(|kernel| of_kernel(kernel, seqlen)).collect();
    for rung in Rung::ALL {
        calls.extend(LADDER_DIMS.map(|dim| {
            let name = rung.name();
            let line = format!(
                "--kernel {name} --dim {dim} --seqlen {seqlen} --device emulator {ONE_HEAD}"
            );
            Call::new(format!("{name}, D = {dim}"), None, &line)
        }));
    }
    calls
}

const ONE_HEAD: &str = "--heads 1 --splits 1";

/// A call that launches a kernel, at its own head dim.
fn of_kernel(kernel: &Kernel, seqlen: u32) -> Call {
    let name = kernel.name;
    let dtype = kernel.dtype().map_or("f16", Dtype::name);
    let line = match kernel.family {
        // An H100 has the shared memory for all of them.
        Family::Gemm(Gemm { accumulation, .. }) => format!(
            "gemm --device emulator:sm_90 --kernel {name} --m {seqlen} --n {seqlen} --k {seqlen} --acc {}",
            accumulation.name()
        ),
        Family::Forward(Forward { kind, dim, .. }) => {
            let causal = kind == Kind::Plain { causal: true };
            let mask = if causal { "--causal" } else { "" };
            let class = Class::ALL.iter().find(|class| kernel.is_for(**class));
            let class = class.expect("of some class").name();
            format!(
                "--kernel {name} --dim {dim} --seqlen {seqlen} {mask} --device emulator:{class} {ONE_HEAD}"
            )
        }
        _ => format!(
            "--device emulator --heads 1 --splits {COMBINED} --seqlen {seqlen} --seqlen-kv {COMBINED_KEYS} --dim {MAX_HEAD_DIM}",
        ),
    };
    Call::new(
        name.to_owned(),
        Some(name),
        &format!("{line} --dtype {dtype}"),
    )
}

impl Call {
    /// The kernel or rung that is counted.
    fn name(&self) -> &str {
        self.label.split(',').next().unwrap_or_default()
    }

    fn new(label: String, kernel: Option<&'static str>, line: &str) -> Self {
        Call {
            label,
            kernel,
            arguments: line.split_whitespace().map(str::to_owned).collect(),
        }
    }

    /// Counters of each launch that is counted, as the program prints them.
    fn count(&self, host: &[&str]) -> Result<Vec<Value>> {
        let mut command = shell::cargo();
        command.args(["run"]).args(host).args(["--"]);
        command.args(&self.arguments);
        command.args(["--counters", "--json", "--check", "off"]);
        let mut line: Value = serde_json::from_str(&shell::output(&mut command)?)?;
        let launches = line["counters"].as_array_mut();
        let mut launches = std::mem::take(launches.context("the command prints counters")?);
        launches.retain(|launch| self.kernel.is_none_or(|name| launch["kernel"] == name));
        ensure!(!launches.is_empty(), "{} was not launched", self.label);
        Ok(launches)
    }
}

/// Label and counters of each launch of some calls.
fn count(calls: &[Call], host: &[&str]) -> Result<Vec<(String, Value)>> {
    let mut counted = Vec::new();
    for call in calls {
        let launches = call.count(host)?;
        let of = launches.len();
        counted.extend(launches.into_iter().enumerate().map(|(i, launch)| {
            let label = match of {
                1 => call.label.clone(),
                _ => format!("{}, launch {} of {of}", call.label, i + 1),
            };
            (label, launch)
        }));
    }
    Ok(counted)
}

#[cfg(test)]
mod tests {
    use super::{COMBINED, COMBINED_KEYS, calls, name};
    use kernels::catalog::KERNELS;
    use ladder::Rung;

    #[test]
    fn every_kernel_is_counted_once() {
        let calls = calls(100);
        let counted = |name: &str| calls.iter().filter(|call| call.label == name).count();
        for kernel in KERNELS
            .iter()
            .filter(|kernel| !["pack", "bulk_copy"].contains(&kernel.name))
        {
            assert_eq!(counted(kernel.name), 1, "{}", kernel.name);
        }
        assert!(calls.iter().all(|call| name(call.name()).is_ok()));
        for rung in Rung::ALL.iter().map(|rung| rung.name()) {
            for dim in [64, 128] {
                assert_eq!(counted(&format!("{rung}, D = {dim}")), 1, "{rung}");
            }
        }
        assert_eq!(calls.len(), KERNELS.len() - 2 + 2 * Rung::ALL.len());
        // Every split has a block of keys, whatever kernel runs first.
        let mut tiles = KERNELS
            .iter()
            .filter_map(|kernel| Some(kernel.forward()?.tile));
        assert!(tiles.all(|tile| COMBINED * tile.keys <= COMBINED_KEYS));
    }
}
