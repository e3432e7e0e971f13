//! The ladder: the classic attention kernels, from three passes over a stored score matrix to tiles of
//! everything, built from the parts of the main kernels.
//!
//! | file | kernels |
//! |---|---|
//! | `naive` | `naive` |
//! | `fa1` | `fa1` |
//! | `rows` | `split-q`, `shared-kv`, `shared-qkv`: a warp has query rows of its own |
//! | `teams` | `split-kv`, `tiled-qk`, `tiled-qkv`: warps share query rows |
//! | `ring` | the buffers that tiles pass through |
//! | `store` | three ways to store O |
//!
//! What costs little at run time is told at the launch: stages, swizzles, the mask, how O is stored. So
//! one compiled kernel serves several rungs; [`table`] has them all.

pub mod options;
#[cfg(not(target_arch = "nvptx64"))]
pub mod table;

#[cfg(target_arch = "nvptx64")]
pub mod fa1;
#[cfg(target_arch = "nvptx64")]
pub mod naive;
#[cfg(target_arch = "nvptx64")]
mod ring;
#[cfg(target_arch = "nvptx64")]
pub mod rows;
#[cfg(target_arch = "nvptx64")]
mod store;
#[cfg(target_arch = "nvptx64")]
pub mod teams;

pub use options::{NaivePass, OStore, Rung, Swizzles};
