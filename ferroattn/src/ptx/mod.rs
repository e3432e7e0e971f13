//! The PTX that the build embeds, compressed: `build.rs` compiles it from the `kernels` crate, with the feature `ptx`.

#[cfg(feature = "ptx")]
mod unpack;

#[cfg(feature = "ptx")]
include!(concat!(env!("OUT_DIR"), "/modules.rs"));

#[cfg(not(feature = "ptx"))]
pub(crate) const COMPILED_MODULES: Modules = None;

/// Without the feature `ptx` no module has a text.
#[cfg(not(feature = "ptx"))]
mod unpack {
    pub(super) fn text(_: &super::Place) -> Option<String> {
        None
    }

    pub(super) use text as marked;
}

/// The modules that a crate of kernels embeds, in groups, as its build script leaves them; `None` if there was no compiler
/// for them.
pub type Modules = Option<&'static [Group]>;

/// Modules that are compressed together: their names, each with that of the module of bf16 that is
/// [written](kernels::text::twin::bf16) from it, if there is one; and their texts, then their
/// [source lines](kernels::text::lines), with a NUL after each, by the method of xz.
pub type Group = (
    &'static [(&'static str, Option<&'static str>)],
    &'static [u8],
);

/// Whether this crate was built with the feature `ptx`, and a compiler for the kernels.
pub const COMPILED: bool = COMPILED_MODULES.is_some();

/// The PTX text of a [module](kernels::catalog::Spec::module) of the catalog; `None` if there is no such module or
/// the kernels were not compiled.
pub fn module(name: &str) -> Option<String> {
    text(COMPILED_MODULES, name)
}

/// The text of one of these modules; `None` if there is no such module or this crate was built without the feature `ptx`.
///
/// # Panics
/// If a text is not what the build script wrote.
pub fn text(modules: Modules, name: &str) -> Option<String> {
    unpack::text(&Place::find(modules, name)?)
}

/// The text of one of these modules, with [marks](kernels::text::lines) that name the source lines of its instructions.
///
/// # Panics
/// If a text is not what the build script wrote.
pub fn marked(modules: Modules, name: &str) -> Option<String> {
    unpack::marked(&Place::find(modules, name)?)
}

/// The name of one of these modules, as they have it.
pub(crate) fn name(modules: Modules, name: &str) -> Option<&'static str> {
    Place::find(modules, name).map(|place| place.name)
}

/// Where a module is.
#[cfg_attr(
    not(feature = "ptx"),
    expect(dead_code, reason = "nothing is unpacked")
)]
struct Place {
    /// Its name.
    name: &'static str,
    /// The name of the module that it is written from, if it is of bf16.
    twin_of: Option<&'static str>,
    /// Its group, and its index there.
    group: Group,
    index: usize,
}

impl Place {
    fn find(modules: Modules, name: &str) -> Option<Self> {
        modules?.iter().find_map(|&group| {
            let mut names = group.0.iter().enumerate();
            names.find_map(|(index, &(own, twin))| {
                let is_twin = twin == Some(name);
                (is_twin || own == name).then_some(Place {
                    name: twin.filter(|_| is_twin).unwrap_or(own),
                    twin_of: is_twin.then_some(own),
                    group,
                    index,
                })
            })
        })
    }
}

/// A group of modules, as a build script leaves it.
#[cfg(test)]
pub(crate) fn group(names: &[(&'static str, Option<&'static str>)], texts: &[&str]) -> Modules {
    use kernels::text::lines;
    use std::io::Write;
    let (texts, tables): (Vec<_>, Vec<_>) = texts.iter().map(|text| lines::take(text)).unzip();
    let parts: String = texts
        .iter()
        .chain(&tables)
        .flat_map(|part| [part, "\0"])
        .collect();
    let options = lzma_rust2::LzmaOptions::default();
    let writer = lzma_rust2::LzmaWriter::new_use_header(Vec::new(), &options, None);
    let mut writer = writer.expect("memory");
    writer.write_all(parts.as_bytes()).expect("memory");
    let compressed: &[u8] = writer.finish().expect("memory").leak();
    Some(vec![(&*names.to_vec().leak(), compressed)].leak())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::text::{early, lines};

    const NAMES: [(&str, Option<&str>); 3] = [("a", None), ("b_f16", Some("b_bf16")), ("c", None)];

    fn modules() -> Modules {
        let texts = [
            "a;\n",
            "//@ b.rs:7\n.entry b_f16()\nfma.rn.f16x2 b;\n",
            "c;\n//@ c.rs:2\nret;\n",
        ];
        group(&NAMES, &texts)
    }

    #[test]
    fn each_module_of_a_group_has_its_text_and_its_lines() {
        let found = |name: &str| [text(modules(), name), marked(modules(), name)];
        let both = |[text, marked]: [&str; 2]| [Some(text.to_owned()), Some(marked.to_owned())];
        assert_eq!(found("a"), both(["a;\n", "a;\n"]));
        assert_eq!(found("c"), both(["c;\nret;\n", "c;\n//@ c.rs:2\nret;\n"]));
        let f16 = ".entry b_f16()\nfma.rn.f16x2 b;\n";
        let bf16 = ".entry b_bf16()\nfma.rn.bf16x2 b;\n";
        for (name, text) in [("b_f16", f16), ("b_bf16", bf16)] {
            let marked = format!("//@ b.rs:7\n{text}");
            assert_eq!(found(name), both([text, &marked]));
        }
        assert_eq!(found("b"), [None, None]);
    }

    #[test]
    fn names_are_the_modules_own() {
        for known in ["a", "b_f16", "b_bf16", "c"] {
            assert_eq!(name(modules(), known), Some(known));
        }
        assert_eq!(name(modules(), "d"), None);
        assert_eq!(name(None, "a"), None);
    }

    #[test]
    fn instructions_of_a_kernel_name_their_source() {
        for name in ["forward_f16_d64", "forward_bf16_d64"] {
            let found = marked(COMPILED_MODULES, name);
            assert_eq!(found.is_some(), COMPILED);
            if let Some(found) = found {
                let main_loop = "\n//@ kernels/src/attention/forward/sm80.rs:";
                assert!(found.contains(main_loop));
                assert_eq!(Some(lines::take(&found).0), module(name));
            }
        }
    }

    /// Twins in the whole catalog: what a program loads for each kernel has the kernel, and may be launched early.
    #[test]
    fn every_kernel_of_the_catalog_is_in_its_module() {
        for kernel in kernels::catalog::KERNELS.iter() {
            let text = module(kernel.module);
            assert_eq!(text.is_some(), COMPILED, "{}", kernel.module);
            let entry = format!(".entry {}(", kernel.name);
            assert!(
                text.is_none_or(|text| text.contains(&entry) && early(&text).is_some()),
                "{entry}"
            );
        }
    }
}
