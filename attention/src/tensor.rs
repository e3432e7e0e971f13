//! Typed tensors with shape and strides.

use crate::buffer::Buffer;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::layout::Layout;
use bytemuck::Pod;
use kernels::abi::TensorRef;

/// An `R`-dimensional tensor in the memory of a device, which it owns.
///
/// Strides count elements, and may be zero or negative.
///
/// ```
/// # fn main() -> attention::Result<()> {
/// use attention::{Device, Tensor};
///
/// let device = Device::cpu();
/// // [batch, rows, heads, dim] memory, seen as [batch, heads, rows, dim]: nothing is copied.
/// let tensor = Tensor::new(&device, [1, 3, 2, 8], &[0.5_f32; 48])?.transpose(1, 2);
/// assert_eq!(tensor.shape(), [1, 2, 3, 8]);
/// assert_eq!(tensor.strides(), [48, 8, 16, 1]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Tensor<T, const R: usize = 4> {
    buffer: Buffer<T>,
    offset: usize,
    layout: Layout<R>,
}

impl<T: Pod, const R: usize> Tensor<T, R> {
    /// Copies row-major `data` to the device.
    ///
    /// # Errors
    /// If `data` has another length than the shape, or the device has not enough memory.
    pub fn new(device: &Device, shape: [usize; R], data: &[T]) -> Result<Self> {
        let layout = contiguous(shape)?;
        if layout.len() != data.len() {
            return Err(Error::Length {
                shape: shape.to_vec(),
                expected: layout.len(),
                found: data.len(),
            });
        }
        Ok(Tensor {
            buffer: device.upload(data)?,
            offset: 0,
            layout,
        })
    }

    /// A row-major tensor of zeros.
    ///
    /// # Errors
    /// If the size overflows or the device has not enough memory.
    pub fn zeros(device: &Device, shape: [usize; R]) -> Result<Self> {
        let layout = contiguous(shape)?;
        Ok(Tensor {
            buffer: Buffer::zeroed(device, layout.len())?,
            offset: 0,
            layout,
        })
    }

    /// A view of a buffer whose first element is at `offset`.
    ///
    /// # Errors
    /// If an element lies outside the buffer.
    pub fn from_buffer(
        buffer: Buffer<T>,
        offset: usize,
        shape: [usize; R],
        strides: [isize; R],
    ) -> Result<Self> {
        let layout = Layout { shape, strides };
        let inside = shape.contains(&0)
            || layout.span().is_some_and(|(low, high)| {
                offset.checked_add_signed(low).is_some()
                    && offset
                        .checked_add_signed(high)
                        .is_some_and(|last| last < buffer.len())
            });
        if !inside {
            return Err(Error::OutOfBounds {
                shape: shape.to_vec(),
                strides: strides.to_vec(),
                offset,
                len: buffer.len(),
            });
        }
        Ok(Tensor {
            buffer,
            offset,
            layout,
        })
    }

    /// Extent of every axis.
    #[must_use]
    pub fn shape(&self) -> [usize; R] {
        self.layout.shape
    }

    /// Elements from one index to the next, for every axis.
    #[must_use]
    pub fn strides(&self) -> [isize; R] {
        self.layout.strides
    }

    /// Index of the first element in the buffer.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The device whose memory it is in.
    #[must_use]
    pub fn device(&self) -> Device {
        self.buffer.device()
    }

    /// Whether the elements lie in row-major order without gaps.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        self.layout.is_contiguous()
    }

    /// Copies the elements to the host, in row-major order.
    ///
    /// # Errors
    /// If the driver reports a failure, of this call or of earlier work on the device.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let mut data = self.buffer.to_vec()?;
        if self.is_contiguous() {
            data.truncate(self.offset + self.layout.len());
            data.drain(..self.offset);
            return Ok(data);
        }
        let offset = self.offset as isize;
        Ok(self
            .layout
            .indices()
            .map(|index| data[(offset + index) as usize])
            .collect())
    }

    /// The memory, without shape.
    #[must_use]
    pub fn into_buffer(self) -> Buffer<T> {
        self.buffer
    }

    /// The same elements with axes `a` and `b` swapped; copies nothing.
    ///
    /// # Panics
    /// If an axis is not less than `R`.
    #[must_use]
    pub fn transpose(mut self, a: usize, b: usize) -> Self {
        self.layout.shape.swap(a, b);
        self.layout.strides.swap(a, b);
        self
    }

    pub(crate) fn address(&self) -> u64 {
        self.buffer.address() + (self.offset * size_of::<T>()) as u64
    }

    pub(crate) fn address_mut(&mut self) -> u64 {
        self.buffer.address_mut() + (self.offset * size_of::<T>()) as u64
    }
}

impl<T: Pod> Tensor<T> {
    /// What a kernel needs to know to read it.
    pub(crate) fn as_ref(&self, argument: &'static str) -> Result<TensorRef> {
        tensor_ref(argument, self.address(), self.strides())
    }

    /// What a kernel needs to know to write it.
    pub(crate) fn as_mut(&mut self, argument: &'static str) -> Result<TensorRef> {
        tensor_ref(argument, self.address_mut(), self.strides())
    }
}

fn tensor_ref(argument: &'static str, address: u64, strides: [isize; 4]) -> Result<TensorRef> {
    let [batch_stride, head_stride, row_stride, stride] = strides.map(|stride| stride as i64);
    if stride != 1 {
        return Err(Error::DimStride {
            argument,
            stride: stride as isize,
        });
    }
    Ok(TensorRef {
        address,
        batch_stride,
        head_stride,
        row_stride,
    })
}

fn contiguous<const R: usize>(shape: [usize; R]) -> Result<Layout<R>> {
    Layout::contiguous(shape).ok_or(Error::Overflow { argument: "tensor" })
}

#[cfg(test)]
mod tests {
    use super::Tensor;
    use crate::device::Device;
    use crate::error::Error;

    #[test]
    fn data_must_fill_the_shape() {
        let error = Tensor::new(&Device::cpu(), [2, 3], &[0_u8; 5]).expect_err("one too few");
        assert!(
            matches!(
                error,
                Error::Length {
                    expected: 6,
                    found: 5,
                    ..
                }
            ),
            "{error}"
        );
        let error = Tensor::<u8, 2>::zeros(&Device::cpu(), [1 << 32; 2]).expect_err("2^64 bytes");
        assert!(matches!(error, Error::Overflow { .. }), "{error}");
    }

    #[test]
    fn views_stay_inside_their_buffer() {
        let view = |offset, shape, strides| {
            let buffer = Device::cpu()
                .upload(&[0_u8, 1, 2, 3, 4, 5])
                .expect("enough memory");
            Tensor::from_buffer(buffer, offset, shape, strides)
        };
        let inside = [
            (0, [2, 3], [3, 1]),
            (5, [2, 3], [-3, -1]),
            (2, [2, 3], [-2, 1]),
            (9, [0, 3], [1, 1]),
        ];
        for (offset, shape, strides) in inside {
            assert!(
                view(offset, shape, strides).is_ok(),
                "{offset} {shape:?} {strides:?}"
            );
        }
        let outside = [
            (1, [2, 3], [3, 1]),
            (4, [2, 3], [-3, -1]),
            (6, [1, 1], [1, 1]),
            (0, [2, 2], [isize::MAX, isize::MAX]),
            (0, [2, 1], [isize::MIN, 1]),
            (usize::MAX, [2, 2], [1, 1]),
        ];
        for (offset, shape, strides) in outside {
            let refused = matches!(view(offset, shape, strides), Err(Error::OutOfBounds { .. }));
            assert!(refused, "{offset} {shape:?} {strides:?}");
        }
    }

    #[test]
    fn elements_are_read_in_row_major_order() {
        let tensor = Tensor::new(&Device::cpu(), [2, 3], &[0, 1, 2, 3, 4, 5]).expect("valid");
        assert_eq!(tensor.transpose(0, 1).to_vec(), Ok(vec![0, 3, 1, 4, 2, 5]));
        let view = |offset, strides| {
            let buffer = Device::cpu()
                .upload(&[0, 1, 2, 3, 4, 5])
                .expect("enough memory");
            Tensor::from_buffer(buffer, offset, [2, 2], strides)
                .expect("inside")
                .to_vec()
        };
        assert_eq!(view(1, [2, 1]), Ok(vec![1, 2, 3, 4]));
        assert_eq!(view(5, [-3, 0]), Ok(vec![5, 5, 2, 2]));
    }
}
