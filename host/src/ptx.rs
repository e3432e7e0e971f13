//! The PTX that the build embeds: `build.rs` compiles it from the `kernels` crate.

include!(concat!(env!("OUT_DIR"), "/modules.rs"));

/// Whether there was a compiler for the kernels when this crate was built.
pub const COMPILED: bool = COMPILED_MODULES.is_some();

/// The PTX text of a [module](kernels::table::Kernel::module) of the kernel table; `None` if there
/// is no such module or the kernels were not compiled.
#[must_use]
pub fn module(name: &str) -> Option<&'static str> {
    let mut modules = COMPILED_MODULES?.iter();
    modules.find_map(|(module, text)| (*module == name).then_some(*text))
}
