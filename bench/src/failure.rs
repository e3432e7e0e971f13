//! Why the program ends early.

/// Why the program ended early.
pub enum Failure {
    /// Bad input, or a missing GPU, file or tool.
    Input(anyhow::Error),
    /// A kernel, a device or another program failed.
    Run(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Failure::Input(error)
    }
}
