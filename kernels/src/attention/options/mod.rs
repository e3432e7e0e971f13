//! The options of a call: which keys a row sees, and what happens to a score between `Q K^T` and the softmax.
//!
//! | module | what it holds | compiled for |
//! |---|---|---|
//! | [`mask`] | which keys a query sees, which queries see a key, and the blocks that follow | both |
//! | `ranges` | ranges of keys from tables | PTX |
//! | `seen` | boolean masks | PTX |
//! | `score` | softcap, ALiBi, a bias, and their gradients | PTX |
//! | `group_score` | softcap and ALiBi of rows of several heads | PTX |
//! | `cache_score` | scores of rows of several heads, with keys of e4m3 | PTX |
//! | `pairs` | tensors with an element for each pair of query and key | PTX |

pub mod mask;

#[cfg(target_arch = "nvptx64")]
pub mod cache_score;
#[cfg(target_arch = "nvptx64")]
pub mod group_score;
#[cfg(target_arch = "nvptx64")]
pub mod pairs;
#[cfg(target_arch = "nvptx64")]
pub mod ranges;
#[cfg(target_arch = "nvptx64")]
pub mod score;
#[cfg(target_arch = "nvptx64")]
pub mod seen;
