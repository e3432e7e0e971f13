//! `cargo xtask build-ptx`: compiles, checks and tabulates kernels.

use crate::table;
use anyhow::{Context, Result, ensure};
use clap::builder::PossibleValuesParser;
use comfy_table::Table;
use glob::Pattern;
use kernel_builder::ptxas::Usage;
use kernel_builder::{Collectives, Module, Package, ptxas, sass};
use kernels::catalog::Target;
use kernels::catalog::class::Class;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Options of the task.
#[derive(clap::Args, Default)]
pub struct Arguments {
    /// Only kernels of this name, in which `*` stands for any text; may be repeated
    #[arg(long, value_name = "NAME")]
    pub kernel: Vec<Pattern>,
    /// The kernels of the ladder too
    #[arg(long)]
    pub ladder: bool,
    /// Only kernels of this PTX target
    #[arg(long, value_parser = PossibleValuesParser::new(Target::ALL.iter().map(|target| target.name)))]
    pub target: Option<String>,
    /// Compare registers, spills and machine code with the PTX in another folder, such as the
    /// `target/ptx` of another checkout
    #[arg(long, value_name = "FOLDER")]
    pub compare: Option<PathBuf>,
    /// Write how often each instruction of whole warps stands in the kernels to the files collectives.txt
    #[arg(long)]
    pub bless: bool,
}

/// The kernels of the ladder.
fn ladder() -> Package {
    Package {
        name: "ladder",
        folder: Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("ladder"),
        uses: &["kernels"],
        kernels: ladder::catalog::specs(),
    }
}

/// Writes each module to `target/ptx/TARGET/MODULE.ptx` and prints a table of the entries, or what
/// differs from another folder.
pub fn run(arguments: &Arguments) -> Result<()> {
    let mut modules = Vec::new();
    let packages = [Some(Package::kernels()), arguments.ladder.then(ladder)];
    for mut package in packages.into_iter().flatten() {
        let all = package.kernels.clone();
        package.kernels.retain(|kernel| {
            let (name, target) = (kernel.name, kernel.target.name);
            let mut patterns = arguments.kernel.iter();
            (arguments.kernel.is_empty() || patterns.any(|pattern| pattern.matches(name)))
                && arguments.target.as_ref().is_none_or(|only| only == target)
        });
        modules.extend(match arguments.bless {
            true => kernel_builder::bless(&package, &all)?,
            false => kernel_builder::build(&package)?,
        });
    }
    ensure!(!modules.is_empty(), "no kernel has such a name and target");
    let folder = kernel_builder::target_dir().join("ptx");
    for module in &modules {
        let path = path(&folder, module);
        std::fs::create_dir_all(path.parent().unwrap_or(&folder))
            .and_then(|()| std::fs::write(&path, &module.text))
            .with_context(|| path.display().to_string())?;
    }
    if let Some(other) = &arguments.compare {
        return compare(&modules, other);
    }
    let ptxas = ptxas::find_tool("ptxas");
    let usages = ptxas.as_ref().map(|ptxas| ptxas::assemble(ptxas, &modules));
    let usages = usages.transpose()?.unwrap_or_default();
    println!("{}", table(&modules, &usages));
    println!("{} modules in {}", modules.len(), folder.display());
    match ptxas {
        Some(_) => println!(
            "registers for each target that the kernel is for, sm_89 as sm_86, some of bf16 for the first; only a few kernels of the ladder spill"
        ),
        None => println!("no ptxas: registers and spills not checked; type: cargo xtask setup"),
    }
    Ok(())
}

/// Where a module lies in a folder of PTX.
fn path(folder: &Path, module: &Module) -> PathBuf {
    let file = format!("{}/{}.ptx", module.target.name, module.name);
    folder.join(file)
}

/// Prints what differs between modules and those in another folder: registers, spills, and how often each
/// instruction stands in the machine code, on each architecture.
fn compare(modules: &[Module], other: &Path) -> Result<()> {
    let ptxas = ptxas::find_tool("ptxas").context("no ptxas; type: cargo xtask setup")?;
    let (mut compared, mut different, mut missing) = (0, 0, 0);
    for module in modules {
        let Ok(before) = std::fs::read_to_string(path(other, module)) else {
            missing += module.entries.len();
            continue;
        };
        for target in ptxas::targets(module.entries[0].kernel) {
            compared += module.entries.len();
            if before == module.text {
                continue;
            }
            let assembled = |text: &str| -> Result<_> {
                let usages = ptxas::usages(&ptxas, module.name, text, target)?;
                Ok((usages, sass::disassemble(module.name, text, target)?))
            };
            let (old, new) = (assembled(&before)?, assembled(&module.text)?);
            for entry in &module.entries {
                let name = entry.kernel.name;
                let changes = changes(name, [&old, &new]);
                if !changes.is_empty() {
                    different += 1;
                    println!("{name} on {target}: {}", changes.join(", "));
                }
            }
        }
    }
    println!(
        "{compared} kernels compared, each on every architecture that it is for: {different} differ; \
         {missing} are not in {}",
        other.display()
    );
    Ok(())
}

/// Each number of an entry that differs between reports with machine code: registers, spills and instructions, then
/// how often it has each opcode.
fn changes(entry: &str, texts: [&(Vec<Usage>, String); 2]) -> Vec<String> {
    let opcodes = texts.map(|(_, code)| sass::opcodes(code, entry));
    let usages = texts.map(|(usages, _)| usages.iter().find(|usage| usage.entry == entry));
    let number = |of: fn(&Usage) -> u32| usages.map(|usage| usage.map_or(0, of) as usize);
    let whole = [
        ("registers", number(|usage| usage.registers)),
        ("bytes spilled", number(|usage| usage.spills)),
        (
            "instructions",
            opcodes.each_ref().map(|counts| counts.values().sum()),
        ),
    ];
    let names: BTreeSet<_> = opcodes.iter().flat_map(BTreeMap::keys).collect();
    let count = |name: &str| {
        opcodes
            .each_ref()
            .map(|counts| *counts.get(name).unwrap_or(&0))
    };
    let all = whole
        .into_iter()
        .chain(names.into_iter().map(|name| (*name, count(name))));
    let changed = all.filter(|(_, [old, new])| old != new);
    changed
        .map(|(what, [old, new])| format!("{what} {old} -> {new}"))
        .collect()
}

/// Shared memory, registers and collective instructions of each entry.
fn table(modules: &[Module], usages: &[Usage]) -> Table {
    let targets = Class::ALL.iter().flat_map(|class| class.targets());
    let alone = Target::ALL.iter().filter(|target| !target.is_portable);
    let targets = targets.copied().chain(alone.map(|target| target.name));
    let targets = targets.filter(|target| ptxas::is_assembled(target));
    let entries: Vec<_> = modules.iter().flat_map(|module| &module.entries).collect();
    let counts = entries
        .iter()
        .map(|entry| Collectives::count(&entry.body).named().collect::<Vec<_>>());
    let counts: Vec<_> = counts.collect();
    // Only instructions that some kernel has.
    let names = Collectives::default().named().enumerate();
    let present = names.filter(|(place, _)| counts.iter().any(|counts| counts[*place].1 > 0));
    let header = ["entry", "shared B"].into_iter().chain(targets.clone());
    let header = header.chain(present.clone().map(|(_, (name, _))| name));
    let rows = entries.iter().zip(&counts).map(|(entry, counts)| {
        let name = entry.kernel.name;
        let registers = targets.clone().map(|target| {
            let mut usages = usages.iter();
            let usage = usages.find(|usage| usage.entry == name && usage.target == target);
            usage.map_or("-".into(), |usage| usage.registers.to_string())
        });
        let counts = present
            .clone()
            .map(|(place, _)| counts[place].1.to_string());
        let row = [
            name.to_owned(),
            entry.kernel.launch.shared_bytes.to_string(),
        ];
        row.into_iter().chain(registers).chain(counts).collect()
    });
    table::numbers(header.map(str::to_owned), rows)
}

#[cfg(test)]
mod tests {
    use super::Pattern;

    #[test]
    fn stars_stand_for_any_text() {
        let fits = |pattern: &str, name| Pattern::new(pattern).expect("a pattern").matches(name);
        for pattern in ["forward_f16_d64", "*", "forward*", "*d64", "f*_*d6*4"] {
            assert!(fits(pattern, "forward_f16_d64"), "{pattern}");
        }
        for pattern in ["forward_f16_d6", "", "*d32", "packed*", "forward*x"] {
            assert!(!fits(pattern, "forward_f16_d64"), "{pattern}");
        }
    }
}
