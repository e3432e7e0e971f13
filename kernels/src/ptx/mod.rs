//! Wrappers of PTX instructions, one family a file, named as in the PTX manual.
//!
//! rustc does not know which assembly is convergent: it may duplicate or sink an `asm!` block under
//! a lane-dependent branch. There an instruction that a whole warp or block must reach together hangs
//! or returns garbage. So no collective instruction here is `pure` or `nomem`. Only arithmetic of one lane
//! (`math`, `half`, `convert`) is, which the compiler may move freely. The build turns off the passes that
//! duplicate blocks, and counts the collective instructions of the result.

#[macro_use]
mod define;

pub mod barrier;
pub mod bulk;
pub mod convert;
pub mod cp_async;
pub mod global;
pub mod half;
pub mod ldmatrix;
pub mod math;
pub mod mbarrier;
pub mod mma;
pub mod setmaxnreg;
pub mod shared;
pub mod shuffle;
pub mod special;
pub mod stmatrix;
pub mod switch;
pub mod tensor;
pub mod vote;
pub mod wgmma;
