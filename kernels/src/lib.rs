//! Attention kernels in Rust.
//!
//! The crate is compiled twice. For `nvptx64-nvidia-cuda` it becomes PTX: the entry points of
//! [`table`], each an instance of one generic kernel. For the host it holds what both sides must
//! agree on and what can be tested without a GPU: the kernel [`table`], the launch [`params`], and
//! the index arithmetic of [`layout`] and [`mask`].
//!
//! | module | what it holds | compiled for |
//! |---|---|---|
//! | [`class`] | classes of devices, and their tiles | both |
//! | [`table`] | every kernel: name, family, dtype, head dim, mask, tile | both |
//! | [`select`](mod@select) | which kernel serves a request | both |
//! | [`gemm`] | matrix products: tiles and the argument block; for PTX the main loops | both |
//! | [`params`] | the argument block of a launch | both |
//! | [`layout`] | XOR swizzle, `mma`/`ldmatrix` fragment layouts | both |
//! | [`order`] | which block computes which query tile | both |
//! | [`mask`] | which keys a row sees, block trip counts | both |
//! | `ptx` | inline-assembly wrappers, one instruction family a file | PTX |
//! | `tile` | register tiles, shared-memory tiles, copies, softmax | PTX |
//! | `forward` | the main loops of FlashAttention-2 and flash-decoding | PTX |
//! | `combine` | partial results of splits of the keys, added up | PTX |
//! | [`ladder`] | the classic kernels, each a step up from the one before | PTX, options and table both |
//! | `pack` | copies of tensors whose rows are not aligned | PTX |
#![no_std]
#![cfg_attr(
    target_arch = "nvptx64",
    feature(abi_ptx, asm_experimental_arch, cold_path)
)]

pub mod class;
pub mod divide;
pub mod gemm;
pub mod ladder;
pub mod layout;
pub mod mask;
pub mod order;
pub mod params;
pub mod select;
pub mod table;

#[cfg(target_arch = "nvptx64")]
mod combine;
#[cfg(target_arch = "nvptx64")]
mod entry;
#[cfg(target_arch = "nvptx64")]
mod forward;
#[cfg(target_arch = "nvptx64")]
mod pack;
#[cfg(target_arch = "nvptx64")]
mod ptx;
#[cfg(target_arch = "nvptx64")]
mod tile;

/// Never reached: the PTX build aborts in place (`-Cpanic=immediate-abort`), and `no_std` asks for
/// a handler all the same.
#[cfg(target_arch = "nvptx64")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}
