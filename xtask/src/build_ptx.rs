//! `cargo xtask build-ptx`: compiles, checks and tabulates kernels.

use anyhow::{Context, Result, ensure};
use comfy_table::{CellAlignment, Table, presets};
use kernel_builder::{Module, Package, ptxas, sass};
use kernels::catalog::Target;
use kernels::catalog::class::Class;
use kernels::catalog::collectives::Collectives;
use std::path::{Path, PathBuf};

/// Options of the task.
#[derive(clap::Args)]
pub struct Arguments {
    /// Only kernels of this name, in which `*` stands for any text; may be repeated
    #[arg(long, value_name = "NAME")]
    kernel: Vec<String>,
    /// The kernels of the ladder too
    #[arg(long)]
    ladder: bool,
    /// Only kernels of this PTX target
    #[arg(long, value_parser = target)]
    target: Option<Target>,
    /// Compare registers, spills and machine code with the PTX in another folder, such as the
    /// `target/ptx` of another checkout
    #[arg(long, value_name = "FOLDER")]
    compare: Option<PathBuf>,
}

impl Arguments {
    /// Every kernel, of the ladder too.
    pub fn all() -> Self {
        Arguments {
            kernel: Vec::new(),
            ladder: true,
            target: None,
            compare: None,
        }
    }
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
    let found = Target::ALL.iter().find(|target| target.name() == name);
    let names = Target::ALL.iter().map(|target| target.name());
    found
        .copied()
        .ok_or_else(|| names.collect::<Vec<_>>().join(" or "))
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
    let usages = match &ptxas {
        Some(ptxas) => ptxas::assemble(ptxas, &modules)?,
        None => Vec::new(),
    };
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
            let of = |text: &str| -> Result<_> {
                let usages = ptxas::usages(&ptxas, &module.name, text, target)?;
                Ok((usages, sass::disassemble(text, target)?))
            };
            let ((old, old_code), (new, new_code)) = (of(&before)?, of(&module.text)?);
            for entry in &module.entries {
                let mut lines = Vec::new();
                let usage = |usages: &[ptxas::Usage]| {
                    let found = usages.iter().find(|usage| usage.entry == entry.name);
                    found.map_or([0; 2], |usage| [usage.registers, usage.spills])
                };
                let (old, new) = (usage(&old), usage(&new));
                for (what, old, new) in [
                    ("registers", old[0], new[0]),
                    ("bytes spilled", old[1], new[1]),
                ] {
                    if old != new {
                        lines.push(format!("{what} {old} -> {new}"));
                    }
                }
                let [old, new] =
                    [&old_code, &new_code].map(|code| sass::opcodes(code, &entry.name));
                let totals = [&old, &new].map(|counts| counts.values().sum::<usize>());
                if totals[0] != totals[1] {
                    lines.push(format!("instructions {} -> {}", totals[0], totals[1]));
                }
                let mut opcodes: Vec<_> = old.keys().chain(new.keys()).collect();
                opcodes.sort_unstable();
                opcodes.dedup();
                for opcode in opcodes {
                    let [old, new] = [&old, &new].map(|counts| counts.get(opcode).unwrap_or(&0));
                    if old != new {
                        lines.push(format!("{opcode} {old} -> {new}"));
                    }
                }
                if !lines.is_empty() {
                    different += 1;
                    println!("{} on {target}: {}", entry.name, lines.join(", "));
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

fn table(modules: &[Module], usages: &[ptxas::Usage]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    let mut header = vec!["entry".to_string(), "shared B".into()];
    let targets = Class::ALL.iter().flat_map(|class| class.targets());
    let targets = targets.copied().chain([Target::Sm90a.name()]);
    header.extend(targets.clone().map(str::to_owned));
    // Only instructions that some kernel has.
    let counts = |body: &str| Collectives::count(body).named();
    let entries = || modules.iter().flat_map(|module| &module.entries);
    let mut present = counts("");
    for entry in entries() {
        for (present, (_, count)) in present.iter_mut().zip(counts(&entry.body)) {
            present.1 += count;
        }
    }
    let present: Vec<_> = present
        .into_iter()
        .filter(|&(_, count)| count > 0)
        .collect();
    header.extend(
        present
            .iter()
            .map(|(instruction, _)| (*instruction).to_owned()),
    );
    let columns = header.len();
    table.set_header(header);
    for entry in entries() {
        let mut row = vec![entry.name.clone(), entry.kernel.shared_bytes().to_string()];
        row.extend(targets.clone().map(|target| {
            let mut usages = usages.iter();
            match usages.find(|u| u.entry == entry.name && u.target == target) {
                None => "-".into(),
                Some(usage) => usage.registers.to_string(),
            }
        }));
        let counts = counts(&entry.body).into_iter();
        let counts = counts.filter(|(name, _)| present.iter().any(|(of, _)| of == name));
        row.extend(counts.map(|(_, count)| count.to_string()));
        table.add_row(row);
    }
    for column in table.column_iter_mut().take(columns).skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
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
