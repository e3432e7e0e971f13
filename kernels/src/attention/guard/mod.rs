//! Guarded products: infinities and NaN must not reach rows that do not see them.
//!
//! A product such as `P V` takes a block at the edge of the mask whole for all rows: P is 0 where a row does not see a
//! key. That is exact unless V holds an infinity or a NaN there, because 0 times infinity is NaN. Blocks at the edge are
//! few: a kernel searches them for such elements, and takes two slower products where it finds one.
//!
//! ```text
//! O     += P    x  (V, with 0 where it is not finite)
//! count  = sees x  (1 where V is not finite, else 0)
//! O      = NaN where count > 0
//! ```
//!
//! The gradients guard Q, dO and K alike.
//!
//! | module | what it holds |
//! |---|---|
//! | `search` | whether a tile of a warp holds an infinity or a NaN |
//! | `product` | the two products, for any operands |
//! | [`panels`] | search and products of Hopper's tiles |

pub mod panels;
mod product;
mod search;

pub use product::{in_turn, multiply_guarded, multiply_guarded_tile, multiply_seen};
pub use search::has_non_finite;
