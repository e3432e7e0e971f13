//! Tensor maps of what kernels load by TMA.

use crate::plan::{Swizzle, TensorMap};
use crate::tensor::RawTensor;
use kernels::abi::TensorRef;
use kernels::layout::descriptor::Panels;

/// Whether a tensor map can describe a tensor, or its copy if it is not aligned: strides are positive, and below 2^40
/// bytes (`cuTensorMapEncodeTiled`).
pub fn has_map(tensor: &RawTensor) -> bool {
    let used = TensorRef::from(*tensor);
    let strides = [used.batch_stride, used.head_stride, used.row_stride];
    tensor.shape.iter().zip(strides).all(|(&extent, stride)| {
        extent <= 1 || (0 < stride && stride < 1 << 39) || (stride < 0 && !used.is_aligned())
    })
}

/// The tensor map of a `[batch, heads, rows, dim]` tensor, for boxes of `box_rows` rows and the columns of one panel of a
/// kernel for `kernel_dim`.
pub fn tensor_map(
    tensor: TensorRef,
    [batch, heads, rows, dim]: [usize; 4],
    kernel_dim: u32,
    box_rows: u32,
) -> TensorMap {
    let width = Panels::width_for(kernel_dim);
    let strides = [
        tensor.row_stride,
        tensor.head_stride,
        tensor.batch_stride,
        0,
    ];
    TensorMap {
        address: tensor.address,
        element_bytes: 2,
        rank: 4,
        sizes: [dim, rows, heads, batch, 1].map(|size| size as u64),
        // The stride of an axis of one element is never used, but must be valid.
        strides: strides.map(|stride| match stride {
            0 => 2 * u64::from(kernel_dim),
            stride => 2 * stride as u64,
        }),
        box_sizes: [width, box_rows, 1, 1, 1],
        swizzle: match width {
            64 => Swizzle::B128,
            _ => Swizzle::B64,
        },
    }
}
