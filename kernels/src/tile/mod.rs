//! What the main loops are written in: 16x16 tiles in registers, swizzled tiles in shared memory,
//! copies between them and global memory, and the online softmax.

mod copy;
mod element;
mod product;
mod register;
mod shared;
mod softmax;

pub use copy::{Copier, GlobalRows};
pub use element::{Bf16, Element, F16, F16Acc};
pub use product::{multiply, multiply_transposed};
pub use register::{Accumulator, HalfAccumulator, Operand, Sum};
pub use shared::{Arrangement, Fixed, SharedTile};
pub use softmax::{Softmax, SoftmaxScale, Total};
