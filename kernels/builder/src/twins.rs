//! Kernels of bf16, written from their twins of f16: half the compiler's work.
//!
//! The two differ in instructions that name the type, in constants of the type, and in their names.

use crate::split::{Entry, Module};
use kernels::catalog::Spec;
use std::collections::{HashMap, HashSet};

/// Texts of f16 kernels and what bf16 has in their place: instructions of `kernels/src/ptx`.
const INSTRUCTIONS: [(&str, &str); 7] = [
    // Products by mma.sync and wgmma.
    (".f32.f16.f16", ".f32.bf16.bf16"),
    ("cvt.rn.f16x2.f32", "cvt.rn.bf16x2.f32"),
    ("fma.rn.f16x2", "fma.rn.bf16x2"),
    // ptx/convert.rs.
    (
        "mov.b32 exponents, 0x7c007c00",
        "mov.b32 exponents, 0x7f807f80",
    ),
    (
        "mov.b32 exponent_lsbs, 0x04000400",
        "mov.b32 exponent_lsbs, 0x00800080",
    ),
    ("mov.b32 one, 0x3c00", "mov.b32 one, 0x3f80"),
    ("cvt.f32.f16 wide, half", "mov.b32 wide, {zero, half}"),
];

/// The kernels of bf16 that are written, by the names of their twins.
pub struct Twins {
    compiled: Vec<&'static dyn Spec>,
    written: HashMap<String, &'static dyn Spec>,
}

impl Twins {
    /// Finds the twins among kernels: pairs of f16 and bf16 with the same instance and launch bounds.
    pub fn of(kernels: &[&'static dyn Spec]) -> Self {
        let traits = |kernel: &dyn Spec| {
            let bounds = (kernel.threads(), kernel.blocks_per_sm(), kernel.target());
            (kernel.name(), kernel.instance(), bounds)
        };
        let all: HashSet<_> = kernels.iter().map(|&kernel| traits(kernel)).collect();
        let mut twins = Twins {
            compiled: Vec::new(),
            written: HashMap::new(),
        };
        for &kernel in kernels {
            let (name, instance, bounds) = traits(kernel);
            let twin = (
                name.replace("bf16", "f16"),
                instance.replace("Bf16", "F16"),
                bounds,
            );
            if twin.0 != name && all.contains(&twin) {
                twins.written.insert(twin.0, kernel);
            } else {
                twins.compiled.push(kernel);
            }
        }
        twins
    }

    /// The kernels that the compiler compiles, in their order.
    pub fn compiled(&self) -> impl Iterator<Item = &'static dyn Spec> {
        self.compiled.iter().copied()
    }

    /// The module of the twins of a module's kernels.
    pub fn module(&self, module: &Module) -> Option<Module> {
        let twins = module.entries.iter().map(|entry| {
            let &kernel = self.written.get(&entry.name)?;
            Some(Entry {
                name: kernel.name(),
                kernel,
                body: bf16(&entry.body),
            })
        });
        let twins: Vec<_> = twins.collect::<Option<_>>()?;
        let mut text = bf16(&module.text);
        for (entry, twin) in module.entries.iter().zip(&twins) {
            // The entry point's definition, and its parameter.
            for (before, after) in [(".entry ", "("), ("", "_param_")] {
                let [from, to] = [entry, twin].map(|of| format!("{before}{}{after}", of.name));
                text = text.replace(&from, &to);
            }
        }
        Some(Module {
            name: twins[0].kernel.module(),
            target: module.target,
            text,
            entries: twins,
        })
    }
}

/// The text of f16 kernels with bf16's instructions.
fn bf16(text: &str) -> String {
    let replace = |text: String, &(f16, bf16): &(&str, &str)| text.replace(f16, bf16);
    INSTRUCTIONS.iter().fold(text.to_owned(), replace)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Compiler, Package, Session, split};

    /// The compiler writes the same, source lines aside.
    #[test]
    fn written_kernels_are_the_compiled_ones() {
        let package = Package::kernels();
        let all: HashMap<_, _> = package.kernels.iter().map(|k| (k.name(), *k)).collect();
        let twins = Twins::of(&package.kernels);
        let compiler = Compiler::find().expect("a compiler");
        let session = Session::new(&compiler, &package).expect("libraries");
        let modules = |name: &str| {
            let kernels = [all[name]];
            split(&session.compile(&kernels).expect("compiled"), &kernels).expect("split")
        };
        let code = |module: &Module| {
            let lines = module.text.lines().filter(|line| !line.contains("//@"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        for name in [
            "backward_f16_prepare",
            "decode_f16_d32",
            "hopper_packed_f16_d64",
        ] {
            let twin = name.replace("f16", "bf16");
            let written = twins.module(&modules(name)[0]).expect("a twin");
            let compiled = &modules(&twin)[0];
            assert_eq!(written.name, compiled.name);
            assert_eq!(written.entries[0].name, twin);
            assert!(code(&written) == code(compiled), "{twin}");
        }
    }

    /// All kernels of bf16 have a twin, in modules that have the same kernels.
    #[test]
    fn no_kernel_of_bf16_is_compiled() {
        let twins = Twins::of(&Package::kernels().kernels);
        assert!(
            twins
                .compiled()
                .all(|kernel| !kernel.name().contains("bf16"))
        );
    }
}
