//! Assembling the PTX for real architectures, as the driver will, to see registers and spills.

use crate::{Error, Module, cache, sass, target_dir};
use kernels::abi::{Switch, Switches};
use kernels::catalog::class::Class;
use kernels::catalog::{Spec, Target};
use kernels::text;
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

/// The architectures that a kernel must assemble for: its own target if no other runs it, else all of
/// the classes that it is for.
pub fn targets(kernel: &Spec) -> Vec<&'static str> {
    if !kernel.target.is_portable {
        return vec![kernel.target.name];
    }
    let classes = kernel.classes.iter();
    classes.flat_map(|class| class.targets()).copied().collect()
}

/// The resources of an entry on an architecture, as `ptxas -v` reports them.
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

/// Finds a tool of the CUDA toolkit: where the variable of its name in capitals says, what `cargo
/// xtask setup` installed, or the `PATH`.
pub fn find_tool(name: &str) -> Option<PathBuf> {
    let named = std::env::var_os(name.to_uppercase()).map(PathBuf::from);
    let installed = ["nvidia/cu13/bin", "nvidia/cuda_nvcc/bin"];
    let installed = installed.map(|path| tools_dir().join(path).join(name));
    let mut candidates = named.into_iter().chain(installed).chain([name.into()]);
    candidates.find(|path| version(path).is_ok())
}

/// Where `cargo xtask setup` installs the tools.
pub fn tools_dir() -> PathBuf {
    target_dir().join("tools")
}

/// The architectures that kernels are assembled for at each build: of 128 kernels all had as many registers on `sm_89` as on
/// `sm_86`, and no spills (2026-11-27).
pub fn is_assembled(target: &str) -> bool {
    target != "sm_89"
}

/// The architectures that a module is assembled for.
///
/// A [twin](crate::Twins) is the text of its kernel with the other type's instructions: of 616 pairs of a twin and a target 615 had
/// the registers of the other kernel, and one had two fewer (2026-11-26). One head dim of each family, for one target, shows that
/// the assembler takes these instructions.
fn assembled_for(module: &Module) -> Vec<&'static str> {
    // Every kernel of a module is for the same devices.
    let mut targets = targets(module.entries[0].kernel);
    targets.retain(|target| is_assembled(target));
    if module.twin_of.is_some() {
        let has_dim = |dim| module.name.contains(dim);
        let is_shown = has_dim("_d64") || has_dim("_d512") || !has_dim("_d");
        targets.truncate(is_shown.into());
    }
    targets
}

/// Assembles all modules for the architectures of their kernels, twins for few.
///
/// # Errors
/// [`Error::Ptxas`] if one is rejected, [`Error::Contract`] if an entry spills, a block needs more shared memory than a
/// device has, or, with `nvdisasm` at hand, [the machine code](sass::check) is not what a kernel for Hopper implies.
pub fn assemble(ptxas: &Path, modules: &[Module]) -> Result<Vec<Usage>, Error> {
    // Of each family one module is assembled with options too.
    let with_options = modules.par_iter();
    let with_options = with_options.filter(|module| {
        module.name.ends_with("optional_f16_d128")
            || module.name.starts_with("latent_f16")
            || module.name.starts_with("fp8") && module.name.ends_with("f16_d256")
    });
    with_options.try_for_each(|module| {
        let is_backward = module.name.starts_with("backward");
        let decodes = module.name.starts_with("decode");
        let is_grouped = decodes || module.name.starts_with("latent");
        let is_fp8 = module.name.starts_with("fp8");
        let some = match module.name.split('_').next() {
            Some("latent") => &[Switch::Ranges, Switch::Lengths, Switch::Pages][..],
            Some("fp8") if module.name.contains("optional") => OF_FP8,
            Some("fp8") => &[Switch::F32Output],
            _ => Switch::ALL,
        };
        let has = |switch: &Switch| {
            some.contains(switch)
                && (is_fp8 || *switch != Switch::F32Output)
                && (!is_backward || switch.is_of_gradients())
                && (!is_grouped || switch.is_of_groups())
                && (is_grouped || *switch != Switch::Lengths)
                && (decodes || *switch != Switch::Cluster)
        };
        let combinations = Switch::COMBINATIONS.par_iter();
        let combinations = combinations.filter(|switches| switches.iter().all(has));
        combinations.try_for_each(|combination| check_options(ptxas, module, combination))
    })?;
    let jobs = modules.par_iter().flat_map(|module| {
        let targets = assembled_for(module).into_par_iter();
        targets.map(move |target| (module, target))
    });
    let usages = jobs.map(|(module, target)| {
        let usages = usages(ptxas, module.name, &module.text, target)?;
        for entry in &module.entries {
            let usage = usages.iter().find(|usage| usage.entry == entry.kernel.name);
            let usage = usage.ok_or_else(|| Error::contract(entry.kernel.name, "has no report"))?;
            check(entry.kernel, usage)?;
        }
        check_code(module, &module.text, target, false)?;
        Ok(usages)
    });
    Ok(usages.collect::<Result<Vec<_>, _>>()?.concat())
}

/// Checks the machine code of a module with `wgmma`, if `nvdisasm` is at hand; not of a [twin](crate::Twins).
fn check_code(module: &Module, text: &str, target: &str, has_mask: bool) -> Result<(), Error> {
    let is_read = module.target == Target::SM90A && module.twin_of.is_none();
    if !is_read || find_tool("nvdisasm").is_none() {
        return Ok(());
    }
    let code = sass::disassemble(module.name, text, target)?;
    let mut entries = module.entries.iter();
    entries.try_for_each(|entry| sass::check(entry, &code, has_mask))
}

/// Assembles a module with some switches on, for one target.
fn check_options(ptxas: &Path, module: &Module, combination: &[Switch]) -> Result<(), Error> {
    let on = combination.iter();
    let on = on.fold(Switches::NONE, |on, &switch| on.with(switch, true));
    let text = on.written(module.text.clone()).map_err(|switch| {
        Error::contract(module.name, format!("has no switch {}", switch.name()))
    })?;
    let target = match module.target.is_portable {
        true => Class::Sm90.name(),
        false => module.target.name,
    };
    for usage in usages(ptxas, module.name, &text, target)? {
        if usage.spills > MOST_SPILLS_OF_OPTIONS {
            let names: Vec<_> = combination.iter().map(|switch| switch.name()).collect();
            let (spills, names) = (usage.spills, names.join(" and "));
            let rule = format!("spills {spills} bytes on {target} with {names}");
            return Err(Error::contract(module.name, rule));
        }
    }
    let masks = [Switch::MaskBytes, Switch::MaskBits];
    let has_mask = combination.iter().any(|switch| masks.contains(switch));
    check_code(module, &text, target, has_mask)
}

/// Switches of kernels that multiply e4m3, with options.
const OF_FP8: &[Switch] = &[
    Switch::Ranges,
    Switch::Softcap,
    Switch::SoftcapFar,
    Switch::F32Output,
];

/// Bytes that a thread may spill where options are on, stores and loads together: with a bias of f32 and a mask of bytes most, 656.
const MOST_SPILLS_OF_OPTIONS: u32 = 704;

fn check(kernel: &Spec, usage: &Usage) -> Result<(), Error> {
    let target = usage.target;
    let broken = |rule| Err(Error::contract(kernel.name, rule));
    if usage.spills > kernel.code.most_spills {
        return broken(format!("spills {} bytes on {target}", usage.spills));
    }
    let shared = usage.shared + kernel.launch.shared_bytes;
    // `sm_90a` is code for devices of class `sm_90`.
    let class = Class::named(target.trim_end_matches('a'));
    let most = class.map_or(0, |class| class.shared_memory().block);
    if shared > most {
        return broken(format!(
            "a block needs {shared} bytes of shared memory; {target} has {most}"
        ));
    }
    Ok(())
}

/// The resources that the entries of a PTX text use on an architecture.
///
/// # Errors
/// [`Error::Ptxas`] if it is rejected.
pub fn usages(
    ptxas: &Path,
    module: &str,
    text: &str,
    target: &'static str,
) -> Result<Vec<Usage>, Error> {
    let assembled = assembled(ptxas, module, text, target)?;
    Ok(parse(&cache::read(&assembled.join(REPORT))?, target))
}

/// The report of `ptxas -v`, in the folder of an [assembled] text.
const REPORT: &str = "report";
/// The machine code, in the folder of an [assembled] text.
pub(crate) const CUBIN: &str = "cubin";

/// Assembles a PTX text for an architecture, without [what never runs](text::prune), as a driver does; the folder of its
/// [`REPORT`] and [`CUBIN`].
pub(crate) fn assembled(
    ptxas: &Path,
    module: &str,
    text: &str,
    target: &str,
) -> Result<PathBuf, Error> {
    let text = text::prune(text);
    cache::folder((version(ptxas)?, &text, target), |folder| {
        let source = tempfile::NamedTempFile::new_in(folder).map_err(Error::file(folder))?;
        cache::write(source.path(), &text)?;
        let mut command = Command::new(ptxas);
        command.args(["-v", "-arch", target, "-o"]);
        let output = output(command.arg(folder.join(CUBIN)).arg(source.path()))?;
        let report = String::from_utf8_lossy(&output.stderr);
        // C75xx: the assembler serialised or ignored what a kernel of warpgroups relies on.
        if output.status.success() && !report.contains("(C75") {
            return cache::write(&folder.join(REPORT), &*report);
        }
        let said = report.trim().into();
        Err(Error::Ptxas(module.into(), target.into(), said))
    })
}

/// The version that a tool prints; it is asked once, not for each of a thousand results.
pub(crate) fn version(tool: &Path) -> Result<String, Error> {
    static KNOWN: Mutex<BTreeMap<PathBuf, String>> = Mutex::new(BTreeMap::new());
    // A panic while the table is locked leaves nothing half-changed.
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(version) = known.get(tool) {
        return Ok(version.clone());
    }
    let version = printed(Command::new(tool).arg("--version"))?;
    known.insert(tool.into(), version.clone());
    Ok(version)
}

/// The standard output of a program, unless it failed.
pub(crate) fn printed(command: &mut Command) -> Result<String, Error> {
    let output = output(command)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let source = std::io::Error::other(said.trim());
    Err(Error::Run(command.get_program().into(), source))
}

/// The output of a program, whether it failed or not.
pub(crate) fn output(command: &mut Command) -> Result<Output, Error> {
    let output = command.output();
    output.map_err(|source| Error::Run(command.get_program().into(), source))
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
    use kernels::catalog::named;

    fn spec(name: &str) -> &'static Spec {
        &named(name).expect("in the catalog").spec
    }

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
        let (small, large) = (spec("forward_f16_d64"), spec("forward_f16_d128"));
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
        let of = |name| targets(spec(name));
        assert_eq!(of("forward_f16_d32").len(), 6);
        assert_eq!(of("forward_f16_d64"), ["sm_80", "sm_90", "sm_100"]);
        assert_eq!(of("forward_f16_d128"), ["sm_80", "sm_90"]);
        assert_eq!(of("forward_f16_d128_128x16"), ["sm_100"]);
        assert_eq!(of("forward_f16_d128_64x32"), ["sm_86", "sm_89", "sm_120"]);
        assert_eq!(of("forward_bf16_d256_128x32_causal"), ["sm_80"]);
        assert_eq!(of("combine_bf16").len(), 6);
    }
}
