//! Exact attention (FlashAttention) on NVIDIA GPUs, with kernels written in Rust, and on the CPU.
//!
//! [`Attention`] holds the options, [`Tensor`] the data, [`Device`] says where. The result is `o`
//! and the row log-sum-exp `lse`:
//!
//! ```
//! # fn main() -> ferroattn::Result<()> {
//! use ferroattn::{Attention, Device, Tensor, bf16};
//!
//! let device = Device::cuda(0).unwrap_or_else(|_| Device::cpu());
//! let data = vec![bf16::ONE; 2 * 4 * 100 * 64];
//! let [q, k, v] = [(); 3].map(|()| Tensor::new(&device, [2, 4, 100, 64], &data));
//! let (o, lse) = Attention::new().causal(true).forward(&q?, &k?, &v?)?;
//! assert_eq!(o.to_vec()?, data);
//! // One key, of score 64 / sqrt(64).
//! assert_eq!(lse.to_vec()?[0], 8.0);
//! # Ok(())
//! # }
//! ```
//!
//! [`Attention::backward`] gives the gradients of q, k and v. [`merge()`] makes one result of those for parts of the keys. [`Gemm`] multiplies matrices, with kernels of the same parts.
//!
//! A [`TensorView`] is a part of a tensor, or a tensor with its axes in another order: packed queries,
//! keys and values are used [where they lie](TensorBase). Owners of other device memory call
//! [`Attention::forward_raw`] with addresses and strides.
//!
//! Types of other crates in the interface: `half`'s numbers, `bytemuck`'s traits, and the module [`custom`], which is that of the crate
//! `kernels`, so that other crates' kernels implement its trait without this one.
//!
//! A GPU needs its NVIDIA driver, which is opened when it is first used, and no CUDA installation. The
//! kernels are compiled when this crate is built with the feature `ptx`, if the compiler has its library source
//! (`rustup component add rust-src`).
//!
//! # Features
//!
//! | feature | gives |
//! |---|---|
//! | `cuda`, by default | GPUs: `Device::cuda`, and `CudaDriver` through `cudarc` or another crate that binds CUDA; turns on `ptx` |
//! | `cpu`, by default | calls on the CPU, and `check`, `backward::check`, `gemm::check`, `reference`, `random`, `HostOptions` |
//! | `emulator` | GPUs that the CPU emulates, strictly: `Device::emulator`, `Device::counters` and the crate `emulator`; turns on `ptx` |
//! | `ptx` | the kernels, for [a program's own driver](Device::with_driver) |
//! | `serde` | fields of problems and options, read and written |
//!
//! Tensors of the host and plans for any device need no feature. A call on the CPU without `cpu` is
//! [`Error::NoCpu`], a driver without `ptx` [`Error::NotCompiled`].

mod append;
mod attention;
pub mod backward;
#[cfg(feature = "cpu")]
mod comparison;
mod csr;
mod decoder;
pub mod device;
mod dtype;
mod empty;
mod entry;
mod error;
mod forward;
pub mod gemm;
#[doc(hidden)]
pub mod internals;
mod merge;
#[cfg(not(feature = "cpu"))]
mod no_cpu;
mod options;
mod pack;
mod plan;
mod ptx;
#[cfg(feature = "cpu")]
pub mod random;
mod recent;
#[cfg(feature = "cpu")]
mod rows;
mod run;
mod spread;
mod tensor;
mod tensor_map;
mod workspace;

#[cfg(feature = "emulator")]
pub use ::emulator;
pub use append::{Append, RawAppend, RawRotary, append_plan, append_raw};
pub use attention::Attention;
pub use backward::{BackwardInputs, Gradients, GradientsMut, RawBackward};
pub use csr::{CsrPages, RawCsrPages, csr_pages_plan, csr_pages_raw};
pub use decoder::{Decoder, DecoderShape};
pub use device::{Class, Device, Event, Facts, Stream};
pub use dtype::Dtype;
pub use error::{Error, ErrorKind, Result};
pub use float8::F8E4M3;
pub use forward::{Problem, RawForward, choice as kernel};
#[cfg(feature = "cpu")]
pub use forward::{Rounded, check, reference};
pub use gemm::{Accumulation, Gemm, GemmProblem, RawGemm};
pub use half::{bf16, f16};
pub use kernels::attention::custom;
pub use merge::{
    Partial, PartialMut, RawMerge, RawMergeBackward, RawPart, merge, merge_backward,
    merge_backward_into, merge_backward_plan, merge_backward_raw, merge_into, merge_plan,
    merge_raw,
};
#[cfg(feature = "cpu")]
pub use options::HostOptions;
pub use options::{
    CustomArray, CustomKernels, Fp8, MaskElement, ParseWindowError, RawArray, RawBias, RawCustom,
    RawE4m3, RawE4m3Cache, RawMask, RawOptions, RawPrefix, RawSequences, Sequences, Window,
    alibi_slopes,
};
pub use plan::{Plan, Step};
pub use ptx::Modules as CustomModules;
pub use tensor::{
    Buffer, Element, HostSlice, Part, RawTensor, Storage, StorageMut, Tensor, TensorBase,
    TensorView, TensorViewMut,
};
pub use workspace::RawWorkspace;
