//! The ladder: the classic attention kernels, from three passes over a stored score matrix to tiles of
//! everything, built from the parts of the main kernels. `README.md` beside them is the lesson.
//!
//! | file | kernels |
//! |---|---|
//! | `naive` | `naive` |
//! | `fa1` | `fa1` |
//! | `rows` | `split-q`, `shared-kv`, `shared-qkv`: a warp has query rows of its own |
//! | `teams` | `split-kv`, `tiled-qk`, `tiled-qkv`: warps share query rows |
//! | `hopper` | `wgmma`, `tma`, `specialised`, `ping-pong`: the instructions of Hopper |
//! | `half` | products summed in f16 or f32 |
//! | `ring` | the buffers that tiles pass through |
//! | `slices` | `P V` under a mask, in loops |
//! | `store` | three ways to store O |
//! | `work` | a block's queries, keys and mask |
//! | `stamps` | what writes a [`timeline`] of Hopper's kernels |
//!
//! The launch decides what costs little at run time: stages, swizzles, the mask, how O is stored. So one
//! compiled kernel serves several rungs.
//!
//! For the host, [`options`] has the rungs and their options, [`catalog`] the compiled kernels, and
//! `Ladder` (feature `launch`) runs them; [`timeline`] has Hopper's kernels under watch, and `Recorder` runs them.
#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, asm_experimental_arch))]

#[cfg(not(target_arch = "nvptx64"))]
pub mod catalog;
#[cfg(feature = "launch")]
mod kernel;
pub mod options;
pub mod params;
#[cfg(feature = "launch")]
mod plan;
#[cfg(feature = "launch")]
mod recorder;
pub mod timeline;

#[cfg(target_arch = "nvptx64")]
mod entry;
#[cfg(target_arch = "nvptx64")]
mod fa1;
#[cfg(target_arch = "nvptx64")]
mod half;
#[cfg(target_arch = "nvptx64")]
mod hopper;
#[cfg(target_arch = "nvptx64")]
mod naive;
#[cfg(target_arch = "nvptx64")]
mod ring;
#[cfg(target_arch = "nvptx64")]
mod rows;
#[cfg(target_arch = "nvptx64")]
mod slices;
#[cfg(target_arch = "nvptx64")]
mod stamps;
#[cfg(target_arch = "nvptx64")]
mod store;
#[cfg(target_arch = "nvptx64")]
mod teams;
#[cfg(target_arch = "nvptx64")]
mod work;

#[cfg(feature = "launch")]
pub use kernel::{Ladder, MAX_STAGES, with_options};
pub use options::{OStore, Rung, Swizzles};
#[cfg(feature = "launch")]
pub use recorder::Recorder;
