//! Scaled dot-product attention.

pub mod check;
pub mod choice;
pub mod chosen;
pub mod cpu;
pub mod ladder;
pub mod options;
pub mod plan;
pub mod problem;
pub mod reference;
pub mod schedule;

pub use options::{Attention, RawForward};
pub use problem::Problem;
