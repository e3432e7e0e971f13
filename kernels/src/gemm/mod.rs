//! Matrix products, `C = A B^T`: A is `[m, k]`, B `[n, k]`, C `[m, n]`, each row-major ("TN").
//!
//! | module | what it shows |
//! |---|---|
//! | `simple` | operands straight from global memory to registers: no shared memory, no barrier |
//! | `multistage` | `cp.async` through a ring of swizzled tiles, operands read a step ahead, C stored in 16-byte pieces |
//! | `hopper` | TMA through a ring with barriers, products by `wgmma`: a producer and consumers |
//! | `place` | which tile of C a block computes, for all of these |
//!
//! A block computes a tile of C, or on Hopper one after the other; a warp has a part of it, as 16x16 tiles in registers.
//! All kernels need rows of A and B that start at multiples of 16 bytes and have multiples of 8 elements. The host makes
//! such copies of other matrices, with zeros behind their rows ([`pack`](crate::abi::PackParams)).

#[cfg(target_arch = "nvptx64")]
mod hopper;
#[cfg(target_arch = "nvptx64")]
mod multistage;
#[cfg(target_arch = "nvptx64")]
mod place;
#[cfg(target_arch = "nvptx64")]
mod simple;

#[cfg(target_arch = "nvptx64")]
pub use hopper::hopper;
#[cfg(target_arch = "nvptx64")]
pub use multistage::multistage;
#[cfg(target_arch = "nvptx64")]
pub use simple::simple;
