//! Attention kernels in Rust.
//!
//! The crate is compiled twice. For `nvptx64-nvidia-cuda` it becomes PTX: the entry points of the
//! [`catalog`], each an instance of one generic kernel. For the host it holds what both sides must
//! agree on and what can be tested without a GPU.
//!
//! | module | what it holds | compiled for |
//! |---|---|---|
//! | [`abi`] | the argument block of a launch | both |
//! | [`catalog`] | which kernels exist, their tiles, and which one serves a request | both |
//! | [`layout`] | XOR swizzle, `mma`/`ldmatrix` fragment layouts | both |
//! | [`attention`] | masks; for PTX the main loops | both |
//! | [`text`] | what is made of the PTX: twins of bf16, source lines beside it, the part that can run | host |
//! | `bulk_copy` | a copy by the copy engine of `sm_90a` | PTX |
//! | `gemm` | the main loops of matrix products | PTX |
//! | `ptx` | inline-assembly wrappers, one instruction family a file | PTX |
//! | `tile` | register tiles, shared-memory tiles, copies | PTX |
//!
//! The classic kernels of the ladder are a crate of their own, made of the same parts.
#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, asm_experimental_arch))]

pub mod abi;
pub mod attention;
#[cfg(not(target_arch = "nvptx64"))]
pub mod catalog;

#[cfg(target_arch = "nvptx64")]
pub mod gemm;
pub mod layout;
#[cfg(not(target_arch = "nvptx64"))]
pub mod text;

#[cfg(target_arch = "nvptx64")]
pub mod bulk_copy;
#[cfg(target_arch = "nvptx64")]
pub mod entry;
#[cfg(target_arch = "nvptx64")]
pub mod ptx;
#[cfg(target_arch = "nvptx64")]
pub mod tile;

/// Never reached: the PTX build aborts in place (`-Cpanic=immediate-abort`), and `no_std` asks for
/// a handler all the same.
#[cfg(target_arch = "nvptx64")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}
