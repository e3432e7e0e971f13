//! Arguments of the kernels that read and write a cache of e4m3.

use super::{AppendParams, ForwardParams};

/// Arguments of a kernel that decodes with a cache of e4m3.
#[repr(C)]
#[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::NoUninit))]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct E4m3Params {
    /// Arguments of kernels that decode. Elements of k and v, and their strides, are pairs of e4m3; `dim` counts numbers.
    pub forward: ForwardParams,
    /// What numbers of k are multiplied by.
    pub k: DescalesRef,
    /// What numbers of v are multiplied by.
    pub v: DescalesRef,
}

/// Arguments of a kernel that appends to a cache of e4m3.
#[repr(C)]
#[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::NoUninit))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AppendE4m3Params {
    /// Arguments of kernels that append; strides of the caches count bytes.
    pub append: AppendParams,
    /// What numbers of k are multiplied by; not 0.
    pub k: DescalesRef,
    /// What numbers of v are multiplied by; not 0.
    pub v: DescalesRef,
}

/// Descales in device memory: `f32[batch, kv_heads]` or, where pages have their own, `f32[pages, kv_heads]`. They are finite.
#[repr(C)]
#[cfg_attr(
    not(target_arch = "nvptx64"),
    derive(bytemuck::Pod, bytemuck::Zeroable)
)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DescalesRef {
    /// Device address of the first one; 0 if all are 1.
    pub address: u64,
    /// Elements from a batch entry or page to the next one.
    pub batch_stride: i64,
    /// Elements from a head to the next one.
    pub head_stride: i64,
    /// Whether pages, of at least 16 keys, have their own: 1 or 0.
    pub of_pages: u64,
}
