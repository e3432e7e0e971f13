//! The gradients of scaled dot-product attention.

mod bias;
mod bounds;
mod call;
pub mod check;
mod choice;
pub(crate) mod cpu;
mod far;
mod gradients;
mod hopper;
mod inputs;
mod packed;
mod plan;
mod reference;

pub use call::RawBackward;
pub use gradients::{Gradients, GradientsMut};
pub use inputs::BackwardInputs;
