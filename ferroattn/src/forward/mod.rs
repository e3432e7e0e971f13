//! Scaled dot-product attention.

#[cfg(feature = "cpu")]
pub(crate) mod bounds;
mod call;
#[cfg(feature = "cpu")]
pub mod check;
pub mod choice;
mod clusters;
#[cfg(feature = "cpu")]
pub(crate) mod cpu;
mod divide;
mod e4m3;
mod fold;
mod fp8;
pub(crate) mod main_kernel;
mod output;
pub(crate) mod plan;
mod planner;
mod planning;
mod prefix;
mod problem;
mod raw;
#[cfg(feature = "cpu")]
pub mod reference;
mod request;
mod schedule;
mod shared_tiles;
mod units;
pub(crate) mod waves;
mod without_maps;

#[cfg(not(feature = "cpu"))]
use crate::no_cpu as cpu;

#[cfg(feature = "cpu")]
pub use fp8::Rounded;
pub use planner::Planner;
pub use problem::Problem;
pub use raw::RawForward;
