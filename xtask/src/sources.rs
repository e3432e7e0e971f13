//! A digest of the sources that tests of devices depend on, those of kernels aside: their PTX has digests of its own.

use crate::shell;
use anyhow::{Context, Result};
use std::ffi::OsStr;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

/// Folders and files from the workspace's root. The command is not among them: only tests on GPUs use its driver.
const SOURCES: &[&str] = &[
    "Cargo.lock",
    "Cargo.toml",
    "rust-toolchain.toml",
    "ferroattn/Cargo.toml",
    "ferroattn/build.rs",
    "ferroattn/src",
    "emulator/Cargo.toml",
    "emulator/src",
    "kernels/Cargo.toml",
    "kernels/src",
    "ladder/Cargo.toml",
    "ladder/build.rs",
    "ladder/src",
    "tests",
];

/// The declaration before a module that is compiled to PTX alone.
const PTX_ONLY: &str = "#[cfg(target_arch = \"nvptx64\")]";

/// A digest of the compiler's version and of all [`SOURCES`].
pub fn digest() -> Result<String> {
    let mut digest = DefaultHasher::new();
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = shell::output(&mut shell::command(rustc, "--version --verbose"))?;
    version.hash(&mut digest);
    for source in SOURCES {
        add(Path::new(source), &mut digest)?;
    }
    Ok(format!("{:016x}", digest.finish()))
}

/// Adds a file, or the files of a folder in the order of their names, modules for PTX aside.
fn add(path: &Path, digest: &mut DefaultHasher) -> Result<()> {
    let context = || path.display().to_string();
    if path.is_file() {
        let text = fs::read(path).with_context(context)?;
        (path, text).hash(digest);
        return Ok(());
    }
    let entries = fs::read_dir(path).with_context(context)?;
    let entries = entries.map(|entry| Ok(entry?.path()));
    let mut entries: Vec<PathBuf> = entries.collect::<Result<_>>()?;
    entries.sort();
    let declarations = ["lib.rs", "mod.rs"].map(|file| fs::read_to_string(path.join(file)));
    let declarations = declarations.into_iter().flatten().collect::<String>();
    let left_out: Vec<_> = ptx_only(&declarations).collect();
    for entry in entries {
        // A module is `NAME.rs` or the folder `NAME`.
        let module = entry.file_stem().and_then(OsStr::to_str);
        if !module.is_some_and(|module| left_out.contains(&module)) {
            add(&entry, digest)?;
        }
    }
    Ok(())
}

/// Modules that a source declares for PTX alone.
fn ptx_only(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().map(str::trim);
    let pairs = lines.clone().zip(lines.skip(1));
    pairs.filter_map(|(before, line)| {
        let module = line.strip_prefix("pub ").unwrap_or(line);
        let name = module.strip_prefix("mod ")?.strip_suffix(';')?;
        (before == PTX_ONLY).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::{PTX_ONLY, add, ptx_only};
    use std::fs;
    use std::hash::{DefaultHasher, Hasher};

    #[test]
    fn modules_for_ptx_are_told_from_others() {
        let text = format!(
            "pub mod abi;\n{PTX_ONLY}\nmod gemm;\n{PTX_ONLY}\npub mod tile;\nmod layout;\n"
        );
        assert_eq!(ptx_only(&text).collect::<Vec<_>>(), ["gemm", "tile"]);
    }

    /// A change of a device's module leaves the digest, a change of any other file does not.
    #[test]
    fn sources_change_the_digest() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |file: &str, text: &str| {
            let path = folder.path().join(file);
            fs::create_dir_all(path.parent().expect("in the folder")).expect("made");
            fs::write(path, text).expect("written");
        };
        let digest = || {
            let mut digest = DefaultHasher::new();
            add(folder.path(), &mut digest).expect("readable");
            digest.finish()
        };
        write("lib.rs", &format!("mod abi;\n{PTX_ONLY}\nmod tile;\n"));
        write("abi.rs", "1");
        write("tile/mod.rs", "1");
        write("abi/tile.rs", "1");
        let before = digest();
        write("tile/mod.rs", "2");
        assert_eq!(digest(), before);
        for file in ["abi.rs", "abi/tile.rs"] {
            write(file, "2");
            assert_ne!(digest(), before, "{file}");
            write(file, "1");
            assert_eq!(digest(), before);
        }
        fs::rename(folder.path().join("abi.rs"), folder.path().join("abj.rs")).expect("renamed");
        assert_ne!(digest(), before);
    }
}
