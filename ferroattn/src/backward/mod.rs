//! The gradients of scaled dot-product attention.

mod bias;
#[cfg(feature = "cpu")]
mod bounds;
mod call;
#[cfg(feature = "cpu")]
pub mod check;
mod choice;
#[cfg(feature = "cpu")]
pub(crate) mod cpu;
mod draft;
mod far;
mod gradients;
mod hopper;
mod inputs;
mod packed;
mod plan;
mod planning;
mod raw;
#[cfg(feature = "cpu")]
mod reference;
mod tensors;

#[cfg(not(feature = "cpu"))]
use crate::no_cpu as cpu;

pub use gradients::{Gradients, GradientsMut};
pub use inputs::BackwardInputs;
pub use raw::RawBackward;
