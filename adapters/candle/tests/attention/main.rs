//! The adapter against attention of candle's own operations, in f32, on every device that is there.
//!
//! `FERROATTN_DEVICE=cpu` or `cuda` chooses one: without it, the CPU and, with the feature `cuda`, the first GPU if there is one.

mod append;
mod compare;
mod e4m3_cache;
mod errors;
mod fp8;
mod functions;
mod layouts;
mod lengths;
mod options;
mod paged;
mod pages;
mod plain;
mod shared;
#[cfg(feature = "cuda")]
mod streams;
mod together;
mod varlen;
