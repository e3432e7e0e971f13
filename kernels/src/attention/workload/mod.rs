//! The work of a block: which rows of which heads, on which keys.
//!
//! | module | what it holds | compiled for |
//! |---|---|---|
//! | [`sequence`] | lengths of a batch entry, where its rows start, its splits | both |
//! | [`heads`] | which head and which query a row of a tile is | both |
//! | [`walk`] | the walk of query rows over blocks of keys | both |
//! | `tile` | the query tile and the split of the keys that a block takes | PTX |
//! | `lengths` | the sequence of a batch entry, by its lengths in memory | PTX |
//! | `units` | the parts of all entries' keys that blocks take, by lengths | PTX |
//! | `key_rows` | where the rows of k and v lie | PTX |
//! | `descales` | what the numbers of a cache of e4m3 are multiplied by | PTX |
//! | `visits` | the blocks of keys that a query tile visits | PTX |
//! | `alternate` | the batch entry and the head of a number in the order of tiles | PTX |

pub mod heads;
pub mod sequence;
pub mod walk;

#[cfg(target_arch = "nvptx64")]
pub mod alternate;
#[cfg(target_arch = "nvptx64")]
pub mod descales;
#[cfg(target_arch = "nvptx64")]
pub mod key_rows;
#[cfg(target_arch = "nvptx64")]
pub mod lengths;
#[cfg(target_arch = "nvptx64")]
pub mod tile;
#[cfg(target_arch = "nvptx64")]
pub mod units;
#[cfg(target_arch = "nvptx64")]
pub mod visits;
