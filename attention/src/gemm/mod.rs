//! Matrix products, `C = A B^T`, by the kernels that show how a fast one is made, and on the CPU.

mod accumulation;
pub mod check;
mod choice;
mod cpu;
mod options;
mod plan;
mod problem;

pub use accumulation::Accumulation;
pub use choice::{FAMILIES, HOPPER, MULTISTAGE, SIMPLE};
pub use options::{Gemm, RawGemm};
pub use problem::GemmProblem;
