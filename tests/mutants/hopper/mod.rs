//! The kernels for Hopper: a producer, consumers, and what passes between them.

pub mod chunks;
pub mod gradient;
pub mod pipeline;
pub mod products;
pub mod store;

const FULL: &str = "hopper_f16_d64";
/// Rows see only a part of some blocks.
const CAUSAL: &str = "hopper_f16_d64_causal";
/// Tiles have two panels of 64 columns.
const WIDE: &str = "hopper_f16_d128";
const WIDE_CAUSAL: &str = "hopper_f16_d128_causal";
/// Two blocks have half of O's columns each; K and V pass in chunks.
const SLICES: &str = "hopper_f16_d512";
const SLICES_CAUSAL: &str = "hopper_f16_d512_causal";
