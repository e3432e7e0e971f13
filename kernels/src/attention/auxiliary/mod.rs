//! Kernels of their own, before and after a main loop.
//!
//! | module | what it holds |
//! |---|---|
//! | [`append`], `kept` | new keys and values, copied to a cache, and what it keeps of them |
//! | [`csr`] | pages of the CSR form, copied to a table |
//! | [`pack`] | copies of tensors whose rows are not aligned |
//! | [`spread`] | packed sequences, copied to where each begins at a multiple of a step |
//! | [`round_rows`], [`round_values`], [`source`] | q, k and v, rounded to e4m3, and from what |
//! | [`find_ranges`] | tables of the keys that each query sees, of sequences |
//! | [`find_blocks`] | the blocks that a boolean mask shows |
//! | [`combine`] | partial results of all splits, combined |
//! | [`merge`] | results on two parts of the keys, merged, and the gradient of that |

pub mod append;
pub mod combine;
pub mod csr;
pub mod find_blocks;
pub mod find_ranges;
mod kept;
pub mod merge;
pub mod pack;
pub mod round_rows;
pub mod round_values;
pub mod source;
pub mod spread;
