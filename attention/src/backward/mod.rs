//! The gradients of scaled dot-product attention.

pub(crate) mod cpu;
mod options;

pub use options::RawBackward;
