//! Matrix products, `C = A B^T`, by the kernels that show how a fast one is made, and on the CPU.

mod accumulation;
mod call;
#[cfg(feature = "cpu")]
pub mod check;
mod choice;
#[cfg(feature = "cpu")]
mod cpu;
mod options;
mod plan;
mod problem;
mod raw;

#[cfg(not(feature = "cpu"))]
use crate::no_cpu as cpu;

pub use accumulation::Accumulation;
pub use choice::{FAMILIES, HOPPER, MULTISTAGE, SIMPLE};
pub use options::Gemm;
pub use problem::GemmProblem;
pub use raw::RawGemm;
