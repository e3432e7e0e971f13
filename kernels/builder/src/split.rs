//! From the compiler's one text to a module for each kernel family, dtype, head dim and tile.

use crate::Error;
use kernels::catalog::{self, Arch, Kernel};

/// A PTX module, ready for the driver.
#[derive(Clone, Debug)]
pub struct Module {
    /// [`Kernel::module`] of its entries.
    pub name: &'static str,
    /// The whole text.
    pub text: String,
    /// Its kernels.
    pub entries: Vec<Entry>,
}

/// One entry point of a module.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The table's row.
    pub kernel: &'static Kernel,
    /// The body, from brace to brace.
    pub body: String,
}

/// Splits the PTX of all kernels of a target by [`Kernel::module`], and gives each entry the launch
/// bounds of the table: rustc has no attribute for them.
///
/// # Errors
/// [`Error::Contract`] if the text and the table differ in their entries.
pub fn split(text: &str, arch: Arch) -> Result<Vec<Module>, Error> {
    let header: String = text
        .lines()
        .filter(|line| is_module_scope(line))
        .flat_map(|line| [line, "\n"])
        .collect();
    let mut modules: Vec<Module> = Vec::new();
    for kernel in catalog::all().filter(|kernel| kernel.arch == arch) {
        let (parameters, body) = find_entry(text, kernel.name)
            .ok_or_else(|| Error::contract(kernel.name, "is not in the compiler's output"))?;
        let definition = format!(
            "\n.visible .entry {}(\n{parameters}\n)\n.maxntid {}\n.minnctapersm {}\n{body}\n",
            kernel.name,
            kernel.threads(),
            kernel.tile.blocks_per_sm,
        );
        let entry = Entry {
            kernel,
            body: body.into(),
        };
        match modules.iter_mut().find(|m| m.name == kernel.module()) {
            Some(module) => {
                module.text += &definition;
                module.entries.push(entry);
            }
            None => modules.push(Module {
                name: kernel.module(),
                text: header.clone() + &definition,
                entries: vec![entry],
            }),
        }
    }
    let extra =
        text.matches(".entry ").count() - modules.iter().map(|m| m.entries.len()).sum::<usize>();
    if extra != 0 {
        return Err(Error::contract(
            "the kernels crate",
            format!("{extra} entries are not in the table"),
        ));
    }
    Ok(modules)
}

/// Whether a line belongs into every module: the target, and variables.
fn is_module_scope(line: &str) -> bool {
    [
        ".version",
        ".target",
        ".address_size",
        ".extern .shared",
        ".global",
        ".visible .global",
        ".const",
    ]
    .iter()
    .any(|directive| line.starts_with(directive))
}

/// Parameter list and body of an entry, which the compiler writes as `NAME(`, the parameters, and
/// the body's braces each at the start of a line.
fn find_entry<'a>(text: &'a str, name: &str) -> Option<(&'a str, &'a str)> {
    let (_, rest) = text.split_once(&format!(".visible .entry {name}(\n"))?;
    let (parameters, rest) = rest.split_once("\n)\n")?;
    let end = rest.find("\n}\n")? + 2;
    Some((parameters, &rest[..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compiled(names: &[&str]) -> String {
        let entry = |name: &&str| {
            format!(
                "\t// .globl\t{name}\n.visible .entry {name}(\n\t.param .align 8 .b8 {name}_param_0[176]\n)\n{{\n\tret;\n\n}}\n"
            )
        };
        let head = ".version 7.0\n.target sm_80\n.address_size 64\n\n.extern .shared .align 1024 .b8 smem[];\n";
        head.to_string() + &names.iter().map(entry).collect::<String>()
    }

    fn names() -> Vec<&'static str> {
        catalog::all().map(|kernel| kernel.name).collect()
    }

    #[test]
    fn modules_hold_the_table() {
        let modules = split(&compiled(&names()), Arch::Sm80).unwrap();
        // A forward module for two kernels, of other families for one.
        let forward = names().iter().filter(|n| n.starts_with("forward")).count();
        assert_eq!(modules.len(), names().len() - forward / 2);
        for module in &modules {
            // Full and causal.
            let masks = if module.name.starts_with("forward") {
                2
            } else {
                1
            };
            assert_eq!(module.entries.len(), masks, "{}", module.name);
            assert!(module.text.starts_with(".version 7.0\n.target sm_80\n"));
            assert!(module.text.contains("smem[]"));
            for entry in &module.entries {
                assert_eq!(entry.body, "{\n\tret;\n\n}");
                let bounds = format!("\n)\n.maxntid {}\n", entry.kernel.threads());
                assert!(module.text.contains(&bounds));
            }
        }
    }

    #[test]
    fn missing_and_extra_entries_are_named() {
        let missing = split(&compiled(&names()[1..]), Arch::Sm80).unwrap_err();
        assert!(missing.to_string().contains(names()[0]));
        let extra = [names(), vec!["stray"]].concat();
        assert!(split(&compiled(&extra), Arch::Sm80).is_err());
    }
}
