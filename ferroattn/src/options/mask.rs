//! The elements of a boolean mask.

use crate::tensor::sealed::Sealed;

/// Elements of a mask: bytes, `u8`, or words of bits, `u32`. Sealed.
pub trait MaskElement: Sealed + bytemuck::Pod {
    /// Keys of an element.
    const KEYS: usize;
}

impl Sealed for u8 {}

impl Sealed for u32 {}

impl MaskElement for u8 {
    const KEYS: usize = 1;
}

impl MaskElement for u32 {
    const KEYS: usize = u32::BITS as usize;
}
