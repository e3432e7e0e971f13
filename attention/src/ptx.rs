//! The PTX that the build embeds, compressed: `build.rs` compiles it from the `kernels` crate.

use flate2::read::ZlibDecoder;
use std::io::Read;

include!(concat!(env!("OUT_DIR"), "/modules.rs"));

/// The modules that a crate of kernels embeds, names and compressed texts as its build script leaves them; `None` if there
/// was no compiler for them.
pub type Modules = Option<&'static [(&'static str, &'static [u8])]>;

/// Whether there was a compiler for the kernels when this crate was built.
pub const COMPILED: bool = COMPILED_MODULES.is_some();

/// The PTX text of a [module](kernels::catalog::Spec::module) of the catalog; `None` if there is no such module or
/// the kernels were not compiled.
pub fn module(name: &str) -> Option<String> {
    text(COMPILED_MODULES, name)
}

/// The text of one of these modules.
///
/// # Panics
/// If a text is not what the build script wrote.
pub fn text(modules: Modules, name: &str) -> Option<String> {
    let (_, compressed) = modules?.iter().find(|(module, _)| *module == name)?;
    let mut text = String::new();
    let read = ZlibDecoder::new(*compressed).read_to_string(&mut text);
    read.expect("the build compressed a text");
    Some(text)
}
