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
//!
//! # Serving
//!
//! [`Append`] writes new keys and values into a cache, contiguous or of pages, and rotates them and the queries. Attention reads the cache
//! where it lies, as [`Attention::pages`] or [`flash_attn_varlen_paged`] say:
//!
//! ```
//! # fn main() -> candle_core::Result<()> {
//! use candle_core::{DType, Device, Tensor};
//! use ferroattn_candle::{Append, Attention};
//!
//! let device = Device::Cpu;
//! // Five pages of 16 keys, in which two sequences have 17 keys and none.
//! let cache = Tensor::zeros((2, 5, 16, 2, 64), DType::F16, &device)?;
//! let (k_cache, v_cache) = (cache.get(0)?, cache.get(1)?);
//! let table = Tensor::new(&[[3_u32, 0], [4, 1]], &device)?;
//! let mut lengths = Tensor::new(&[17_u32, 0], &device)?;
//! let [cos, sin] = [(); 2].map(|()| Tensor::ones((32, 32), DType::F32, &device));
//! let (append, queries) = (Append::new().pages(&table).rotary(&cos?, &sin?), Tensor::ones(2, DType::U32, &device)?);
//! for _ in 0..3 {
//!     let q = Tensor::ones((2, 1, 8, 64), DType::F16, &device)?;
//!     let k = Tensor::ones((2, 1, 2, 64), DType::F16, &device)?;
//!     let (q, all) = append.clone().lengths(&lengths).run_with(&k, &k, &k_cache, &v_cache, &q)?;
//!     let attention = Attention::new().causal(true).pages(&table).padded(&queries, &all);
//!     assert_eq!(attention.forward(&q, &k_cache, &v_cache)?.dims(), [2, 1, 8, 64]);
//!     lengths = all;
//! }
//! assert_eq!(lengths.to_vec1::<u32>()?, [20, 3]);
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! `cuda`: NVIDIA's GPUs, on candle's stream and in memory of candle's allocator. It turns on `candle-core/cuda`, whose build needs nvcc.

mod append;
mod call;
mod csr;
mod descales;
mod e4m3;
mod flash;
mod learned;
mod memory;
mod op;
mod options;
mod padding;
mod prefix;
mod tensors;

pub use append::Append;
pub use csr::csr_pages;
pub use ferroattn::Fp8;
pub use flash::{
    flash_attn, flash_attn_alibi, flash_attn_alibi_windowed, flash_attn_alibi_windowed_softcap,
    flash_attn_varlen, flash_attn_varlen_alibi, flash_attn_varlen_alibi_windowed,
    flash_attn_varlen_alibi_windowed_softcap, flash_attn_varlen_paged,
    flash_attn_varlen_paged_alibi, flash_attn_varlen_paged_alibi_windowed,
    flash_attn_varlen_paged_alibi_windowed_softcap, flash_attn_varlen_paged_sinks_windowed_softcap,
    flash_attn_varlen_paged_windowed, flash_attn_varlen_windowed, flash_attn_windowed,
};
pub use options::Attention;
