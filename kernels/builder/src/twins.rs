//! Which kernels of bf16 are [written](twin) from their twins of f16, and these kernels, to be checked like others.

use crate::Error;
use crate::split::{EntryPoint, Module, find_entry};
use kernels::catalog::Spec;
use kernels::text::twin;
use std::collections::{HashMap, HashSet};

/// The kernels of bf16 that are written, by the names of their twins.
pub struct Twins {
    compiled: Vec<&'static Spec>,
    written: HashMap<String, &'static Spec>,
}

impl Twins {
    /// Finds the twins among kernels: pairs of f16 and bf16 with the same instance and launch bounds.
    pub fn of(kernels: &[&'static Spec]) -> Self {
        let traits = |kernel: &Spec| {
            let launch = kernel.launch;
            let bounds = (launch.threads, launch.blocks_per_sm, kernel.target);
            (kernel.name.to_owned(), kernel.instance.to_string(), bounds)
        };
        let all: HashSet<_> = kernels.iter().map(|&kernel| traits(kernel)).collect();
        let mut twins = Twins {
            compiled: Vec::new(),
            written: HashMap::new(),
        };
        for &kernel in kernels {
            let (name, instance, bounds) = traits(kernel);
            let [twin, of] = [name.replace("bf16", "f16"), instance.replace("Bf16", "F16")];
            if twin != name && all.contains(&(twin.clone(), of, bounds)) {
                twins.written.insert(twin, kernel);
            } else {
                twins.compiled.push(kernel);
            }
        }
        twins
    }

    /// The kernels that the compiler compiles, in their order.
    pub fn compiled(&self) -> impl Iterator<Item = &'static Spec> {
        self.compiled.iter().copied()
    }

    /// The module of the twins of a module's kernels, if they have twins, as [`twin::bf16`] writes it when a program loads it.
    ///
    /// # Errors
    /// [`Error::Twin`] if it cannot be written.
    pub fn module(&self, module: &Module) -> Result<Option<Module>, Error> {
        let twins = module.entries.iter();
        let twins: Option<Vec<_>> = twins
            .map(|entry| self.written.get(entry.kernel.name))
            .collect();
        let Some(twins) = twins else {
            return Ok(None);
        };
        let name = twins[0].module;
        let text = twin::bf16(&module.text, [module.name, name]).map_err(Error::Twin)?;
        let entries = twins.iter().map(|&&kernel| {
            let (_, body) = find_entry(&text, kernel.name)
                .ok_or_else(|| Error::contract(kernel.name, "is not in its module's text"))?;
            let body = body.to_owned();
            Ok(EntryPoint { kernel, body })
        });
        Ok(Some(Module {
            entries: entries.collect::<Result<_, Error>>()?,
            name,
            target: module.target,
            lines: module.lines.clone(),
            twin_of: Some(module.name),
            text,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Compiler, Package, Session, split};

    /// The compiler writes the same, source lines aside.
    #[test]
    fn written_kernels_are_the_compiled_ones() {
        let package = Package::kernels();
        let all: HashMap<_, _> = package.kernels.iter().map(|k| (k.name, *k)).collect();
        let twins = Twins::of(&package.kernels);
        let compiler = Compiler::find().expect("a compiler");
        let session = Session::new(&compiler, &package).expect("libraries");
        let modules = |name: &str| {
            let kernels = [all[name]];
            split(&session.compile(&kernels).expect("compiled"), &kernels).expect("split")
        };
        for name in [
            "backward_f16_prepare",
            "merge_backward_f16",
            "decode_f16_d32",
            "hopper_packed_f16_d64",
        ] {
            let twin = name.replace("f16", "bf16");
            let written = twins.module(&modules(name)[0]).expect("written");
            let written = written.expect("a twin");
            let compiled = &modules(&twin)[0];
            assert_eq!(written.name, compiled.name);
            assert_eq!(written.entries[0].kernel.name, twin);
            assert!(written.text == compiled.text, "{twin}");
            assert!(written.entries[0].body == compiled.entries[0].body);
        }
    }

    /// All kernels of bf16 have a twin, in modules that have the same kernels.
    #[test]
    fn no_kernel_of_bf16_is_compiled() {
        let twins = Twins::of(&Package::kernels().kernels);
        let mut names = twins.compiled().map(|kernel| kernel.name);
        assert!(names.all(|name| !name.contains("bf16")));
    }
}
