use std::path::PathBuf;

/// Why the kernels were not built.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No rustc with library source was found.
    #[error(
        "no compiler for the kernels: they need rustc 1.95 or later with its library source (rustup component add rust-src)"
    )]
    NoCompiler,
    /// `KERNEL_RUSTC` names something unusable.
    #[error("KERNEL_RUSTC={0}: not a rustc with its library source (lib/rustlib/src/rust/library)")]
    BadOverride(PathBuf),
    /// A program could not be run.
    #[error("cannot run {program}: {source}")]
    Run {
        /// What was run.
        program: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A tool of the CUDA toolkit is missing.
    #[error("no {0}; type cargo xtask setup, or put it in the PATH")]
    NoTool(&'static str),
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// Which file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The compiler failed.
    #[error("the kernels do not compile:\n{0}")]
    Compile(String),
    /// The PTX is not what the catalog promises.
    #[error("contract: {entry}: {rule}")]
    Contract {
        /// The kernel.
        entry: String,
        /// What it breaks.
        rule: String,
    },
    /// `ptxas` rejected a module.
    #[error("ptxas: {module} for {target}:\n{message}")]
    Ptxas {
        /// The module.
        module: String,
        /// The architecture.
        target: String,
        /// What `ptxas` said.
        message: String,
    },
}

impl Error {
    /// The error of a file or folder.
    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        |source| Error::File { path, source }
    }

    pub(crate) fn contract(entry: &str, rule: impl Into<String>) -> Self {
        Error::Contract {
            entry: entry.into(),
            rule: rule.into(),
        }
    }
}
