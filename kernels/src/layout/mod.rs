//! Where elements lie: in shared memory ([`swizzle`]) and in the registers of a warp ([`fragment`]);
//! and which thread moves which of them ([`share`]).
//!
//! Plain arithmetic with no instruction in it, so that the host tests what the kernels run.

pub mod fragment;
pub mod share;
pub mod swizzle;
pub mod wide;
