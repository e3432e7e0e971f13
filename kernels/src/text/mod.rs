//! PTX texts as the driver gets them: one kernel, without what never runs.

mod entry;
mod known;
mod prune;
mod statement;

pub use entry::entry;
pub use prune::prune;
