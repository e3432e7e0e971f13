//! Exact attention with gradients for [candle](candle_core), by the kernels of the crate [`ferroattn`].
//!
//! The functions have the names and arguments of the crate `candle-flash-attn`, so that a program changes its `use` line:
//!
//! ```
//! # fn main() -> candle_core::Result<()> {
//! use candle_core::{DType, Device, Tensor, Var};
//! use ferroattn_candle::flash_attn;
//!
//! let device = Device::Cpu;
//! let [q, k, v] = [8, 2, 2].map(|heads| Var::ones((1, 100, heads, 64), DType::F16, &device));
//! let (q, k, v) = (q?, k?, v?);
//! let o = flash_attn(&q, &k, &v, 1.0 / 8.0, true)?;
//! assert_eq!(o.dims(), [1, 100, 8, 64]);
//!
//! let gradients = o.sum_all()?.backward()?;
//! assert_eq!(gradients.get(&k).expect("a gradient").dims(), [1, 100, 2, 64]);
//! # Ok(())
//! # }
//! ```
//!
//! [`Attention`] has all options: a bias and sinks with gradients, masks, padded and packed sequences, values of another head dim. The
//! functions call it.
//!
//! Unlike `candle-flash-attn`'s, calls run on the CPU, too, have gradients, and take every head dim up to 1024 (gradients on a GPU: 256).
//! Its functions for paged caches are not served yet.
//!
//! # Features
//!
//! `cuda`: NVIDIA's GPUs, on candle's stream and in memory of candle's allocator. It turns on `candle-core/cuda`, whose build needs nvcc.

mod append;
mod call;
mod flash;
mod learned;
mod memory;
mod op;
mod options;
mod padding;
mod tensors;

pub use append::Append;
pub use flash::{
    flash_attn, flash_attn_alibi, flash_attn_alibi_windowed, flash_attn_alibi_windowed_softcap,
    flash_attn_varlen, flash_attn_varlen_alibi, flash_attn_varlen_alibi_windowed,
    flash_attn_varlen_alibi_windowed_softcap, flash_attn_varlen_paged,
    flash_attn_varlen_paged_alibi, flash_attn_varlen_paged_alibi_windowed,
    flash_attn_varlen_paged_alibi_windowed_softcap, flash_attn_varlen_paged_sinks_windowed_softcap,
    flash_attn_varlen_paged_windowed, flash_attn_varlen_windowed, flash_attn_windowed,
};
pub use options::Attention;
