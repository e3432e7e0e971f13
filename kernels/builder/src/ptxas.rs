//! Assembling the PTX for real architectures, as the driver will, to see registers and spills.

use crate::{Error, Module, target_dir};
use rayon::prelude::*;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The architectures that every `sm_80` module must assemble for.
pub const TARGETS: &[&str] = &["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"];

/// The architectures on which no entry may spill registers.
pub const NO_SPILL_TARGETS: &[&str] = &["sm_80", "sm_90"];

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

/// Assembles all modules for all [`TARGETS`].
///
/// # Errors
/// [`Error::Ptxas`] if one is rejected, [`Error::Contract`] if an entry spills on one of
/// [`NO_SPILL_TARGETS`].
pub fn assemble(ptxas: &Path, modules: &[Module]) -> Result<Vec<Usage>, Error> {
    let jobs: Vec<_> = modules
        .iter()
        .flat_map(|module| TARGETS.iter().map(move |target| (module, *target)))
        .collect();
    let usages: Vec<Vec<Usage>> = jobs
        .par_iter()
        .map(|(module, target)| assemble_one(ptxas, module, target))
        .collect::<Result<_, _>>()?;
    let usages = usages.concat();
    for usage in &usages {
        if usage.spills > 0 && NO_SPILL_TARGETS.contains(&usage.target) {
            let rule = format!("spills {} bytes on {}", usage.spills, usage.target);
            return Err(Error::contract(&usage.entry, rule));
        }
    }
    Ok(usages)
}

fn assemble_one(ptxas: &Path, module: &Module, target: &'static str) -> Result<Vec<Usage>, Error> {
    let source = tempfile::Builder::new().suffix(".ptx").tempfile();
    let source = source.map_err(|source| Error::File {
        path: std::env::temp_dir(),
        source,
    })?;
    std::fs::write(&source, &module.text).map_err(|error| Error::File {
        path: source.path().into(),
        source: error,
    })?;
    let output = Command::new(ptxas)
        .args(["-v", "-arch", target, "-o", "/dev/null"])
        .arg(source.path())
        .output()
        .map_err(|source| Error::Run {
            program: ptxas.into(),
            source,
        })?;
    let report = String::from_utf8_lossy(&output.stderr);
    let rejected = |message: &str| Error::Ptxas {
        module: module.name.into(),
        target: target.into(),
        message: message.trim().into(),
    };
    if !output.status.success() {
        return Err(rejected(&report));
    }
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
            ptxas info    : Used 32 registers, used 1 barriers\n";
        let usage = |entry: &str, registers, spills| Usage {
            entry: entry.into(),
            target: "sm_90",
            registers,
            spills,
        };
        assert_eq!(
            parse(report, "sm_90"),
            [usage("one", 249, 16), usage("two", 32, 0)]
        );
    }
}
