//! `cargo xtask profile --emulator`: what the kernels do, counted.

use crate::{shell, table};
use anyhow::{Context, Result, ensure};
use kernels::catalog::class::Class;
use kernels::catalog::{
    Auxiliary, Backward, Dtype, Family, Forward, Gemm, HopperBackward, KERNELS, Kernel,
    MAX_HEAD_DIM, MaskKind,
};
use ladder::Rung;
use serde_json::Value;

/// Instructions that read operands; that access shared memory otherwise; that move tiles from and to tensors.
const MATRICES: &[&str] = &["ldmatrix"];
const OTHERS: &[&str] = &["ld.shared", "st.shared", "cp.async"];
const TILES: &[&str] = &["cp.async", "ld.global.v4", "st.global.v4"];

/// Runs kernels on the emulator and prints what it counted: kernels that `names` lists, or all if it is empty. Fails if
/// `ldmatrix` has a bank conflict, or a copy of a tile touches a sector in part.
pub fn run(seqlen: u32, names: &[&str]) -> Result<()> {
    let mut calls = calls(seqlen);
    calls.retain(|call| names.is_empty() || names.contains(&call.name));
    let on_ladder = calls.iter().any(|call| call.is_rung);
    let features = if on_ladder { "--features ladder" } else { "" };
    let host = format!("--quiet --release -p host {features}");
    shell::run(&mut shell::cargo(&format!("build {host}")))?;
    let (mut rows, mut breaches) = (Vec::new(), Vec::new());
    for call in &calls {
        for (label, launch) in call.launches(&host)? {
            if extra(&launch, "wavefronts", MATRICES) > 0 {
                breaches.push(format!("{label}: ldmatrix has bank conflicts"));
            }
            if extra(&launch, "sectors", TILES) > 0 {
                breaches.push(format!("{label}: sectors of a tensor in part"));
            }
            let counts = columns(&launch).map(|(_, count)| count.to_string());
            rows.push([vec![label], counts.into()].concat());
        }
    }
    let names = columns(&Value::Null).map(|(name, _)| name);
    let header = ["entry"].into_iter().chain(names).map(str::to_owned);
    println!("{}", table::numbers(header, rows));
    println!(
        "batch 1, heads 1, seqlen {seqlen}, whole head dims; m, n and k {seqlen}; {COMBINED} splits to \
         combine"
    );
    ensure!(breaches.is_empty(), "{}", breaches.join("\n"));
    Ok(())
}

/// The columns of a launch in the table.
fn columns(launch: &Value) -> [(&'static str, u64); 12] {
    let number = |name: &str| launch[name].as_u64().unwrap_or_default();
    let instructions = launch["instructions"].as_object().into_iter().flatten();
    let instructions = instructions.filter_map(|(_, count)| count.as_u64());
    let sum = |count, of| sum(launch, count, of);
    let extra = |count, of| extra(launch, count, of);
    [
        ("warp-instr.", instructions.sum()),
        ("mma", number("mma")),
        ("mma MFLOP", number("mma_flops") / 1_000_000),
        ("barriers", number("barriers")),
        ("ldmatrix wavefronts", sum("wavefronts", MATRICES)),
        ("extra", extra("wavefronts", MATRICES)),
        ("other shared", sum("wavefronts", OTHERS)),
        ("extra", extra("wavefronts", OTHERS)),
        ("sectors", sum("sectors", &[""])),
        ("extra", extra("sectors", &[""])),
        ("KB read", sum("bytes_read", &[""]) / 1024),
        ("KB written", sum("bytes_written", &[""]) / 1024),
    ]
}

/// The sum of a count over the accesses by instructions whose names start so.
fn sum(launch: &Value, count: &str, starts: &[&str]) -> u64 {
    let accesses = launch["accesses"].as_array().into_iter().flatten();
    let accesses = accesses.filter(|access| {
        let instruction = access["instruction"].as_str().unwrap_or_default();
        starts.iter().any(|start| instruction.starts_with(start))
    });
    accesses.filter_map(|access| access[count].as_u64()).sum()
}

/// How far a [`sum`] is above its ideal.
fn extra(launch: &Value, count: &str, starts: &[&str]) -> u64 {
    sum(launch, count, starts) - sum(launch, &format!("ideal_{count}"), starts)
}

/// Head dims that kernels of the ladder, which serve many, are counted at.
const LADDER_DIMS: [u32; 2] = [64, 128];

/// Splits that the combine kernels are counted for, and keys enough for one block in each split.
const COMBINED: u32 = 2;
const COMBINED_KEYS: u32 = 512;

/// A run of the program.
struct Call {
    /// The kernel whose launches are counted, or the rung of the ladder: all of its launches are counted.
    name: &'static str,
    is_rung: bool,
    /// The name, and the head dim of a rung.
    label: String,
    arguments: String,
}

/// Kernels that are counted: all that have a dtype, without those that no call of the command launches.
fn kernels() -> impl Iterator<Item = &'static Kernel> {
    let kernels = KERNELS.iter();
    kernels.filter(|kernel| match kernel.family {
        Family::Auxiliary(Auxiliary::Merge(_) | Auxiliary::MergeBackward(_)) => false,
        _ => kernel.dtype().is_some(),
    })
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
        let name = rung.name();
        let runs = |class: &&Class| rung.target().runs_on(class.compute_capability());
        let class = Class::ALL.iter().find(runs).expect("of some class").name();
        calls.extend(LADDER_DIMS.map(|dim| Call {
            name,
            is_rung: true,
            label: format!("{name}, D = {dim}"),
            arguments: format!(
                "--kernel {name} --dim {dim} --seqlen {seqlen} --device emulator:{class} {ONE_HEAD}"
            ),
        }));
    }
    calls
}

const ONE_HEAD: &str = "--heads 1 --splits 1";

/// A call that launches a kernel, at its own head dim.
fn of_kernel(kernel: &Kernel, seqlen: u32) -> Call {
    let name = kernel.name;
    let dtype = kernel.dtype().map_or("f16", Dtype::name);
    let class = kernel.class().name();
    let attention = |kernel: &str, dim: u32, causal: bool| {
        let mask = if causal { "--causal" } else { "" };
        format!(
            "--kernel {kernel} --dim {dim} --seqlen {seqlen} {mask} --device emulator:{class} {ONE_HEAD}"
        )
    };
    let line = match kernel.family {
        // An H100 has the shared memory for all of them.
        Family::Gemm(Gemm { accumulation, .. }) => format!(
            "gemm --device emulator:sm_90 --kernel {name} --m {seqlen} --n {seqlen} --k {seqlen} --acc {}",
            accumulation.name()
        ),
        Family::Forward(Forward { kind, dim, .. }) => {
            attention(name, dim, kind.mask == MaskKind::Causal)
        }
        // A call of the kernel that computes dk and dv launches prepare and convert, too.
        Family::Backward(backward) => {
            let (main, dim) = match backward {
                Backward::Main(main) => (name.to_owned(), main.dim),
                _ => (format!("backward_{dtype}_d64"), 64),
            };
            format!("--pass backward {}", attention(&main, dim, false))
        }
        Family::HopperBackward(HopperBackward { dim, mask, .. }) => {
            let causal = mask == MaskKind::Causal;
            format!("--pass backward {}", attention(name, dim, causal))
        }
        _ => format!(
            "--device emulator --heads 1 --splits {COMBINED} --seqlen {seqlen} --seqlen-kv {COMBINED_KEYS} --dim {MAX_HEAD_DIM}",
        ),
    };
    Call {
        name,
        is_rung: false,
        label: name.to_owned(),
        arguments: format!("{line} --dtype {dtype}"),
    }
}

impl Call {
    /// Label and counters of each launch that is counted, as the program prints them.
    fn launches(&self, host: &str) -> Result<Vec<(String, Value)>> {
        let line = format!(
            "run {host} -- {} --counters --json --check off",
            self.arguments
        );
        let printed: Value = serde_json::from_str(&shell::output(&mut shell::cargo(&line))?)?;
        let launches = printed["counters"].as_array();
        let mut launches = launches.context("the command prints counters")?.clone();
        launches.retain(|launch| self.is_rung || launch["kernel"] == self.name);
        let (label, of) = (&self.label, launches.len());
        ensure!(of > 0, "{label} was not launched");
        let label = |i| match of {
            1 => label.clone(),
            _ => format!("{label}, launch {} of {of}", i + 1),
        };
        Ok((0..).map(label).zip(launches).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::{COMBINED, COMBINED_KEYS, calls, kernels, name};
    use kernels::catalog::KERNELS;
    use ladder::Rung;

    #[test]
    fn every_kernel_is_counted_once() {
        let calls = calls(100);
        let counted = |name: &str| calls.iter().filter(|call| call.label == name).count();
        for kernel in kernels() {
            assert_eq!(counted(kernel.name), 1, "{}", kernel.name);
        }
        assert!(calls.iter().all(|call| name(call.name).is_ok()));
        for rung in Rung::ALL.iter().map(|rung| rung.name()) {
            for dim in [64, 128] {
                assert_eq!(counted(&format!("{rung}, D = {dim}")), 1, "{rung}");
            }
        }
        assert_eq!(calls.len(), kernels().count() + 2 * Rung::ALL.len());
        // Every split has a block of keys, whatever kernel runs first.
        let mut tiles = KERNELS
            .iter()
            .filter_map(|kernel| Some(kernel.forward()?.tile));
        assert!(tiles.all(|tile| COMBINED * tile.keys <= COMBINED_KEYS));
    }
}
