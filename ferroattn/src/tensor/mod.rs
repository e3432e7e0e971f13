//! Typed tensors with shape and strides, in the memory of a device.

mod address;
#[cfg(feature = "cpu")]
mod arrays;
mod buffer;
mod copy;
mod element;
mod host;
mod layout;
mod raw;
pub(crate) mod sealed;
mod storage;
mod view;

pub use crate::dtype::Dtype;
pub(crate) use crate::error::expect_shape;
pub use buffer::Buffer;
pub use element::Element;
pub(crate) use layout::Layout;
pub use raw::RawTensor;
pub use storage::{HostSlice, Part, Storage, StorageMut};

use crate::device::Device;
use crate::error::{Error, Result};
use bytemuck::Pod;

/// An `R`-dimensional tensor: a buffer, the position of the first element in it, a shape and strides.
///
/// [`Tensor`] owns its buffer, [`TensorView`] borrows one, [`TensorViewMut`] borrows one to write.
/// Strides count elements, and may be zero or negative.
///
/// Methods that change the layout ([`narrow`](Self::narrow), [`select`](Self::select),
/// [`transpose`](Self::transpose), [`permute`](Self::permute), [`reshape`](Self::reshape),
/// [`broadcast`](Self::broadcast)) copy nothing. They take the tensor by value and give one of the
/// same kind, so start from [`view`](Self::view) to keep the owner:
///
/// ```
/// # fn main() -> ferroattn::Result<()> {
/// use ferroattn::{Attention, Device, Tensor, f16};
///
/// // A projection leaves queries, keys and values packed: [batch, rows, 3, heads, dim].
/// let packed: Vec<f16> = (0..2 * 5 * 3 * 4 * 8).map(|i| f16::from_f32(i as f32 / 960.0)).collect();
/// let qkv = Tensor::new(&Device::cpu(), [2, 5, 3, 4, 8], &packed)?;
///
/// let [q, k, v] = [0, 1, 2].map(|part| qkv.view().select(2, part)?.transpose(1, 2));
/// let (q, k, v) = (q?, k?, v?);
/// assert_eq!(q.shape(), [2, 4, 5, 8]); // [batch, heads, rows, dim]
/// assert_eq!(q.strides(), [480, 8, 96, 1]);
///
/// let (o, lse) = Attention::new().forward(&q, &k, &v)?;
/// assert_eq!(o.shape(), [2, 4, 5, 8]);
/// # assert_eq!(lse.shape(), [2, 4, 5]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TensorBase<S, const R: usize = 4> {
    storage: S,
    offset: usize,
    layout: Layout<R>,
}

/// A tensor that owns its memory. See [`TensorBase`] for its methods.
pub type Tensor<T, const R: usize = 4> = TensorBase<Buffer<T>, R>;

/// A tensor in borrowed memory. See [`TensorBase`] for its methods.
pub type TensorView<'a, T, const R: usize = 4> = TensorBase<&'a Buffer<T>, R>;

/// A tensor in borrowed memory, to write. See [`TensorBase`] for its methods.
pub type TensorViewMut<'a, T, const R: usize = 4> = TensorBase<&'a mut Buffer<T>, R>;

impl<T: Pod, const R: usize> Tensor<T, R> {
    /// Copies row-major `data` to the device.
    ///
    /// # Errors
    /// If `data` has another length than the shape, or the device has not enough memory.
    pub fn new(device: &Device, shape: [usize; R], data: &[T]) -> Result<Self> {
        Ok(TensorBase {
            layout: contiguous_of(shape, data.len())?,
            offset: 0,
            storage: device.upload(data)?,
        })
    }

    /// A row-major tensor of zeros.
    ///
    /// # Errors
    /// If the size overflows or the device has not enough memory.
    pub fn zeros(device: &Device, shape: [usize; R]) -> Result<Self> {
        let layout = contiguous(shape)?;
        Ok(TensorBase {
            storage: Buffer::zeroed(device, layout.len())?,
            offset: 0,
            layout,
        })
    }

    /// The buffer, without shape.
    pub fn into_buffer(self) -> Buffer<T> {
        self.storage
    }
}

impl<S: Storage, const R: usize> TensorBase<S, R> {
    /// The tensor in `buffer` (a [`Buffer`], `&Buffer` or `&mut Buffer`) whose first element is
    /// element `offset` of the buffer.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Device, TensorView};
    ///
    /// let buffer = Device::cpu().upload(&[0, 1, 2, 3, 4, 5])?;
    /// let columns = TensorView::from_buffer(&buffer, 0, [3, 2], [1, 3])?;
    /// let backwards = TensorView::from_buffer(&buffer, 5, [6], [-1])?;
    /// assert_eq!(columns.to_vec()?, [0, 3, 1, 4, 2, 5]);
    /// assert_eq!(backwards.to_vec()?, [5, 4, 3, 2, 1, 0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If an element lies outside the buffer, or the number of elements overflows.
    pub fn from_buffer(
        buffer: S,
        offset: usize,
        shape: [usize; R],
        strides: [isize; R],
    ) -> Result<Self> {
        contiguous(shape)?;
        let layout = Layout { shape, strides };
        let len = buffer.borrow().len();
        let is_inside = |position| {
            let position = offset.checked_add_signed(position);
            // Of an empty tensor, the end of the buffer is inside, too.
            position.is_some_and(|position| position < len || position == len && layout.is_empty())
        };
        match layout.span() {
            Some((low, high)) if is_inside(low) && is_inside(high) => Ok(TensorBase {
                storage: buffer,
                offset,
                layout,
            }),
            _ => Err(Error::OutOfBounds {
                shape: shape.to_vec(),
                strides: strides.to_vec(),
                offset,
                len,
            }),
        }
    }

    /// Extent of every axis.
    pub fn shape(&self) -> [usize; R] {
        self.layout.shape
    }

    /// Elements from one index to the next, for every axis.
    pub fn strides(&self) -> [isize; R] {
        self.layout.strides
    }

    /// Index of the first element in the buffer.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.layout.len()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.layout.is_empty()
    }

    /// Whether the elements lie in row-major order without gaps.
    pub fn is_contiguous(&self) -> bool {
        self.layout.is_contiguous()
    }

    /// The device whose memory the tensor is in.
    pub fn device(&self) -> Device {
        self.storage.borrow().device()
    }

    /// The tensor, borrowed.
    pub fn view(&self) -> TensorView<'_, S::Item, R> {
        TensorBase {
            storage: self.storage.borrow(),
            offset: self.offset,
            layout: self.layout,
        }
    }

    /// The tensor, borrowed to write.
    pub fn view_mut(&mut self) -> TensorViewMut<'_, S::Item, R>
    where
        S: StorageMut,
    {
        TensorBase {
            storage: self.storage.borrow_mut(),
            offset: self.offset,
            layout: self.layout,
        }
    }
}

fn contiguous<const R: usize>(shape: [usize; R]) -> Result<Layout<R>> {
    Layout::contiguous(shape).ok_or(Error::Overflow("tensor"))
}

/// The row-major layout of a shape that has `found` elements.
fn contiguous_of<const R: usize>(shape: [usize; R], found: usize) -> Result<Layout<R>> {
    match contiguous(shape)? {
        layout if layout.len() == found => Ok(layout),
        layout => Err(Error::Length {
            shape: shape.to_vec(),
            expected: layout.len(),
            found,
        }),
    }
}

pub(crate) fn expect_device(
    expected: &Device,
    arguments: impl IntoIterator<Item = (&'static str, Device)>,
) -> Result<()> {
    match arguments.into_iter().find(|(_, found)| found != expected) {
        None => Ok(()),
        Some((argument, found)) => Err(Error::DeviceMismatch {
            argument,
            expected: expected.name().to_owned(),
            found: found.name().to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests;
