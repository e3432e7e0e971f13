//! A small engine on the library alone, in safe Rust.
//!
//! | module | what it shows |
//! |---|---|
//! | [`model`] | one layer: a projection to packed queries, keys and values, attention, logits |
//! | [`cache`] | keys and values of a batch of requests, `[batch, rows, heads, dim]` |
//! | [`generate`] | prefill of prompts of any lengths at once, and decoding, a token of each request at a time |
//! | [`train`] | gradients through attention into one packed tensor |

#![forbid(unsafe_code)]

pub mod cache;
pub mod generate;
pub mod model;
pub mod train;

use ferroattn::Device;

/// A GPU or, without one, the CPU.
pub fn device() -> Device {
    Device::cuda(0).unwrap_or_else(|_| Device::cpu())
}
