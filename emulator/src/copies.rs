//! Copies by `cp.async` under way.

/// A copy that has not landed.
pub(crate) struct Copy {
    pub lane: u32,
    /// The group of its thread, counted from 0.
    pub group: u32,
    pub to: u32,
    pub from: u64,
    /// Bytes to write.
    pub bytes: u32,
    /// Bytes to read; the others become zeros.
    pub source_bytes: u32,
    pub line: u32,
}

/// The copies of a warp that are under way.
#[derive(Default)]
pub(crate) struct Copies {
    pub pending: Vec<Copy>,
    /// Groups that each lane has closed.
    pub closed: [u32; 32],
}
