//! Where elements lie: in global memory ([`rows`]), in shared memory ([`swizzle`]) and in the registers of a warp
//! ([`fragment`]); which numbers a row sees ([`interval`]); which thread copies which of them ([`share`]); in which
//! order numbers are summed ([`sum`]); and how large an [`element`] is.
//!
//! This is arithmetic without instructions, so that the host tests what the kernels run.

pub mod descriptor;
pub mod element;
pub mod fp8;
pub mod fragment;
pub mod interval;
pub mod latent;
pub mod rows;
pub mod share;
pub mod sm90;
pub mod sm90_backward;
pub mod sum;
pub mod swizzle;
pub mod wide;
