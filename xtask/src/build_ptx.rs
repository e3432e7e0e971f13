//! `cargo xtask build-ptx`: compiles, checks and tabulates the kernels.

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets};
use kernel_builder::{Module, contract::Collectives, ptxas};
use kernels::catalog::Arch;
use kernels::catalog::class::Class;

/// Writes each module to `target/ptx/ARCH/MODULE.ptx` and prints a table of the entries.
pub fn run() -> Result<()> {
    let ptxas = ptxas::find();
    for arch in Arch::ALL {
        let modules = kernel_builder::build(*arch)?;
        let folder = kernel_builder::target_dir().join("ptx").join(arch.name());
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        for module in &modules {
            let path = folder.join(module.name).with_extension("ptx");
            std::fs::write(&path, &module.text).with_context(|| path.display().to_string())?;
        }
        let usages = match &ptxas {
            Some(ptxas) => ptxas::assemble(ptxas, &modules)?,
            None => Vec::new(),
        };
        println!("{}", table(&modules, &usages));
        println!(
            "{}: {} modules in {}",
            arch.name(),
            modules.len(),
            folder.display()
        );
    }
    match ptxas {
        Some(_) => println!("registers for each target that the kernel is for; none is spilled"),
        None => println!("no ptxas: registers and spills not checked; type: cargo xtask setup"),
    }
    Ok(())
}

fn table(modules: &[Module], usages: &[ptxas::Usage]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    let mut header = vec!["entry".to_string(), "shared B".into()];
    let targets = Class::ALL.iter().flat_map(|class| class.targets());
    header.extend(targets.clone().map(|target| (*target).to_string()));
    let counts = Collectives::count("").named();
    header.extend(counts.map(|(instruction, _)| instruction.to_string()));
    let columns = header.len();
    table.set_header(header);
    for entry in modules.iter().flat_map(|module| &module.entries) {
        let kernel = entry.kernel;
        let mut row = vec![kernel.name.to_string(), kernel.shared_bytes().to_string()];
        row.extend(targets.clone().map(|target| {
            let mut usages = usages.iter();
            match usages.find(|u| u.entry == kernel.name && u.target == *target) {
                None => "-".into(),
                Some(usage) => usage.registers.to_string(),
            }
        }));
        row.extend(
            Collectives::count(&entry.body)
                .named()
                .map(|(_, count)| count.to_string()),
        );
        table.add_row(row);
    }
    for column in table.column_iter_mut().take(columns).skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
