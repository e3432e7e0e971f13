//! The parts that main loops are made of.
//!
//! | module | what it holds |
//! |---|---|
//! | `element`, `accumulate` | element types and accumulators of the tensor cores |
//! | `register` | a 16x16 tile in the registers of a warp |
//! | [`whole`] | operations on all tiles of a warp at once |
//! | `shared` | a tile in shared memory |
//! | `numbers` | the numbers of K and V in shared memory |
//! | `copy` | copies between global and shared memory |
//! | `pipeline` | a stream of tiles through a few buffers |
//! | `product` | the two products of attention |
//! | [`wgmma`] | products of a warpgroup |
//! | [`fp8`] | products of a warpgroup of e4m3 |
//! | [`registers`] | three tricks that keep registers low |

mod accumulate;
mod copy;
mod element;
pub mod fp8;
mod numbers;
mod pipeline;
mod product;
mod register;
pub mod registers;
mod ring;
mod shared;
pub mod wgmma;
pub mod whole;

pub use accumulate::{Accumulate, HalfAccumulator};
pub use copy::Copier;
pub use element::{Bf16, Element, F16, Half};
pub use numbers::{E4m3, Numbers, Pairs};
pub use pipeline::{CpAsync, Pipeline};
pub use product::{multiply, multiply_transposed};
pub use register::{Accumulator, Operand};
pub use ring::Ring;
pub use shared::{Arrangement, Fixed, SharedTile};
