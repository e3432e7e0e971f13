//! PTX as text: what the builder and the library make of the compiler's.

mod early;
mod entry;
mod head;
mod known;
pub mod lines;
mod prune;
mod statement;
pub mod twin;

pub use early::early;
pub use entry::entry;
pub use head::raised;
pub use prune::prune;
