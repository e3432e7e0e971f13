//! The lines of Algorithm 1 on the rows of a warp.
//!
//! | module | what it holds |
//! |---|---|
//! | [`warp`] | a warp's rows of Q, O, m and l, and the lines on them |
//! | [`softmax`] | the online softmax |
//! | [`team`] | warps that share query rows |
//! | [`epilogue`] | O and lse, or partial results of a split, stored |

pub mod epilogue;
pub mod softmax;
pub mod team;
pub mod warp;
