//! Finding a compiler for the kernels.

use crate::Error;
use crate::ptxas::printed;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A rustc whose library source is installed: the kernels' target has no prebuilt `core`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiler {
    /// The compiler.
    pub rustc: PathBuf,
    /// The version that it prints.
    pub version: String,
    /// The library source.
    pub library: PathBuf,
}

impl Compiler {
    /// Oldest minor version of rustc 1 that has what the kernels need.
    const MIN_MINOR: u32 = 95;

    /// Looks at `KERNEL_RUSTC` if it is set; else at the rustc in use (rustup's, with the component
    /// `rust-src`), then at the distribution's (Debian: `rustc-web`, `rust-web-src`).
    ///
    /// # Errors
    /// [`Error::NoCompiler`] if none will do, [`Error::BadOverride`] if the named one will not.
    pub fn find() -> Result<Self, Error> {
        if let Some(rustc) = std::env::var_os("KERNEL_RUSTC") {
            let rustc = PathBuf::from(rustc);
            return Self::with(&rustc).ok_or(Error::BadOverride(rustc));
        }
        let mut others = ["rustc", "/usr/bin/rustc"].into_iter();
        let found = others.find_map(|rustc| Self::with(Path::new(rustc)));
        found.ok_or(Error::NoCompiler)
    }

    fn with(rustc: &Path) -> Option<Self> {
        let says = |line: &[&str]| printed(Command::new(rustc).args(line)).ok();
        let version = says(&["--version", "--verbose"])?.trim().to_owned();
        let minor = version.strip_prefix("rustc 1.")?.split('.').next()?;
        if minor.parse::<u32>().ok()? < Self::MIN_MINOR {
            return None;
        }
        let sysroot = PathBuf::from(says(&["--print", "sysroot"])?.trim());
        let compiler = Compiler {
            rustc: sysroot.join("bin/rustc"),
            version,
            library: sysroot.join("lib/rustlib/src/rust/library"),
        };
        let source = compiler.library.join("core/src/lib.rs");
        (compiler.rustc.exists() && source.exists()).then_some(compiler)
    }
}
