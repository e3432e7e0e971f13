//! Scaled dot-product attention.

pub mod check;
pub mod choice;
pub(crate) mod chosen;
pub mod cpu;
pub mod ladder;
mod options;
mod plan;
mod problem;
pub mod reference;
mod schedule;

pub use options::{Attention, RawForward};
pub use problem::Problem;
