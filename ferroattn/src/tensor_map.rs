//! Tensor maps of what kernels load by TMA.

use crate::tensor::RawTensor;
use kernels::abi::TensorRef;
use kernels::layout::descriptor::Panels;
use kernels::layout::element::{self, BYTES};

/// A tensor of [elements](element) in device memory, and the box of it that a copy moves.
///
/// Axes count from the innermost, whose elements are adjacent. A copy gives zeros for the elements of a box outside the
/// tensor, and does not store them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorMap {
    /// Address of the first element, a multiple of 16.
    pub address: u64,
    /// Elements along each axis, 1 to 2^32.
    pub sizes: [u64; 4],
    /// Bytes from an element to the next one along the second axis and those after it: multiples of 16 below 2^40.
    pub strides: [u64; 3],
    /// Elements of the box along each axis, 1 to 256.
    pub box_sizes: [u32; 4],
    /// The layout of the box in shared memory, whose rows are the box's along the innermost axis.
    pub swizzle: Swizzle,
}

/// How the rows of a box are permuted in shared memory, so that a column of chunks of 16 bytes has no bank conflicts. Its
/// number is the CUDA driver's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Swizzle {
    /// Rows of 64 bytes: bits 4 and 5 of an address are XORed with bits 7 and 8.
    B64 = 2,
    /// Rows of 128 bytes: bits 4 to 6 of an address are XORed with bits 7 to 9.
    B128 = 3,
}

/// Whether a tensor map can describe a tensor, or its copy if it is not aligned: strides are below 2^40 bytes
/// (`cuTensorMapEncodeTiled`) and not negative, and rows lie apart. Heads and batch entries may repeat: maps with such
/// strides of 0 loaded what they should (H100, driver 580).
pub fn has_map(tensor: &RawTensor) -> bool {
    let used = TensorRef::from(*tensor);
    let strides = [used.batch_stride, used.head_stride, used.row_stride];
    let axes = tensor.shape.iter().zip(strides).zip([0, 0, 1]);
    axes.into_iter().all(|((&extent, stride), least)| {
        extent <= 1
            || (least..(1 << 40) / i64::from(BYTES)).contains(&stride)
            || (stride < 0 && !used.is_aligned())
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
    let axes = [
        (rows, tensor.row_stride),
        (heads, tensor.head_stride),
        (batch, tensor.batch_stride),
    ];
    TensorMap {
        address: tensor.address,
        sizes: [dim, rows, heads, batch].map(|size| size as u64),
        strides: axes.map(|(extent, stride)| match extent {
            // It is never used, but must be valid.
            1 => u64::from(BYTES * kernel_dim),
            _ => element::bytes(stride) as u64,
        }),
        box_sizes: [width, box_rows, 1, 1],
        swizzle: match width * BYTES {
            128 => Swizzle::B128,
            _ => Swizzle::B64,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::{has_map, tensor_map};
    use crate::tensor::RawTensor;
    use kernels::abi::TensorRef;

    /// Repeated heads and entries have a map, with strides of 0; repeated rows have none.
    #[test]
    fn expanded_tensors_have_maps() {
        let of = |strides: [isize; 4]| RawTensor {
            strides,
            ..RawTensor::row_major([2, 3, 50, 64])
        };
        for (strides, expected) in [
            ([9600, 3200, 64, 1], true),
            ([0, 3200, 64, 1], true),
            ([3200, 0, 64, 1], true),
            ([0, 0, 64, 1], true),
            ([9600, 3200, 0, 1], false),
            ([-9600, 3200, 64, 1], false),
            ([9600, 3200, 1 << 39, 1], false),
        ] {
            assert_eq!(has_map(&of(strides)), expected, "{strides:?}");
        }
        let expanded = TensorRef::from(of([0, 3200, 64, 1]));
        let map = tensor_map(expanded, [2, 3, 50, 64], 64, 50);
        assert_eq!(map.strides, [128, 6400, 0]);
        let single = TensorRef::from(RawTensor::row_major([1, 1, 50, 64]));
        let map = tensor_map(single, [1, 1, 50, 64], 64, 50);
        assert_eq!(map.strides, [128, 128, 128]);
    }
}
