//! The boolean mask.

use crate::options::RawMask;
use ndarray::ArrayView2;

/// The mask of one query head, in host memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HeadMask<'a> {
    /// `[seqlen_q, seqlen_kv]`; 0 hides.
    Bytes(ArrayView2<'a, u8>),
    /// `[seqlen_q, words]`; key `j` is bit `j % 32` of word `j / 32`.
    Bits(ArrayView2<'a, u32>),
}

impl HeadMask<'_> {
    /// The mask of the head `[batch, head]`.
    ///
    /// # Safety
    /// Every element lies in readable memory, aligned, and nothing writes it during `'a`.
    pub unsafe fn new<'a>(mask: &RawMask, [batch, head]: [usize; 2]) -> HeadMask<'a> {
        let (tensor, head) = (&mask.tensor, [batch, head]);
        match mask.bits {
            // SAFETY: the caller's word.
            true => HeadMask::Bits(unsafe { tensor.view_of_head(head) }),
            // SAFETY: the caller's word.
            false => HeadMask::Bytes(unsafe { tensor.view_of_head(head) }),
        }
    }

    /// Whether the mask lets a query see a key.
    pub fn sees(&self, [row, key]: [usize; 2]) -> bool {
        match self {
            HeadMask::Bytes(mask) => mask[[row, key]] != 0,
            HeadMask::Bits(mask) => mask[[row, key / 32]] >> (key % 32) & 1 != 0,
        }
    }
}
