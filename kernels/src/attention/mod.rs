//! Attention: what a block computes, the online softmax, the main loops and the steps around them.
//!
//! | module | what it holds | compiled for |
//! |---|---|---|
//! | [`sequence`] | lengths of a batch entry, where its rows start, its splits | both |
//! | [`mask`] | which keys a query sees, which queries see a key, and the blocks that follow | both |
//! | [`custom`] | scores and masks of other crates | both |
//! | [`walk`] | the walk of query rows over blocks of keys | both |
//! | [`heads`] | which head and which query a row of a tile is | both |
//! | `work` | the query tile and the split of the keys that a block takes | PTX |
//! | [`key_rows`] | where the rows of k and v lie | PTX |
//! | `alternate` | the batch entry and the head of a number in the order of tiles | PTX |
//! | `forward` | the main loops, one a file | PTX |
//! | `backward` | the kernels of the backward pass, one a file | PTX |
//! | `warp` | a warp's rows of Q, O, m and l, and the lines of the algorithm on them | PTX |
//! | `team` | warps that share query rows | PTX |
//! | `score` | what happens to a score between `Q K^T` and the softmax | PTX |
//! | `softmax` | the online softmax | PTX |
//! | `guard` | products that keep infinities and NaN from rows that do not see them | PTX |
//! | `epilogue` | O and lse, or partial results of a split, stored | PTX |
//! | `combine` | partial results of all splits, combined | PTX |
//! | `merge` | results on two parts of the keys, merged, and the gradient of that | PTX |
//! | `ranges` | ranges of keys from tables | PTX |
//! | `find_ranges` | the kernel that makes these tables | PTX |
//! | `seen` | boolean masks | PTX |
//! | `visits` | the blocks of keys that a query tile visits | PTX |
//! | `find_blocks` | the kernel that finds the blocks that a boolean mask shows | PTX |
//! | `pairs` | tensors with an element for each pair of query and key | PTX |
//! | `pack` | copies of tensors whose rows are not aligned | PTX |

pub mod custom;
pub mod heads;
pub mod mask;
pub mod sequence;
pub mod walk;

#[cfg(target_arch = "nvptx64")]
mod alternate;
#[cfg(target_arch = "nvptx64")]
pub mod backward;
#[cfg(target_arch = "nvptx64")]
pub mod combine;
#[cfg(target_arch = "nvptx64")]
mod epilogue;
#[cfg(target_arch = "nvptx64")]
pub mod find_blocks;
#[cfg(target_arch = "nvptx64")]
pub mod find_ranges;
#[cfg(target_arch = "nvptx64")]
pub mod forward;
#[cfg(target_arch = "nvptx64")]
pub mod guard;
#[cfg(target_arch = "nvptx64")]
pub mod key_rows;
#[cfg(target_arch = "nvptx64")]
pub mod merge;
#[cfg(target_arch = "nvptx64")]
pub mod pack;
#[cfg(target_arch = "nvptx64")]
mod pairs;
#[cfg(target_arch = "nvptx64")]
pub mod ranges;
#[cfg(target_arch = "nvptx64")]
pub mod score;
#[cfg(target_arch = "nvptx64")]
pub mod seen;
#[cfg(target_arch = "nvptx64")]
mod softmax;
#[cfg(target_arch = "nvptx64")]
mod team;
#[cfg(target_arch = "nvptx64")]
mod visits;
#[cfg(target_arch = "nvptx64")]
mod warp;
#[cfg(target_arch = "nvptx64")]
mod work;

#[cfg(target_arch = "nvptx64")]
pub use {
    epilogue::store_partial,
    softmax::{Softmax, SoftmaxScale, Total},
    team::Team,
    visits::Visits,
    warp::Warp,
    work::WorkTile,
};
