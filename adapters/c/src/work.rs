//! Memory that kernels of a call share.

use crate::status::Failure;
use ferroattn::RawWorkspace;

/// Whose memory it is.
pub(crate) enum Work {
    /// The library's, allocated in the order of the stream.
    Own,
    /// The caller's.
    In(RawWorkspace),
}

impl Work {
    /// The memory that a caller means.
    pub fn new(address: u64, bytes: usize) -> Result<Self, Failure> {
        match (address, bytes) {
            (0, 0) => Ok(Work::Own),
            (0, _) => Err(Failure::argument(format!(
                "the workspace has {bytes} bytes at address 0"
            ))),
            _ => Ok(Work::In(RawWorkspace { address, bytes })),
        }
    }
}
