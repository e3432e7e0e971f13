//! Scaled dot-product attention.

pub mod check;
pub mod choice;
pub(crate) mod cpu;
pub(crate) mod options;
pub(crate) mod plan;
mod problem;
pub mod reference;
mod schedule;

pub use options::{Attention, RawForward};
pub use plan::Planner;
pub use problem::Problem;
