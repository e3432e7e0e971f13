//! Scaled dot-product attention.

pub(crate) mod bounds;
mod call;
pub mod check;
pub mod choice;
pub(crate) mod cpu;
mod fold;
pub(crate) mod plan;
mod problem;
pub mod reference;
mod schedule;

pub use call::RawForward;
pub use plan::Planner;
pub use problem::Problem;
