//! The gradients of scaled dot-product attention.

pub mod check;
mod choice;
pub(crate) mod cpu;
mod hopper;
mod options;
mod plan;
mod reference;

pub use options::RawBackward;
