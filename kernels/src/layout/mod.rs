//! Where elements lie: in shared memory ([`swizzle`]) and in the registers of a warp ([`fragment`]).
//!
//! Plain arithmetic with no instruction in it, so that the host tests what the kernels run.

pub mod fragment;
pub mod swizzle;
