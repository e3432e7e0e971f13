//! The main loops, one a file.
//!
//! | module | rows of a warp | for |
//! |---|---|---|
//! | `sm80` | its own | most shapes |
//! | `sm90` | its own | Hopper |
//! | `team` | shared with other warps | head dims whose O is too wide for a warp |
//! | `wide` | shared with other warps | head dims above 256 |
//! | `decode` | its own | few queries on many keys |
//! | `fp8` | its own | numbers of e4m3, on Hopper |
//! | `latent` | shared with another warp | values that are the first part of keys of 576 elements, on Hopper |
//!
//! `begin` is what several of them begin with, `team_tiles` where the warps of a team find their tiles.
//!
//! All of them walk from the last visible block of keys down to block 0: their masks are prefixes. A mask whose
//! keys start later ends the walk at its first seen block, and masks the blocks before its first whole one.
//!
//! Comments give lines of Algorithm 1 of FlashAttention-2 (Dao 2023). Parameters are named as in
//! [`Warp`](super::Warp); `W` is the number of warps of a block.

mod begin;
mod decode;
mod fp8;
mod latent;
mod sm80;
pub mod sm90;
mod team;
mod team_tiles;
mod wide;

pub use decode::{decode, decode_e4m3};
pub use fp8::fp8;
pub use fp8::outer::{OneLevel, TwoLevels};
pub use latent::latent;
pub use sm80::sm80;
pub use sm90::{Unwatched, Watch, sm90};
pub use team::team;
pub use wide::wide;
