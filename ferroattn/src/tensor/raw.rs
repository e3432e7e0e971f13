//! Tensors by address, for the raw entries.

use super::Layout;
use crate::error::{Error, Result};
use kernels::abi::TensorRef;

/// A tensor in memory of any owner, for [`Attention::forward_raw`](crate::Attention::forward_raw) and
/// [`Gemm::forward_raw`](crate::Gemm::forward_raw).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RawTensor<const R: usize = 4> {
    /// Address of the first element: in the device's memory, or the host's for the CPU.
    pub address: u64,
    /// Extent of every axis.
    pub shape: [usize; R],
    /// Elements from one index to the next, for every axis; zero and negative ones are fine.
    pub strides: [isize; R],
}

impl<const R: usize> RawTensor<R> {
    /// A row-major tensor at address 0: enough to plan a call whose tensors do not exist yet.
    pub fn row_major(shape: [usize; R]) -> Self {
        // Plans refuse a shape that overflows; so do these strides.
        let too_far = || std::array::from_fn(|axis| if axis + 1 < R { isize::MAX } else { 1 });
        let strides = Layout::contiguous(shape).map_or_else(too_far, |layout| layout.strides);
        RawTensor {
            address: 0,
            shape,
            strides,
        }
    }

    /// Checks that elements along the last axis, called `axis`, lie side by side, in an address space.
    pub(crate) fn expect_rows(&self, argument: &'static str, axis: &'static str) -> Result<()> {
        if let (Some(2..), Some(&stride)) = (self.shape.last(), self.strides.last())
            && stride != 1
        {
            return Err(Error::Stride {
                argument,
                axis,
                stride,
            });
        }
        self.expect_span(argument)
    }

    /// Checks that all elements lie in an address space.
    pub(crate) fn expect_span(&self, argument: &'static str) -> Result<()> {
        let span = self.layout().span();
        span.map(|_| ()).ok_or(Error::Overflow(argument))
    }

    pub(crate) fn layout(&self) -> Layout<R> {
        Layout {
            shape: self.shape,
            strides: self.strides,
        }
    }

    /// The strides, 0 on axes of one element, whose stride is never used.
    pub(crate) fn used_strides(&self) -> [isize; R] {
        std::array::from_fn(|axis| match self.shape[axis] {
            2.. => self.strides[axis],
            _ => 0,
        })
    }

    /// Whether it is `whole`'s memory, row by row, with as many elements of each row or fewer.
    pub(crate) fn is_first_part_of(&self, whole: &Self) -> bool {
        let as_long = RawTensor {
            shape: whole.shape,
            ..*self
        };
        let ([rows @ .., columns], [all_rows @ .., all_columns]) =
            (&self.shape[..], &whole.shape[..])
        else {
            return false;
        };
        self.address == whole.address
            && as_long.used_strides() == whole.used_strides()
            && (rows, columns <= all_columns) == (all_rows, true)
    }

    /// Whether rows are whole vectors of `count` elements, 16 bytes, at multiples of 16 bytes.
    pub(crate) fn has_vectors(&self, count: usize) -> bool {
        let strides = self.used_strides();
        let [rows @ .., _] = &strides[..] else {
            return false;
        };
        self.address.is_multiple_of(16)
            && self.shape[R - 1].is_multiple_of(count)
            && rows
                .iter()
                .all(|stride| stride.unsigned_abs().is_multiple_of(count))
    }
}

#[doc(hidden)]
impl From<RawTensor> for TensorRef {
    fn from(tensor: RawTensor) -> Self {
        let [batch_stride, head_stride, row_stride, _] =
            tensor.used_strides().map(|stride| stride as i64);
        TensorRef {
            address: tensor.address,
            batch_stride,
            head_stride,
            row_stride,
        }
    }
}

impl RawTensor<2> {
    /// Row `index`, of elements of so many bytes, which lie side by side.
    pub(crate) fn row(&self, index: usize, bytes: usize) -> RawTensor<1> {
        let [stride, _] = self.used_strides();
        let behind = index as i64 * stride as i64 * bytes as i64;
        RawTensor {
            address: self.address.wrapping_add_signed(behind),
            ..RawTensor::row_major([self.shape[1]])
        }
    }
}

#[doc(hidden)]
impl From<RawTensor<2>> for RawTensor {
    /// The matrix as the one head of a tensor.
    fn from(matrix: RawTensor<2>) -> Self {
        let ([rows, columns], [row_stride, stride]) = (matrix.shape, matrix.strides);
        RawTensor {
            address: matrix.address,
            shape: [1, 1, rows, columns],
            strides: [0, 0, row_stride, stride],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::RawTensor;
    use kernels::abi::TensorRef;

    #[test]
    fn strides_of_single_elements_do_not_count() {
        let is_aligned = |shape| {
            let strides = [3, 5, 64, 1];
            let raw = RawTensor {
                address: 1 << 20,
                shape,
                strides,
            };
            TensorRef::from(raw).is_aligned()
        };
        assert!(is_aligned([1, 1, 9, 64]));
        assert!(!is_aligned([1, 2, 9, 64]));
    }

    #[test]
    fn views_start_at_the_first_element() {
        let data: Vec<u16> = (0..24).collect();
        let raw = RawTensor {
            address: data[20..].as_ptr().expose_provenance() as u64,
            shape: [2, 3, 2],
            strides: [-12, -4, 1],
        };
        // SAFETY: 12 and 8 elements below element 20 lie in `data`, which nothing writes.
        let view = unsafe { raw.view::<u16, _>() };
        let elements: Vec<u16> = view.iter().copied().collect();
        assert_eq!(elements, [20, 21, 16, 17, 12, 13, 8, 9, 4, 5, 0, 1]);
        let nothing = RawTensor {
            address: 0,
            shape: [2, 0],
            strides: [isize::MIN, 1],
        };
        // SAFETY: there are no elements.
        assert!(unsafe { nothing.view::<u16, _>() }.is_empty());
    }
}
