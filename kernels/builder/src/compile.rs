//! Running the compiler, without cargo: `core` and the kernels are one call each.

use crate::locations::{self, Lines};
use crate::ptxas::output;
use crate::{Compiler, Error, cache, generics, workspace};
use kernels::catalog::{self, Spec};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Flags for `core` and the kernels alike.
const FLAGS: &[&str] = &[
    "--edition=2024",
    "--target=nvptx64-nvidia-cuda",
    "--cap-lints=allow",
    "-Copt-level=3",
    // Bounds checks that survive would call into a panic runtime that is not there.
    "-Zunstable-options",
    "-Cpanic=immediate-abort",
    // Arrays of fragments become registers only in loops that are unrolled and calls that are inlined.
    "-Cllvm-args=-unroll-threshold=1000000",
    "-Cllvm-args=-inline-threshold=1000000",
    // Strength reduction gives every product of the loop counter a register of its own for the whole
    // loop: it costs the D=128 and D=256 kernels their freedom from spills.
    "-Cllvm-args=-disable-lsr",
    // rustc does not mark `asm!` as convergent. These passes duplicate a block into both arms of a
    // branch, which must not happen to a barrier, shuffle or tensor-core instruction.
    "-Zmir-enable-passes=-JumpThreading",
    "-Cllvm-args=-jump-threading-threshold=0",
    "-Cllvm-args=-simplifycfg-max-small-block-size=0",
];

/// Flags for a library that the kernels inline: its functions are kept for them, without machine code.
const LIBRARY: &[&str] = &[
    "--crate-type=rlib",
    "--emit=link",
    "-Zno-codegen",
    "-Zalways-encode-mir",
];

/// Flags for the compiler's own libraries.
const CORE: &[&str] = &["-Zforce-unstable-if-unmarked"];

/// Flags for the kernels: the PTX is the result, there is nothing to link.
const KERNELS: &[&str] = &[
    "--crate-type=cdylib",
    "--emit=asm",
    "-Ccodegen-units=1",
    "-Clto=fat",
];

/// A crate of kernels.
pub struct Package {
    /// The name of the crate, in Rust.
    pub name: &'static str,
    /// The crate's folder: the root is its `src/lib.rs`.
    pub folder: PathBuf,
    /// The workspace's crates of kernels whose parts it uses.
    pub uses: &'static [&'static str],
    /// Its kernels.
    pub kernels: Vec<&'static Spec>,
}

impl Package {
    /// The kernels of the [catalog]: entry points that use the crate [`kernels`].
    pub fn kernels() -> Self {
        let catalog = catalog::KERNELS.iter();
        Package {
            name: "entries",
            folder: workspace().join("kernels/entries"),
            uses: &["kernels"],
            kernels: catalog.map(|kernel| &kernel.spec).collect(),
        }
    }
}

/// The compiler with what it compiles the kernels of a package against.
pub struct Session<'a> {
    compiler: &'a Compiler,
    package: &'a Package,
    /// Folders of compiled libraries.
    libraries: Vec<PathBuf>,
    /// The sources of the package and of the crates that it uses.
    sources: Vec<Sources>,
    /// The lines of these sources.
    lines: Lines,
}

impl<'a> Session<'a> {
    /// Compiles the libraries.
    ///
    /// # Errors
    /// The compiler's message, if it fails.
    pub fn new(compiler: &'a Compiler, package: &'a Package) -> Result<Self, Error> {
        let mut session = Session {
            compiler,
            package,
            libraries: vec![core_library(compiler)?],
            sources: Vec::new(),
            lines: Lines::default(),
        };
        for &name in package.uses.iter().chain([&package.name]) {
            let sources = sources(&session.folder_of(name), &mut session.lines)?;
            session.sources.push(sources);
            if name != package.name {
                let library = session.library(name)?;
                session.libraries.push(library);
            }
        }
        Ok(session)
    }

    /// Compiles kernels of the package, all of one target; returns their PTX with [marks](kernels::text::lines) of
    /// source lines.
    ///
    /// # Errors
    /// The compiler's message, if it fails.
    pub fn compile(&self, kernels: &[&Spec]) -> Result<String, Error> {
        let target = kernels[0].target;
        let cpu = format!("-Ctarget-cpu={}", target.name);
        let feature = format!("-Ctarget-feature=+{}", target.ptx_version);
        for &kernel in kernels {
            let sources = self.sources.iter().flatten();
            generics::check(kernel, sources.map(|(path, lines)| (&**path, &**lines)))?;
        }
        let entries: String = kernels.iter().map(|&kernel| entry(kernel)).collect();
        let name = self.package.name;
        let own = ["--crate-name", name, &cpu, &feature];
        let flags = [&own, KERNELS, locations::FLAGS].concat();
        let inputs = (
            &self.compiler.version,
            FLAGS,
            &flags,
            &self.sources,
            &entries,
            locations::FORM,
        );
        let kept = cache::text("ptx", inputs, |folder| {
            let (file, ptx) = (folder.join("entries.rs"), folder.join("ptx"));
            cache::write(&file, &entries)?;
            self.rustc(name, &flags, &file, "-o", &ptx)?;
            Ok(self.lines.keep(&cache::read(&ptx)?))
        })?;
        Ok(self.lines.place(&kept))
    }

    /// The folder of a crate of kernels compiled as a library, without entry points.
    fn library(&self, name: &str) -> Result<PathBuf, Error> {
        let flags = [&["--crate-name", name], LIBRARY].concat();
        let inputs = (&self.compiler.version, FLAGS, &flags, &self.sources);
        cache::folder(inputs, |folder| {
            let entries = folder.join("entries.rs");
            cache::write(&entries, "")?;
            self.rustc(name, &flags, &entries, "--out-dir", folder)
        })
    }

    /// Compiles a crate of kernels with the entry points of a file, to an output (`-o` or `--out-dir`).
    fn rustc(
        &self,
        name: &str,
        flags: &[&str],
        entries: &Path,
        option: &str,
        output: &Path,
    ) -> Result<(), Error> {
        rustc(self.compiler, flags, |rustc| {
            for library in &self.libraries {
                rustc.arg("-L").arg(library);
            }
            for name in self.package.uses.iter().take(self.libraries.len() - 1) {
                rustc.args(["--extern", name]);
            }
            rustc.env("KERNEL_ENTRIES", entries);
            rustc.arg(option).arg(output);
            rustc.arg(self.folder_of(name).join("lib.rs"))
        })
    }

    /// The sources of the package or of a crate that it uses.
    fn folder_of(&self, name: &str) -> PathBuf {
        let folder = match name == self.package.name {
            true => self.package.folder.clone(),
            false => workspace().join(name),
        };
        folder.join("src")
    }
}

/// The line that makes a kernel's entry point.
fn entry(kernel: &Spec) -> String {
    let (name, instance) = (kernel.name, &kernel.instance);
    format!("entry!({name}({}) = {instance});\n", instance.params)
}

/// The folder of the compiled `core`, which rustc ships as source only for this target, and of
/// `compiler_builtins`, which it wants to see beside it: empty, since kernels call nothing.
fn core_library(compiler: &Compiler) -> Result<PathBuf, Error> {
    let flags = [LIBRARY, CORE].concat();
    cache::folder((&compiler.version, FLAGS, &flags), |folder| {
        let builtins = folder.join("compiler_builtins.rs");
        let text = "#![feature(compiler_builtins)]\n#![compiler_builtins]\n#![no_std]\n";
        cache::write(&builtins, text)?;
        for (name, source) in [
            ("core", compiler.library.join("core/src/lib.rs")),
            ("compiler_builtins", builtins),
        ] {
            rustc(compiler, &flags, |rustc| {
                rustc.args(["--crate-name", name]).arg("-L").arg(folder);
                rustc.arg("--out-dir").arg(folder).arg(source)
            })?;
        }
        Ok(())
    })
}

/// Runs the compiler with [`FLAGS`] and others.
fn rustc(
    compiler: &Compiler,
    flags: &[&str],
    arguments: impl FnOnce(&mut Command) -> &mut Command,
) -> Result<(), Error> {
    let mut command = Command::new(&compiler.rustc);
    // The compiler is a released one; the target needs unstable features.
    command.env("RUSTC_BOOTSTRAP", "1").args(FLAGS).args(flags);
    // Locations have paths from here.
    command.current_dir(workspace());
    let output = output(arguments(&mut command))?;
    let said = String::from_utf8_lossy(&output.stderr);
    match output.status.success() {
        true => Ok(()),
        false => Err(Error::Compile(said.into())),
    }
}

/// Rust files by their path in a crate, as lines.
type Sources = BTreeMap<PathBuf, Vec<String>>;

/// Folders that are not compiled to PTX: the catalog, which speaks through entry points, and what is made of the text.
const OF_HOST: [&str; 2] = ["kernels/src/catalog", "kernels/src/text"];

/// The sources that decide the PTX of a crate of kernels, in a folder of them: all but the lines that are
/// comments, and all but [the host's](OF_HOST).
fn sources(folder: &Path, code: &mut Lines) -> Result<Sources, Error> {
    let mut sources = BTreeMap::new();
    for entry in std::fs::read_dir(folder).map_err(Error::file(folder))? {
        let path = entry.map_err(Error::file(folder))?.path();
        let name = PathBuf::from(path.file_name().unwrap_or_default());
        if OF_HOST.iter().any(|folder| path.ends_with(folder)) {
            continue;
        } else if path.is_dir() {
            let inner = self::sources(&path, code)?.into_iter();
            sources.extend(inner.map(|(path, lines)| (name.join(path), lines)));
        } else {
            let text = cache::read(&path)?;
            let place = path.strip_prefix(workspace()).unwrap_or(&path);
            code.add(place.display().to_string(), &text);
            let lines = text.lines().filter(|line| locations::is_code(line));
            sources.insert(name, lines.map(|line| line.trim().to_owned()).collect());
        }
    }
    Ok(sources)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sources decide whether a kernel is compiled again.
    #[test]
    fn comments_and_code_of_the_host_do_not_change_sources() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().join("kernels/src");
        let read = |code: &str, host: &str| {
            for of_host in OF_HOST {
                let path = folder.path().join(of_host);
                std::fs::create_dir_all(&path).expect("made");
                cache::write(&path.join("mod.rs"), host).expect("written");
            }
            cache::write(&root.join("lib.rs"), code).expect("written");
            sources(&root, &mut Lines::default()).expect("readable")
        };
        let before = read("fn a() {\n    b()\n}\n", "");
        assert_eq!(before, read("// New.\n\nfn a() {\n  b()\n}", "new"));
        assert_ne!(before, read("fn a() {\n    c()\n}\n", ""));
    }
}
