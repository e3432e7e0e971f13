//! Tensors of a merge, and of its gradient, by address.

use super::RawPart;
use crate::tensor::RawTensor;

/// Tensors of a merge by address, for [`merge_raw`](super::merge_raw).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RawMerge {
    /// Result of attention to some keys.
    pub first: RawPart,
    /// Result of the same queries' attention to other keys, of the first one's shape.
    pub second: RawPart,
    /// Result for all these keys, of the same shape.
    pub merged: RawPart,
}

impl RawMerge {
    /// Row-major tensors at address 0, for an o of this shape: enough to [plan](super::merge_plan) a merge whose tensors do not exist
    /// yet.
    pub fn row_major(shape: [usize; 4]) -> Self {
        let [first, second, merged] = [RawPart::row_major(shape); 3];
        RawMerge {
            first,
            second,
            merged,
        }
    }
}

/// Tensors of a merge's gradient by address, for [`merge_backward_raw`](super::merge_backward_raw).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RawMergeBackward {
    /// The first part of the merge.
    pub first: RawPart,
    /// The second part, of the first one's shape.
    pub second: RawPart,
    /// Gradient of the merged o, of its shape, with stride 1 in dim.
    pub d_o: RawTensor,
    /// Gradient of the merged lse, `f32[batch, heads, seqlen]`, contiguous; zeros if there is none.
    pub d_lse: Option<RawTensor<3>>,
    /// Gradient of the first part.
    pub d_first: RawPart,
    /// Gradient of the second part.
    pub d_second: RawPart,
}

impl RawMergeBackward {
    /// Row-major tensors at address 0, for an o of this shape, without d_lse: enough to [plan](super::merge_backward_plan) a call
    /// whose tensors do not exist yet.
    pub fn row_major(shape: [usize; 4]) -> Self {
        let [first, second, d_first, d_second] = [RawPart::row_major(shape); 4];
        RawMergeBackward {
            first,
            second,
            d_o: first.o,
            d_lse: None,
            d_first,
            d_second,
        }
    }
}
