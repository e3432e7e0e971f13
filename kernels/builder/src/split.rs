//! From the compiler's text to entries, and from these to modules.

use crate::Error;
use kernels::abi::Switch;
use kernels::catalog::{Spec, Target};
use kernels::text::lines;

/// A PTX module, ready for the driver.
#[derive(Clone)]
pub struct Module {
    /// [`Spec::module`] of its entries.
    pub name: &'static str,
    /// Target of its entries.
    pub target: Target,
    /// The whole text.
    pub text: String,
    /// The table of its [source lines](lines).
    pub lines: String,
    /// The name of its twin of f16, if the text is [written](crate::Twins) from the twin's.
    pub twin_of: Option<&'static str>,
    /// Its kernels.
    pub entries: Vec<EntryPoint>,
}

/// One entry point of a module.
#[derive(Clone)]
pub struct EntryPoint {
    /// The specification.
    pub kernel: &'static Spec,
    /// The body, from brace to brace.
    pub body: String,
}

/// Dynamic shared memory, so that tiles over the 48 KB that a static allocation may have are possible.
const SHARED: &str = ".extern .shared .align 1024 .b8 smem[];\n";

/// Splits the PTX of kernels of a target by [`Spec::module`]. Gives each module its shared memory, and
/// each entry the launch bounds of its specification: rustc has no attribute for them.
///
/// # Errors
/// [`Error::Contract`] if the entries of the text are not these kernels.
pub fn split(text: &str, kernels: &[&'static Spec]) -> Result<Vec<Module>, Error> {
    let header = text.lines().filter(|line| is_module_scope(line));
    let header: String = header
        .flat_map(|line| [line, "\n"])
        .chain([SHARED])
        .collect();
    let mut modules: Vec<Module> = Vec::new();
    for &kernel in kernels {
        let (name, module, launch) = (kernel.name, kernel.module, kernel.launch);
        let (parameters, body) = find_entry(text, name)
            .ok_or_else(|| Error::contract(name, "is not in the compiler's output"))?;
        let parameters = match kernel.takes_maps() {
            true => parameters.replacen(".align 8", ".align 64", 1),
            false => parameters.into(),
        };
        let body = with_switches(body);
        let definition = format!(
            ".visible .entry {name}(\n{parameters}\n)\n.maxntid {}\n.minnctapersm {}\n{body}\n",
            launch.threads, launch.blocks_per_sm,
        );
        let entry = EntryPoint {
            kernel,
            body: lines::take(&body).0.trim_end().to_owned(),
        };
        match modules.iter_mut().find(|m| m.name == module) {
            Some(module) => {
                module.text += &definition;
                module.entries.push(entry);
            }
            None => modules.push(Module {
                name: module,
                target: kernel.target,
                text: header.clone() + &definition,
                lines: String::new(),
                twin_of: None,
                entries: vec![entry],
            }),
        }
    }
    let extra = text.matches(".entry ").count() - kernels.len();
    if extra != 0 {
        let rule = format!("{extra} entries are not in the catalog");
        return Err(Error::contract("the crate of kernels", rule));
    }
    for module in &mut modules {
        (module.text, module.lines) = lines::take(&module.text);
    }
    Ok(modules)
}

/// A body that sets the [switches](kernels::abi::Switch) which it reads, as it begins: all off.
fn with_switches(body: &str) -> String {
    let names = Switch::ALL.iter().map(|switch| switch.constant().0);
    let mut names: Vec<_> = names.collect();
    names.dedup();
    let is_read = |name: &&str| body.contains(&format!(", switch_{name};"));
    let set = |name| format!("\n.reg .b32 switch_{name}; mov.b32 switch_{name}, 0;");
    let set: String = names.into_iter().filter(is_read).map(set).collect();
    body.replacen('{', &format!("{{{set}"), 1)
}

/// Whether a line belongs into every module: the target, and variables.
fn is_module_scope(line: &str) -> bool {
    let line = line.trim_start_matches(".visible ");
    let directives = [".version", ".target", ".address_size", ".global", ".const"];
    directives.iter().any(|start| line.starts_with(start))
}

/// Parameter list and body of an entry: `NAME(`, the parameters, and braces around the body, each at the start of a line.
pub(crate) fn find_entry<'a>(text: &'a str, name: &str) -> Option<(&'a str, &'a str)> {
    let (_, rest) = text.split_once(&format!(".visible .entry {name}(\n"))?;
    let rest = rest.split("\n.visible ").next()?;
    let (parameters, rest) = rest.split_once("\n)\n")?;
    Some((parameters, rest[rest.find("{\n")?..].trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Package;

    fn compiled(kernels: &[&Spec]) -> String {
        let entry = |kernel: &&Spec| {
            let name = kernel.name;
            format!(
                ".visible .entry {name}(\n.param .align 8 .b8 {name}_param_0[176]\n)\n{{\n//@ a.rs:1\n{{\nret;\n}}\n}}\n"
            )
        };
        let head = ".version 7.0\n.target sm_80\n.address_size 64\n";
        head.to_string() + &kernels.iter().map(entry).collect::<String>()
    }

    #[test]
    fn modules_hold_the_catalog() {
        let kernels = Package::kernels().kernels;
        let modules = split(&compiled(&kernels), &kernels).unwrap();
        let entries = modules.iter().map(|module| module.entries.len());
        assert_eq!(entries.sum::<usize>(), kernels.len());
        for module in &modules {
            // Full and causal; packed rows and options have one kernel for all masks.
            let split = ["forward", "hopper", "backward_hopper", "fp8"];
            let is_split = split.iter().any(|f| module.name.starts_with(f));
            let has_one = module.name.contains("packed") || module.name.contains("optional");
            let masks = if is_split && !has_one { 2 } else { 1 };
            assert_eq!(module.entries.len(), masks, "{}", module.name);
            let takes_maps = module.entries[0].kernel.takes_maps();
            assert_eq!(module.text.contains(".param .align 64"), takes_maps);
            assert!(module.text.starts_with(".version 7.0\n.target sm_80\n"));
            assert!(module.text.contains("smem[]"));
            for entry in &module.entries {
                assert_eq!(entry.body, "{\n{\nret;\n}\n}");
                let bounds = format!("\n)\n.maxntid {}\n", entry.kernel.launch.threads);
                assert!(module.text.contains(&bounds));
            }
        }
    }

    #[test]
    fn missing_and_extra_entries_are_named() {
        let kernels = Package::kernels().kernels;
        let missing = split(&compiled(&kernels[1..]), &kernels).err().unwrap();
        assert!(missing.to_string().contains(kernels[0].name));
        assert!(split(&compiled(&kernels), &kernels[1..]).is_err());
    }
}
