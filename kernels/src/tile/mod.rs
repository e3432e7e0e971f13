//! What the main loops are written in: 16x16 tiles in registers, swizzled tiles in shared memory,
//! copies between them and global memory, and the online softmax.

mod accumulate;
mod copy;
mod element;
mod register;
mod shared;
mod softmax;

pub use accumulate::{Accumulate, HalfAccumulator};
pub use copy::{Copier, GlobalRows};
pub use element::{Bf16, Element, F16};
pub use register::{Accumulator, Operand};
pub use shared::SharedTile;
pub use softmax::{Softmax, SoftmaxScale, Total};
