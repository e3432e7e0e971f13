//! Parts that the other crates of this repository are built on, such as the planner of its lesson.
//!
//! It is no part of the interface: any release may change it, with no word of it in the changelog.

pub use crate::entry::Entry;
pub use crate::forward::Planner;
pub use crate::forward::main_kernel::MainKernel;
pub use crate::forward::plan::Draft;
pub use crate::forward::waves::Waves;
pub use crate::plan::{Fill, MAX_BLOCKS, MapPlace, Steps, has_map};

/// The PTX that the build embeds.
pub mod ptx {
    pub use crate::ptx::{COMPILED, Group, Modules, marked, module, text};
}
