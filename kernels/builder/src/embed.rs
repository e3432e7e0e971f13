//! Modules as a crate includes them in its program.

use crate::{Error, Module, Package, build, cache, workspace};
use flate2::{Compression, write::ZlibEncoder};
use std::io::Write;
use std::path::{Path, PathBuf};

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
    let table = format!("pub(crate) const COMPILED_MODULES: Option<&[(&str, &[u8])]> = {table};\n");
    cache::write(&folder.join(TABLE), table)
}

/// All that the build script of a crate of kernels does: [builds](build) a package and [embeds](embed) its modules in `OUT_DIR`.
/// Without a compiler it warns, and embeds none. If it fails, cargo shows why.
pub fn script(package: &Package) {
    let used = package.uses.iter().map(|name| workspace().join(name));
    for folder in used.chain([package.folder.clone()]) {
        println!("cargo::rerun-if-changed={}", folder.join("src").display());
    }
    let toolchain = workspace().join("rust-toolchain.toml");
    if toolchain.exists() {
        println!("cargo::rerun-if-changed={}", toolchain.display());
    }
    for variable in ["KERNEL_RUSTC", "PATH"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let left = match build(package) {
        Ok(modules) => embed(Some(&modules), &out),
        Err(error @ Error::NoCompiler) => {
            println!("cargo::warning={error}; until then attention runs on the CPU only");
            embed(None, &out)
        }
        Err(error) => Err(error),
    };
    if let Err(error) = left {
        for line in error.to_string().lines() {
            println!("cargo::error={line}");
        }
        std::process::exit(1);
    }
}

fn compressed(text: &str) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    let written = encoder.write_all(text.as_bytes());
    let finished = written.and_then(|()| encoder.finish());
    finished.expect("memory takes what is written")
}
