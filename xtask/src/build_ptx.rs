//! `cargo xtask build-ptx`: compiles, checks and tabulates kernels.

use crate::table;
use anyhow::{Context, Result, ensure};
use comfy_table::Table;
use kernel_builder::ptxas::Usage;
use kernel_builder::{Entry, Module, Package, ptxas, sass};
use kernels::catalog::Target;
use kernels::catalog::class::Class;
use kernels::catalog::collectives::Collectives;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Options of the task.
#[derive(clap::Args, Default)]
pub struct Arguments {
    /// Only kernels of this name, in which `*` stands for any text; may be repeated
    #[arg(long, value_name = "NAME")]
    pub kernel: Vec<String>,
    /// The kernels of the ladder too
    #[arg(long)]
    pub ladder: bool,
    /// Only kernels of this PTX target
    #[arg(long, value_parser = target)]
    pub target: Option<Target>,
    /// Compare registers, spills and machine code with the PTX in another folder, such as the
    /// `target/ptx` of another checkout
    #[arg(long, value_name = "FOLDER")]
    pub compare: Option<PathBuf>,
}

/// The kernels of the ladder.
fn ladder() -> Package {
    let kernels = ladder::catalog::KERNELS.iter();
    Package {
        name: "ladder",
        uses: &["kernels"],
        kernels: kernels.map(|kernel| &kernel.shape as _).collect(),
    }
}

fn target(name: &str) -> Result<Target, String> {
    let names: Vec<_> = Target::ALL.iter().map(|target| target.name()).collect();
    let found = names.iter().position(|known| *known == name);
    found
        .map(|place| Target::ALL[place])
        .ok_or_else(|| names.join(" or "))
}

/// Writes each module to `target/ptx/TARGET/MODULE.ptx` and prints a table of the entries, or what
/// differs from another folder.
pub fn run(arguments: &Arguments) -> Result<()> {
    let mut modules = Vec::new();
    let packages = [Some(Package::kernels()), arguments.ladder.then(ladder)];
    for mut package in packages.into_iter().flatten() {
        package.kernels.retain(|kernel| {
            let name = kernel.name();
            let mut patterns = arguments.kernel.iter();
            (arguments.kernel.is_empty() || patterns.any(|pattern| fits(pattern, &name)))
                && arguments
                    .target
                    .is_none_or(|target| kernel.target() == target)
        });
        modules.extend(kernel_builder::build(&package)?);
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
    let ptxas = ptxas::find();
    let usages = ptxas.as_ref().map(|ptxas| ptxas::assemble(ptxas, &modules));
    let usages = usages.transpose()?.unwrap_or_default();
    println!("{}", table(&modules, &usages));
    println!("{} modules in {}", modules.len(), folder.display());
    match ptxas {
        Some(_) => println!(
            "registers for each target that the kernel is for; only a few kernels of the ladder spill"
        ),
        None => println!("no ptxas: registers and spills not checked; type: cargo xtask setup"),
    }
    Ok(())
}

/// Whether a name fits a pattern, in which `*` stands for any text.
fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|name| {
            let mut ends = name.char_indices().map(|(end, _)| end).chain([name.len()]);
            ends.any(|end| fits(rest, &name[end..]))
        }),
    }
}

/// Where a module lies in a folder of PTX.
fn path(folder: &Path, module: &Module) -> PathBuf {
    let file = format!("{}/{}.ptx", module.target.name(), module.name);
    folder.join(file)
}

/// Prints what differs between modules and those in another folder: registers, spills, and how often each
/// instruction stands in the machine code, on each architecture.
fn compare(modules: &[Module], other: &Path) -> Result<()> {
    let ptxas = ptxas::find().context("no ptxas; type: cargo xtask setup")?;
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
                let usages = ptxas::usages(&ptxas, &module.name, text, target)?;
                Ok((usages, sass::disassemble(text, target)?))
            };
            let (old, new) = (assembled(&before)?, assembled(&module.text)?);
            for Entry { name, .. } in &module.entries {
                let [old, new] = [&old, &new].map(|(usages, code)| counts(usages, code, name));
                let changes = changes(&old, &new);
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

/// The numbers of an entry, in the order in which they are told.
type Counts<'a> = BTreeMap<(usize, &'a str), usize>;

/// Each number that differs.
fn changes(old: &Counts, new: &Counts) -> Vec<String> {
    let whats: BTreeSet<_> = old.keys().chain(new.keys()).collect();
    let of = |counts: &Counts, what| counts.get(what).copied().unwrap_or_default();
    let pairs = whats
        .into_iter()
        .map(|what| (what.1, of(old, what), of(new, what)));
    let changed = pairs.filter(|(_, old, new)| old != new);
    changed
        .map(|(what, old, new)| format!("{what} {old} -> {new}"))
        .collect()
}

/// Registers, spills and instructions of an entry, then how often it has each opcode.
fn counts<'a>(usages: &[Usage], code: &'a str, entry: &str) -> Counts<'a> {
    let usage = usages.iter().find(|usage| usage.entry == entry);
    let [registers, spills] = usage.map_or([0; 2], |usage| [usage.registers, usage.spills]);
    let opcodes = sass::opcodes(code, entry);
    let whole = [
        ("registers", registers as usize),
        ("bytes spilled", spills as usize),
        ("instructions", opcodes.values().sum()),
    ];
    let whole = whole.into_iter().enumerate();
    let whole = whole.map(|(place, (what, count))| ((place, what), count));
    let opcodes = opcodes
        .into_iter()
        .map(|(opcode, count)| ((3, opcode), count));
    whole.chain(opcodes).collect()
}

/// Shared memory, registers and collective instructions of each entry.
fn table(modules: &[Module], usages: &[Usage]) -> Table {
    let targets = Class::ALL.iter().flat_map(|class| class.targets());
    let targets = targets.copied().chain([Target::Sm90a.name()]);
    let entries: Vec<_> = modules.iter().flat_map(|module| &module.entries).collect();
    let counts = entries
        .iter()
        .map(|entry| Collectives::count(&entry.body).named());
    let counts: Vec<_> = counts.collect();
    // Only instructions that some kernel has.
    let names = Collectives::NONE.named().into_iter().enumerate();
    let present = names.filter(|(place, _)| counts.iter().any(|counts| counts[*place].1 > 0));
    let header = ["entry", "shared B"].into_iter().chain(targets.clone());
    let header = header.chain(present.clone().map(|(_, (name, _))| name));
    let rows = entries.iter().zip(&counts).map(|(entry, counts)| {
        let registers = targets.clone().map(|target| {
            let mut usages = usages.iter();
            let usage = usages.find(|usage| usage.entry == entry.name && usage.target == target);
            usage.map_or("-".into(), |usage| usage.registers.to_string())
        });
        let counts = present
            .clone()
            .map(|(place, _)| counts[place].1.to_string());
        let row = [entry.name.clone(), entry.kernel.shared_bytes().to_string()];
        row.into_iter().chain(registers).chain(counts).collect()
    });
    table::numbers(header.map(str::to_owned), rows)
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn stars_stand_for_any_text() {
        for pattern in ["forward_f16_d64", "*", "forward*", "*d64", "f*_*d6*4"] {
            assert!(fits(pattern, "forward_f16_d64"), "{pattern}");
        }
        for pattern in ["forward_f16_d6", "", "*d32", "packed*", "forward*x"] {
            assert!(!fits(pattern, "forward_f16_d64"), "{pattern}");
        }
    }
}
