//! The lines of Algorithm 1 on the rows of a warp.
//!
//! | module | what it holds |
//! |---|---|
//! | [`warp`] | a warp's rows of Q, O, m and l, and the lines on them |
//! | [`softmax`] | the online softmax |
//! | [`pages`] | `P V` where pages have descales of their own |
//! | [`team`] | warps that share query rows |
//! | [`epilogue`] | O and lse, or partial results of a split, stored |

pub mod epilogue;
pub mod pages;
pub mod softmax;
pub mod team;
pub mod warp;
