//! Memory that a call works in.

/// Memory of the caller that a call runs in, for [`Plan::run_in`](crate::Plan::run_in).
///
/// Its bytes are the call's until its work is done, and hold nothing before or after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RawWorkspace {
    /// Device address, a multiple of 256.
    pub address: u64,
    /// Bytes: at least [`Plan::workspace_bytes`](crate::Plan::workspace_bytes).
    pub bytes: usize,
}

impl RawWorkspace {
    /// The multiple that addresses must be.
    pub const ALIGNMENT: u64 = 256;
}
