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
    /// A program could not be run, and why.
    #[error("cannot run {0}: {1}")]
    Run(PathBuf, #[source] std::io::Error),
    /// A tool of the CUDA toolkit is missing.
    #[error("no {0}; type cargo xtask setup, or put it in the PATH")]
    NoTool(&'static str),
    /// A file could not be read or written, and why.
    #[error("{0}: {1}")]
    File(PathBuf, #[source] std::io::Error),
    /// The compiler failed, and what it said.
    #[error("the kernels do not compile:\n{0}")]
    Compile(String),
    /// The PTX of a kernel is not what the catalog promises: the kernel, and the rule that it breaks.
    #[error("contract: {0}: {1}")]
    Contract(String, String),
    /// A kernel of bf16 is not its twin of f16 with other instructions.
    #[error(transparent)]
    Twin(kernels::text::twin::Missed),
    /// `ptxas` rejected a module: the module, the architecture, and what it said.
    #[error("ptxas: {0} for {1}:\n{2}")]
    Ptxas(String, String, String),
}

impl Error {
    /// The error of a file or folder.
    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        |source| Error::File(path.into(), source)
    }

    pub(crate) fn contract(entry: &str, rule: impl Into<String>) -> Self {
        Error::Contract(entry.into(), rule.into())
    }
}
