//! Where elements lie: in global memory ([`rows`]), in shared memory ([`swizzle`]) and in the registers of a warp
//! ([`fragment`]); and which thread copies which of them ([`share`]).
//!
//! This is arithmetic without instructions, so that the host tests what the kernels run.

pub mod descriptor;
pub mod fragment;
pub mod rows;
pub mod share;
pub mod sm90;
pub mod swizzle;
pub mod wide;
