//! The library of the tests: [cases](Case) of attention in guarded, poisoned memory, strategies that
//! draw them, and a [harness] that runs every test on every device.
//!
//! A test is a function of a [`Device`](ferroattn::Device): the CPU, the emulator and the GPU run the same
//! one.

pub mod backward_case;
pub mod case;
pub mod gemm_case;
pub mod guarded;
pub mod harness;
pub mod layout;
pub mod modifiers;
mod passed;
mod references;
pub mod strategy;

pub use backward_case::{BackwardCase, BackwardInputs, Gradients};
pub use case::{Case, Inputs};
pub use gemm_case::{GemmCase, Rows};
pub use guarded::Guarded;
pub use harness::{Outcome, PASSED, Test, counting};
pub use layout::Layout;
pub use modifiers::Modifiers;
