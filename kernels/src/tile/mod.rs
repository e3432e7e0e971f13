//! What the main loops are written in: 16x16 tiles in registers, tiles in shared memory, products and
//! copies of them.

mod accumulate;
mod copy;
mod element;
mod pipeline;
mod product;
mod register;
pub mod registers;
mod shared;

pub use accumulate::{Accumulate, HalfAccumulator};
pub use copy::{Copier, GlobalRows};
pub use element::{Bf16, Element, F16};
pub use pipeline::{CpAsync, Pipeline};
pub use product::{multiply, multiply_transposed};
pub use register::{Accumulator, Operand};
pub use shared::{Arrangement, Fixed, SharedTile};
