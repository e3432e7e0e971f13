//! Assembling the PTX for real architectures, as the driver will, to see registers and spills.

use crate::{Error, Module, cache, target_dir};
use kernels::catalog::class::Class;
use kernels::catalog::{Family, Kernel};
use rayon::prelude::*;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The architectures that a kernel must assemble for: those of all classes whose tile it has.
pub fn targets(kernel: &Kernel) -> impl Iterator<Item = &'static str> {
    let classes = Class::ALL.iter().filter(|class| kernel.is_for(**class));
    classes.flat_map(|class| class.targets()).copied()
}

/// What `ptxas -v` says of an entry on an architecture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The kernel.
    pub entry: String,
    /// The architecture.
    pub target: &'static str,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes a thread spills, stores and loads together.
    pub spills: u32,
    /// Bytes of static shared memory.
    pub shared: u32,
}

/// Finds the assembler, [as any tool](find_tool).
#[must_use]
pub fn find() -> Option<PathBuf> {
    find_tool("ptxas")
}

/// Finds a tool of the CUDA toolkit: where the variable of its name in capitals says, what `cargo
/// xtask setup` installed, or the `PATH`.
#[must_use]
pub fn find_tool(name: &str) -> Option<PathBuf> {
    let installed = ["nvidia/cu13/bin", "nvidia/cuda_nvcc/bin"];
    let candidates = std::env::var_os(name.to_uppercase()).map(PathBuf::from);
    candidates
        .into_iter()
        .chain(
            installed
                .iter()
                .map(|path| tools_dir().join(path).join(name)),
        )
        .chain([PathBuf::from(name)])
        .find(|path| {
            Command::new(path)
                .arg("--version")
                .output()
                .is_ok_and(|o| o.status.success())
        })
}

/// Where `cargo xtask setup` installs the tools.
#[must_use]
pub fn tools_dir() -> PathBuf {
    target_dir().join("tools")
}

/// Assembles all modules for the [targets] of their kernels.
///
/// # Errors
/// [`Error::Ptxas`] if one is rejected, [`Error::Contract`] if an entry spills, or a block needs more
/// shared memory than a device has.
pub fn assemble(ptxas: &Path, modules: &[Module]) -> Result<Vec<Usage>, Error> {
    let jobs: Vec<_> = modules
        .iter()
        // Every kernel of a module is for the same devices.
        .flat_map(|module| targets(module.entries[0].kernel).map(move |target| (module, target)))
        .collect();
    let version = Command::new(ptxas).arg("--version").output();
    let version = version.map_err(|source| Error::Run {
        program: ptxas.into(),
        source,
    })?;
    let version = String::from_utf8_lossy(&version.stdout);
    let usages: Vec<Vec<Usage>> = jobs
        .par_iter()
        .map(|(module, target)| assemble_one(ptxas, &version, module, target))
        .collect::<Result<_, _>>()?;
    let usages = usages.concat();
    let kernels = modules.iter().flat_map(|module| &module.entries);
    for kernel in kernels.map(|entry| entry.kernel) {
        for usage in usages.iter().filter(|usage| usage.entry == kernel.name) {
            check(kernel, usage)?;
        }
    }
    Ok(usages)
}

/// Bytes that kernels of the ladder may spill, stored and loaded: what they are told at run time, and the look
/// for infinities in V under any mask, take registers. Teams that ask for the addresses of their copies
/// anew for each spill next to nothing, and are a tenth slower. No other kernel spills.
const LADDER_SPILLS: u32 = 160;

fn check(kernel: &Kernel, usage: &Usage) -> Result<(), Error> {
    let target = usage.target;
    let most = match kernel.family {
        Family::Ladder(_) => LADDER_SPILLS,
        _ => 0,
    };
    if usage.spills > most {
        let rule = format!("spills {} bytes on {target}", usage.spills);
        return Err(Error::contract(kernel.name, rule));
    }
    let shared = usage.shared + kernel.shared_bytes();
    let mut classes = Class::ALL.iter();
    let class = classes.find(|class| class.targets().contains(&target));
    match class.map(|class| class.shared_memory().block) {
        Some(most) if shared <= most => Ok(()),
        most => {
            let most = most.unwrap_or(0);
            let rule =
                format!("a block needs {shared} bytes of shared memory; {target} has {most}");
            Err(Error::contract(kernel.name, rule))
        }
    }
}

fn assemble_one(
    ptxas: &Path,
    version: &str,
    module: &Module,
    target: &'static str,
) -> Result<Vec<Usage>, Error> {
    let rejected = |message: &str| Error::Ptxas {
        module: module.name.into(),
        target: target.into(),
        message: message.trim().into(),
    };
    let made = cache::folder((version, &module.text, target), |folder| {
        let source = folder.join("ptx");
        cache::write(&source, &module.text)?;
        let output = Command::new(ptxas)
            .args(["-v", "-arch", target, "-o", "/dev/null"])
            .arg(&source)
            .output()
            .map_err(|source| Error::Run {
                program: ptxas.into(),
                source,
            })?;
        let _ = std::fs::remove_file(source);
        if output.status.success() {
            cache::write(&folder.join("report"), output.stderr)
        } else {
            Err(rejected(&String::from_utf8_lossy(&output.stderr)))
        }
    })?;
    let report = cache::read(&made.join("report"))?;
    let usages = parse(&report, target);
    if usages.len() == module.entries.len() {
        Ok(usages)
    } else {
        Err(rejected(&format!(
            "a report that cannot be read:\n{report}"
        )))
    }
}

/// Reads a report: for each entry a line `Compiling entry function 'NAME'`, then one with the spills
/// and one with the registers.
fn parse(report: &str, target: &'static str) -> Vec<Usage> {
    report
        .split("Compiling entry function '")
        .skip(1)
        .filter_map(|section| {
            let spilled = |what| number_before(section, what);
            Some(Usage {
                entry: section.split_once('\'')?.0.into(),
                target,
                registers: number_before(section, " registers")?,
                spills: spilled(" bytes spill stores")? + spilled(" bytes spill loads")?,
                // Not said if there is none.
                shared: number_before(section, " bytes smem").unwrap_or(0),
            })
        })
        .collect()
}

fn number_before(text: &str, what: &str) -> Option<u32> {
    let (before, _) = text.split_once(what)?;
    before
        .rsplit(|c: char| !c.is_ascii_digit())
        .next()?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::catalog::KERNELS;

    #[test]
    fn reports_are_read() {
        let report = "ptxas info    : 0 bytes gmem\n\
            ptxas info    : Compiling entry function 'one' for 'sm_90'\n\
            ptxas info    : Function properties for one\n\
            \x20   8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n\
            ptxas info    : Used 249 registers, used 1 barriers, 8 bytes cumulative stack size\n\
            ptxas info    : Compiling entry function 'two' for 'sm_90'\n\
            ptxas info    : Function properties for two\n\
            \x20   0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n\
            ptxas info    : Used 32 registers, used 1 barriers, 640 bytes smem, 8 bytes cmem[2]\n";
        let usage = |entry: &str, registers, spills, shared| Usage {
            entry: entry.into(),
            target: "sm_90",
            registers,
            spills,
            shared,
        };
        assert_eq!(
            parse(report, "sm_90"),
            [usage("one", 249, 16, 0), usage("two", 32, 0, 640)]
        );
    }

    #[test]
    fn spills_and_too_much_shared_memory_are_refused() {
        let named = |name| KERNELS.iter().find(|kernel| kernel.name == name);
        let small = named("forward_f16_d64").expect("in the table");
        let large = named("forward_f16_d128").expect("in the table");
        let usage = |target, spills, shared| Usage {
            entry: String::new(),
            target,
            registers: 255,
            spills,
            shared,
        };
        for target in Class::ALL.iter().flat_map(|class| class.targets()) {
            check(small, &usage(target, 0, 0)).unwrap();
            let error = check(small, &usage(target, 4, 0)).unwrap_err().to_string();
            assert!(
                error.contains(target) && error.contains("spills 4"),
                "{error}"
            );
        }
        // 64 KB of its own: 35 more are what sm_86 has, and 99 of 163 what sm_80 has.
        for (target, most) in [
            ("sm_86", 35 << 10),
            ("sm_120", 35 << 10),
            ("sm_80", 99 << 10),
        ] {
            check(large, &usage(target, 0, most)).unwrap();
            let error = check(large, &usage(target, 0, most + 1))
                .unwrap_err()
                .to_string();
            assert!(
                error.contains(target) && error.contains("shared memory"),
                "{error}"
            );
        }
    }

    #[test]
    fn kernels_are_assembled_for_who_uses_them() {
        let of = |name| {
            let kernel = KERNELS.iter().find(|kernel| kernel.name == name);
            targets(kernel.expect("in the table")).collect::<Vec<_>>()
        };
        assert_eq!(of("forward_f16_d32").len(), 6);
        assert_eq!(of("forward_f16_d64"), ["sm_80", "sm_90", "sm_100"]);
        assert_eq!(of("forward_f16_d128"), ["sm_80", "sm_90"]);
        assert_eq!(of("forward_f16_d128_128x16"), ["sm_100"]);
        assert_eq!(of("forward_f16_d128_64x32"), ["sm_86", "sm_89", "sm_120"]);
        assert_eq!(of("forward_bf16_d256_128x32_causal"), ["sm_80"]);
        assert_eq!(of("combine_bf16").len(), 6);
    }
}
