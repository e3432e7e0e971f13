//! Attention: what a block computes, the online softmax, the main loops and the steps around them.
//!
//! | module | what it holds | compiled for |
//! |---|---|---|
//! | [`workload`] | which rows and which keys a block takes, and the walk over them | both |
//! | [`options`] | which keys a row sees, and what happens to a score | both |
//! | [`custom`] | scores and masks of other crates | both |
//! | `steps` | a warp's rows of Q, O, m and l, and the lines of the algorithm on them | PTX |
//! | `guard` | infinities and NaN that a row must not see | PTX |
//! | `forward` | the main loops, one a file | PTX |
//! | `backward` | the kernels of the backward pass, one a file | PTX |
//! | `auxiliary` | kernels before and after a main loop | PTX |

pub mod custom;
pub mod options;
pub mod workload;

#[cfg(target_arch = "nvptx64")]
pub mod auxiliary;
#[cfg(target_arch = "nvptx64")]
pub mod backward;
#[cfg(target_arch = "nvptx64")]
pub mod forward;
#[cfg(target_arch = "nvptx64")]
pub mod guard;
#[cfg(target_arch = "nvptx64")]
pub mod steps;

#[cfg(target_arch = "nvptx64")]
pub use {
    steps::epilogue::store_partial,
    steps::softmax::{Softmax, SoftmaxScale, Total},
    steps::team::Team,
    steps::warp::Warp,
    workload::tile::WorkTile,
    workload::visits::Visits,
};
