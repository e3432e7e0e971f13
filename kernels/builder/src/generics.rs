//! The generics of kernels, as their sources declare them.

use crate::Error;
use kernels::catalog::{Instance, Spec};
use std::path::Path;

/// Checks that an instance gives a kernel as many types as it declares, and its numbers by their names, in their order.
///
/// # Errors
/// [`Error::Contract`] if not, or if none of the sources declares the kernel. Sources have their paths in their crates.
pub fn check<'a>(
    kernel: &Spec,
    sources: impl IntoIterator<Item = (&'a Path, &'a [String])>,
) -> Result<(), Error> {
    let Instance {
        module,
        element,
        types,
        generic: (name, numbers),
        ..
    } = &kernel.instance;
    let folder = module.trim_start_matches("kernels::").replace("::", "/");
    let found = sources.into_iter().find_map(|(path, lines)| {
        let is_inside = path.with_extension("").starts_with(&folder);
        is_inside.then(|| declared(lines, name)).flatten()
    });
    let rule = |rule| Error::contract(kernel.name, rule);
    let declared = found.ok_or_else(|| rule(format!("{module} declares no {name}")))?;
    let numbers = numbers.iter().map(|(number, _)| *number);
    let types = types.len() + usize::from(element.is_some());
    let given = (types, numbers.collect::<Vec<_>>().join(", "));
    match given == declared {
        true => Ok(()),
        false => Err(rule(format!(
            "gives {given:?} to {module}::{name}, which declares {declared:?}"
        ))),
    }
}

/// How many types a kernel declares, and the names of its numbers.
fn declared(lines: &[String], name: &str) -> Option<(usize, String)> {
    let start = format!("pub unsafe fn {name}<");
    let place = lines.iter().position(|line| line.starts_with(&start))?;
    let text = lines[place..].join(" ");
    let (generics, _) = text[start.len()..].split_once(">(")?;
    let generics = generics.split(',').map(str::trim);
    let generics = generics.filter(|generic| !generic.is_empty());
    let (numbers, types): (Vec<_>, Vec<_>) = generics.partition(|part| part.starts_with("const "));
    let names = numbers
        .iter()
        .filter_map(|number| number["const ".len()..].split(':').next());
    Some((types.len(), names.collect::<Vec<_>>().join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::catalog::{Dtype, Launch, Target};
    use kernels::generic;

    #[test]
    fn numbers_have_the_names_of_the_kernel() {
        let source = "pub unsafe fn sm80<\nE: Element,\nM: Mask<Keys = Prefix>,\nconst W: u32,\nconst S: usize,\n>(";
        let lines: Vec<_> = source.lines().map(str::to_owned).collect();
        let check = |module: &str, types: &[&str], generic| {
            let instance = Instance::new(("Params", module), Dtype::F16, types, generic);
            let kernel = Spec::new(
                "kernel".into(),
                Target::SM80,
                Launch::new(1, 1, 0),
                instance,
            );
            let path = Path::new("attention/forward/sm80.rs");
            check(&kernel, [(path, &lines[..])])
        };
        let (forward, types) = ("attention::forward", &["Full"][..]);
        let declared = || generic! { sm80: W = 4, S = 2 };
        for module in [forward, "kernels::attention", "attention::forward::sm80"] {
            check(module, types, declared()).expect("as declared");
        }
        for (module, types, generic) in [
            (forward, types, generic! { sm80: S = 4, W = 2 }),
            (forward, types, generic! { sm80: W = 4 }),
            (forward, types, generic! { sm90: W = 4, S = 2 }),
            (forward, &types[1..], declared()),
            ("attention::backward", types, declared()),
        ] {
            check(module, types, generic).expect_err("another");
        }
    }
}
