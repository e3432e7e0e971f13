//! Modules as a crate includes them in its program.

use crate::{Error, Module, cache};
use flate2::{Compression, write::ZlibEncoder};
use std::io::Write;
use std::path::Path;

/// The file that [`embed`] writes for `include!`.
pub const TABLE: &str = "modules.rs";

/// Writes each module, compressed, to a folder, and the [`TABLE`] of all: a `const COMPILED_MODULES` of names and
/// compressed texts, which is `None` without modules.
///
/// # Errors
/// If a file cannot be written.
pub fn embed(modules: Option<&[Module]>, folder: &Path) -> Result<(), Error> {
    let mut rows = String::new();
    for module in modules.unwrap_or_default() {
        let file = format!("{}.ptx.z", module.name);
        cache::write(&folder.join(&file), compressed(&module.text))?;
        rows += &format!("    ({:?}, include_bytes!({file:?})),\n", module.name);
    }
    let table = match modules {
        Some(_) => format!("Some(&[\n{rows}])"),
        None => "None".to_owned(),
    };
    let table = format!("const COMPILED_MODULES: Option<&[(&str, &[u8])]> = {table};\n");
    cache::write(&folder.join(TABLE), table)
}

fn compressed(text: &str) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    let written = encoder.write_all(text.as_bytes());
    let finished = written.and_then(|()| encoder.finish());
    finished.expect("memory takes what is written")
}
