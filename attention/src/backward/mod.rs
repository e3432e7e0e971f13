//! The gradients of scaled dot-product attention.

pub mod check;
pub(crate) mod cpu;
mod options;
mod reference;

pub use options::RawBackward;
