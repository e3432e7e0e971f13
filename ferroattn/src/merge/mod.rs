//! Results of attention to parts of the keys, merged into the result for all keys, and the gradient of that.

mod backward;
mod call;
#[cfg(feature = "cpu")]
mod cpu;
mod part;
mod plan;
mod raw;
#[cfg(test)]
mod tests;

#[cfg(not(feature = "cpu"))]
use crate::no_cpu as cpu;

pub use backward::{merge_backward, merge_backward_into, merge_backward_plan, merge_backward_raw};
pub use call::{merge, merge_into, merge_plan, merge_raw};
#[cfg(feature = "cpu")]
pub(crate) use cpu::merge_raw as merge_on_cpu;
pub use part::{Partial, PartialMut, RawPart};
pub(crate) use plan::merge_of;
pub use raw::{RawMerge, RawMergeBackward};
