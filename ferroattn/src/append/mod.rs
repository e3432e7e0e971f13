//! New keys and values of a step, appended to a cache.

mod call;
#[cfg(feature = "cpu")]
mod cpu;
mod numbers;
mod plan;
mod raw;

#[cfg(not(feature = "cpu"))]
use crate::no_cpu as cpu;

pub use call::Append;
pub use plan::{append_plan, append_raw};
pub use raw::{RawAppend, RawRotary};
