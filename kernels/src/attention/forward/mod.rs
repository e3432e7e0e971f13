//! The main loops, one a file.
//!
//! | module | rows of a warp | for |
//! |---|---|---|
//! | `sm80` | its own | most shapes |
//! | `team` | shared with other warps | head dims whose O is too wide for a warp |
//! | `wide` | shared with other warps | head dims above 256 |
//! | `decode` | its own | few queries on many keys |

mod decode;
mod sm80;
mod team;
mod wide;

pub use decode::decode;
pub use sm80::forward;
pub use team::forward_shared_rows;
pub use wide::wide;
