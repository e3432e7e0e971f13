//! Exact attention.

pub mod cpu;
pub mod element;
pub mod error;
mod layout;
pub mod problem;
pub mod ptx;
pub mod reference;
pub mod strided;

pub use element::Element;
pub use error::{Error, Result};
pub use half::{bf16, f16};
pub use kernels::table::Dtype;
pub use problem::Problem;
pub use strided::{Strided, StridedMut, TileMut};
