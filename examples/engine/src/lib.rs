//! A small engine on the library alone, in safe Rust.
//!
//! | module | what it shows |
//! |---|---|
//! | [`model`] | one layer: a projection to packed queries, keys and values, attention, logits |
//! | [`requests`] | prompts of any lengths at once, then steps of decoding, whose keys and values grow in pages |
//! | [`generate`] | text, with a cache and without |
//! | [`train`] | gradients through attention into one packed tensor |

#![forbid(unsafe_code)]

pub mod generate;
pub mod model;
pub mod requests;
pub mod train;

use ferroattn::Device;

/// A GPU or, without one, the CPU.
pub fn device() -> Device {
    Device::cuda(0).unwrap_or_else(|_| Device::cpu())
}
