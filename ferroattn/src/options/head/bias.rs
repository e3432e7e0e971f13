//! The additive bias.

use crate::options::RawBias;
use crate::tensor::Dtype;
use half::{bf16, f16};
use ndarray::ArrayView2;

/// The bias of one query head, `[seqlen_q, seqlen_kv]`, in host memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HeadBias<'a> {
    F16(ArrayView2<'a, f16>),
    Bf16(ArrayView2<'a, bf16>),
    F32(ArrayView2<'a, f32>),
}

impl HeadBias<'_> {
    /// The bias of the head `[batch, head]`.
    ///
    /// # Safety
    /// Every element lies in readable memory, aligned, and nothing writes it during `'a`.
    pub unsafe fn new<'a>(bias: &RawBias, [batch, head]: [usize; 2]) -> HeadBias<'a> {
        let (tensor, head) = (&bias.tensor, [batch, head]);
        match bias.dtype {
            // SAFETY: the caller's word.
            Dtype::F16 => HeadBias::F16(unsafe { tensor.view_of_head(head) }),
            // SAFETY: the caller's word.
            Dtype::Bf16 => HeadBias::Bf16(unsafe { tensor.view_of_head(head) }),
            // SAFETY: the caller's word.
            Dtype::F32 => HeadBias::F32(unsafe { tensor.view_of_head(head) }),
        }
    }

    /// The number that is added to the score of a query and a key.
    pub fn at(&self, place: [usize; 2]) -> f64 {
        match self {
            HeadBias::F16(bias) => bias[place].to_f64(),
            HeadBias::Bf16(bias) => bias[place].to_f64(),
            HeadBias::F32(bias) => f64::from(bias[place]),
        }
    }
}
