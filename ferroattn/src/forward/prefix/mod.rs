//! Calls whose entries share their first keys: the queries of all entries attend to these at once, and each entry's to its own; then both
//! results are merged. So the shared keys are read once.

mod call;
#[cfg(feature = "cpu")]
mod cpu;
mod divide;
mod plan;

pub(super) use call::forward_raw;
pub(super) use divide::divided;
