//! Attention: masks, heads, the online softmax, the main loops and what surrounds them.
//!
//! | module | what it holds | compiled for |
//! |---|---|---|
//! | [`mask`] | which keys a row sees, block trip counts | both |
//! | `forward` | the main loops, one a file | PTX |
//! | `place` | which rows and keys a block takes | PTX |
//! | `warp` | a warp's rows of Q, O, m and l, and a step of the main loop | PTX |
//! | `team` | warps that share query rows | PTX |
//! | `softmax` | the online softmax | PTX |
//! | `non_finite` | infinities and NaN in V behind the causal mask | PTX |
//! | `epilogue` | O and lse, stored | PTX |
//! | `combine` | partial results of splits of the keys, added up | PTX |
//! | `pack` | copies of tensors whose rows are not aligned | PTX |

pub mod heads;
pub mod mask;
pub mod sequence;

#[cfg(target_arch = "nvptx64")]
pub mod combine;
#[cfg(target_arch = "nvptx64")]
mod epilogue;
#[cfg(target_arch = "nvptx64")]
pub mod forward;
#[cfg(target_arch = "nvptx64")]
pub mod non_finite;
#[cfg(target_arch = "nvptx64")]
pub mod pack;
#[cfg(target_arch = "nvptx64")]
pub mod score;
#[cfg(target_arch = "nvptx64")]
mod softmax;
#[cfg(target_arch = "nvptx64")]
mod team;
#[cfg(target_arch = "nvptx64")]
mod warp;
#[cfg(target_arch = "nvptx64")]
mod work;

#[cfg(target_arch = "nvptx64")]
pub use epilogue::store_partial;
#[cfg(target_arch = "nvptx64")]
pub use softmax::{Softmax, SoftmaxScale, Total};
#[cfg(target_arch = "nvptx64")]
pub use team::Team;
#[cfg(target_arch = "nvptx64")]
pub use warp::Warp;
#[cfg(target_arch = "nvptx64")]
pub use work::WorkTile;
