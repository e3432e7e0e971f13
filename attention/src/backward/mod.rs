//! The gradients of scaled dot-product attention.

pub mod check;
mod choice;
pub(crate) mod cpu;
mod gradients;
mod hopper;
mod options;
mod plan;
mod reference;

pub use gradients::Gradients;
pub use options::RawBackward;
