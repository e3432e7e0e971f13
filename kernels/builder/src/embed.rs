//! Modules as a crate includes them in its program.

use crate::{Error, Golden, Module, Package, build, cache, workspace};
use lzma_rust2::{LzmaOptions, LzmaWriter, MfType};
use rayon::prelude::*;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The file that [`embed`] writes for `include!`.
pub const TABLE: &str = "modules.rs";

/// Bytes of text that are compressed together, at most, unless one module has more: modules share much, and one is
/// unpacked with those before it, in about 10 ms.
const GROUP: usize = 3 << 19;

/// Writes modules, compressed in groups, to a folder, and the [`TABLE`] of all: a `static COMPILED_MODULES`, which is `None`
/// without modules.
///
/// A row of the table has the names of a group's modules, each with that of its [twin](crate::Twins) if there is one, and
/// their texts, then their [source lines](kernels::text::lines). Each ends with a NUL.
///
/// # Errors
/// If a file cannot be written.
pub fn embed(modules: Option<&[Module]>, folder: &Path) -> Result<(), Error> {
    let all = modules.unwrap_or_default();
    let mut groups: Vec<Vec<&Module>> = Vec::new();
    let mut bytes = 0;
    for module in all.iter().filter(|module| module.twin_of.is_none()) {
        bytes += module.text.len();
        match groups.last_mut() {
            Some(group) if bytes <= GROUP => group.push(module),
            _ => {
                groups.push(vec![module]);
                bytes = module.text.len();
            }
        }
    }
    let rows = groups.par_iter().with_max_len(1).map(|group| {
        let file = format!("{}.ptx.lzma", group[0].name);
        cache::write(&folder.join(&file), compressed(group)?)?;
        let twin = |of: &Module| {
            let is_twin = |module: &&Module| module.twin_of == Some(of.name);
            all.iter().find(is_twin).map(|twin| twin.name)
        };
        let names: Vec<_> = group.iter().map(|of| (of.name, twin(of))).collect();
        Ok(format!("    (&{names:?}, include_bytes!({file:?})),\n"))
    });
    let rows: String = rows.collect::<Result<_, Error>>()?;
    let table = match modules {
        Some(_) => format!("Some(&[\n{rows}])"),
        None => "None".to_owned(),
    };
    let table = format!(
        "#[allow(clippy::type_complexity, reason = \"crates that include it have no name for it\")]\n\
         pub(crate) static COMPILED_MODULES: Option<&[(&[(&str, Option<&str>)], &[u8])]> = {table};\n"
    );
    cache::write(&folder.join(TABLE), table)
}

/// All that the build script of a crate of kernels does: [builds](build) a package and [embeds](embed) its modules in `OUT_DIR`.
/// Without a compiler it warns, and embeds none. If it fails, cargo shows why.
pub fn script(package: &Package) {
    let used = package.uses.iter().map(|name| workspace().join(name));
    for folder in used.chain([package.folder.clone()]) {
        println!("cargo::rerun-if-changed={}", folder.join("src").display());
        let golden = Golden::path(&folder);
        if golden.exists() {
            println!("cargo::rerun-if-changed={}", golden.display());
        }
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

/// The texts of a group of modules, then their source lines, compressed by the method of xz.
fn compressed(group: &[&Module]) -> Result<Vec<u8>, Error> {
    let texts = group.iter().map(|module| &module.text);
    let lines = group.iter().map(|module| &module.lines);
    let parts: String = texts.chain(lines).flat_map(|part| [part, "\0"]).collect();
    let options = LzmaOptions {
        dict_size: parts.len().next_power_of_two().max(1 << 12) as u32,
        // Text has no period of 4 bytes; long matches need no longer search.
        pb: 0,
        mf: MfType::Bt4,
        nice_len: 273,
        depth_limit: 16,
        ..LzmaOptions::with_preset(6)
    };
    let made = cache::folder((&parts, "lzma", format!("{options:?}")), |folder| {
        let compress = || {
            let mut writer = LzmaWriter::new_use_header(Vec::new(), &options, None)?;
            writer.write_all(parts.as_bytes())?;
            writer.finish()
        };
        let compressed = compress().expect("memory takes what is written");
        cache::write(&folder.join("lzma"), compressed)
    })?;
    let file = made.join("lzma");
    std::fs::read(&file).map_err(Error::file(file))
}
