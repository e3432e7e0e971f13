//! The generics of kernels, as their sources declare them.

use crate::Error;
use kernels::catalog::Spec;
use std::path::Path;

/// Checks that an instance gives a kernel as many types as it declares, and its numbers by their names, in their order.
///
/// # Errors
/// [`Error::Contract`] if not, or if none of the sources declares the kernel. Sources have their paths in their crates.
pub fn check<'a>(
    kernel: &dyn Spec,
    sources: impl IntoIterator<Item = (&'a Path, &'a [String])>,
) -> Result<(), Error> {
    let instance = kernel.instance();
    let path = instance.kernel.trim_start_matches("kernels::");
    let (module, name) = path.rsplit_once("::").unwrap_or(("", path));
    let folder = module.replace("::", "/");
    let found = sources.into_iter().find_map(|(path, lines)| {
        let is_inside = path.starts_with(&folder) || path.with_extension("") == Path::new(&folder);
        is_inside.then(|| declared(lines, name)).flatten()
    });
    let rule = |rule| Error::contract(&kernel.name(), rule);
    let declared = found.ok_or_else(|| rule(format!("no source declares {}", instance.kernel)))?;
    let numbers = instance.numbers.iter().map(|(number, _)| *number);
    let numbers = numbers.collect::<Vec<_>>().join(", ");
    let given = (instance.types.len(), numbers);
    match given == declared {
        true => Ok(()),
        false => Err(rule(format!(
            "has {given:?}, and {path} declares {declared:?}"
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
    use kernels::catalog::{Instance, Launch};
    use kernels::numbers;

    struct Kernel(Instance);

    impl Spec for Kernel {
        fn name(&self) -> String {
            "kernel".into()
        }

        fn launch(&self) -> Launch {
            unreachable!("it is not launched")
        }

        fn instance(&self) -> Instance {
            self.0.clone()
        }
    }

    #[test]
    fn numbers_have_the_names_of_the_kernel() {
        let source = "pub unsafe fn sm80<\nE: Element,\nM: Mask<Keys = Prefix>,\nconst W: u32,\nconst S: usize,\n>(";
        let lines: Vec<_> = source.lines().map(str::to_owned).collect();
        let check = |kernel: &str, types: &[&str], numbers| {
            let kernel = Kernel(Instance::new("Params", kernel, types, numbers));
            let path = Path::new("attention/forward/sm80.rs");
            check(&kernel, [(path, &lines[..])]).map_err(|error| error.to_string())
        };
        let (kernel, types) = ("attention::forward::sm80", ["F16", "Full"]);
        for module in [
            "attention::forward",
            "kernels::attention",
            "attention::forward::sm80",
        ] {
            let kernel = format!("{module}::sm80");
            check(&kernel, &types, numbers! { W = 4, S = 2 }).expect("as declared");
        }
        for (kernel, types, numbers) in [
            (kernel, &types[..], numbers! { S = 4, W = 2 }),
            (kernel, &types, numbers! { W = 4 }),
            (kernel, &types[1..], numbers! { W = 4, S = 2 }),
            (
                "attention::backward::sm80",
                &types,
                numbers! { W = 4, S = 2 },
            ),
            (
                "attention::forward::sm90",
                &types,
                numbers! { W = 4, S = 2 },
            ),
        ] {
            check(kernel, types, numbers).expect_err("another");
        }
    }
}
