//! Results of the compiler and the assembler, kept by what they were made from.
//!
//! `target/ptx-cache` holds a folder for each result, named by a hash of all inputs: sources,
//! versions, flags; no absolute path. All profiles and programs share it. The least recently used
//! results go first, once all together pass [`MOST_BYTES`].

use crate::{Error, target_dir};
use std::hash::Hash;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use xxhash_rust::xxh3::Xxh3;

/// About twenty builds of all kernels, or three with their machine code.
const MOST_BYTES: u64 = 1 << 30;

/// The folder that `make` filled for the same inputs, earlier or now.
///
/// # Errors
/// If `make` fails, or the cache cannot be written.
pub fn folder(
    inputs: impl Hash,
    make: impl FnOnce(&Path) -> Result<(), Error>,
) -> Result<PathBuf, Error> {
    folder_in(&target_dir().join("ptx-cache"), inputs, make)
}

fn folder_in(
    cache: &Path,
    inputs: impl Hash,
    make: impl FnOnce(&Path) -> Result<(), Error>,
) -> Result<PathBuf, Error> {
    // 128 bits, by an algorithm that no release of the compiler changes.
    let mut hasher = Xxh3::new();
    inputs.hash(&mut hasher);
    let name = hasher.digest128();
    let folder = cache.join(format!("{name:032x}"));
    if let Ok(found) = std::fs::File::open(&folder) {
        // A time that cannot be set costs a rebuild later at most.
        let _ = found.set_modified(SystemTime::now());
        return Ok(folder);
    }
    let failed = || Error::file(cache);
    std::fs::create_dir_all(cache).map_err(failed())?;
    let made = tempfile::tempdir_in(cache).map_err(failed())?;
    make(made.path())?;
    match std::fs::rename(made.path(), &folder) {
        Err(error) if !folder.exists() => return Err(failed()(error)),
        // Another process may have been first: its result is the same.
        _ => drop(made.keep()),
    }
    // A build makes a thousand results: not each looks through all.
    if name.is_multiple_of(16) {
        prune(cache).map_err(failed())?;
    }
    Ok(folder)
}

/// The text that `make` returned for the same inputs, earlier or now, in file `name` of its folder. `make` gets an empty
/// folder for files on the way.
///
/// # Errors
/// The conditions of [`folder`].
pub fn text(
    name: &str,
    inputs: impl Hash,
    make: impl FnOnce(&Path) -> Result<String, Error>,
) -> Result<String, Error> {
    let made = folder(inputs, |folder| {
        let scratch = tempfile::tempdir_in(folder).map_err(Error::file(folder))?;
        write(&folder.join(name), make(scratch.path())?)
    })?;
    read(&made.join(name))
}

/// Removes the least recently used results beyond [`MOST_BYTES`].
fn prune(cache: &Path) -> std::io::Result<()> {
    let mut results = Vec::new();
    for result in std::fs::read_dir(cache)? {
        let path = result?.path();
        // Others may prune too: what is gone needs no more care.
        let Ok(files) = std::fs::read_dir(&path) else {
            continue;
        };
        let sizes = files.filter_map(|file| Some(file.ok()?.metadata().ok()?.len()));
        let bytes: u64 = sizes.sum();
        if let Ok(used) = path.metadata().and_then(|metadata| metadata.modified()) {
            results.push((std::cmp::Reverse(used), bytes, path));
        }
    }
    results.sort();
    let mut total = 0;
    for (_, bytes, path) in results {
        total += bytes;
        if total > MOST_BYTES {
            let _ = std::fs::remove_dir_all(path);
        }
    }
    Ok(())
}

/// Reads a text.
pub fn read(path: &Path) -> Result<String, Error> {
    std::fs::read_to_string(path).map_err(Error::file(path))
}

/// Writes a text.
pub fn write(path: &Path, text: impl AsRef<[u8]>) -> Result<(), Error> {
    std::fs::write(path, text).map_err(Error::file(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_input_decides_the_result() {
        let cache = tempfile::tempdir().expect("a folder");
        let made = |inputs: [&str; 3]| {
            let mut is_made = false;
            let folder = folder_in(cache.path(), inputs, |folder| {
                is_made = true;
                write(&folder.join("ptx"), inputs.concat())
            });
            let ptx = read(&folder.expect("made").join("ptx")).expect("written");
            assert_eq!(ptx, inputs.concat());
            is_made
        };
        let inputs = ["source", "flags", "compiler"];
        assert!(made(inputs) && !made(inputs));
        for changed in 0..3 {
            let mut others = inputs;
            others[changed] = "other";
            assert!(made(others) && !made(others));
        }
        assert!(!made(inputs));
    }

    #[test]
    fn a_failure_is_not_kept() {
        let cache = tempfile::tempdir().expect("a folder");
        let made = |result| folder_in(cache.path(), "inputs", |_| result);
        assert!(made(Err(Error::NoCompiler)).is_err());
        assert!(made(Ok(())).is_ok());
        // Only the result is left.
        let left = std::fs::read_dir(cache.path()).expect("readable").count();
        assert_eq!(left, 1);
    }
}
