//! The binary of the Python package `ferroattn`.
//!
//! [`torch`] registers attention as operators of the PyTorch that is loaded, through its C interface for other libraries: no file of
//! PyTorch is needed to build, and one binary serves all its versions. [`jax`] is attention as custom calls of XLA. The functions of
//! the [C interface](ferroattn_c) are here, too.

mod form;
mod gpus;
pub mod jax;
pub mod torch;

// Its functions are exported with this library's.
pub use ferroattn_c;
