//! Tensors in memory that the host has, and their elements there.

use super::{Buffer, HostSlice, Part, Storage, StorageMut, Tensor, TensorBase, contiguous_of};
use crate::error::Result;
use bytemuck::Pod;

impl<T: Pod, const R: usize> Tensor<T, R> {
    /// The elements of a vector in row-major order, on the CPU, without a copy.
    ///
    /// ```
    /// use ferroattn::Tensor;
    ///
    /// let tensor = Tensor::from_vec([2, 3], vec![0, 1, 2, 3, 4, 5])?;
    /// assert_eq!(tensor.as_slice(), Some(&[0, 1, 2, 3, 4, 5][..]));
    /// # Ok::<(), ferroattn::Error>(())
    /// ```
    ///
    /// # Errors
    /// If there are more or fewer elements than the shape says.
    pub fn from_vec(shape: [usize; R], elements: Vec<T>) -> Result<Self> {
        Ok(TensorBase {
            layout: contiguous_of(shape, elements.len())?,
            offset: 0,
            storage: Buffer::of_vec(elements),
        })
    }

    /// The elements of a slice in row-major order, on the CPU, where they lie.
    ///
    /// ```
    /// use ferroattn::{Attention, Tensor};
    ///
    /// let [q, k, v] = [[0.5_f32; 40], [1.0; 40], [2.0; 40]];
    /// let [q, k, v] = [&q, &k, &v].map(|data| Tensor::from_slice([1, 1, 5, 8], data));
    /// let mut o = [0.0; 40];
    /// let mut lse = [0.0; 5];
    /// let mut output = Tensor::from_slice_mut([1, 1, 5, 8], &mut o)?;
    /// let mut rows = Tensor::from_slice_mut([1, 1, 5], &mut lse)?;
    /// Attention::new().forward_into(&q?, &k?, &v?, &mut output, &mut rows)?;
    /// assert_eq!(o, [2.0; 40]);
    /// # Ok::<(), ferroattn::Error>(())
    /// ```
    ///
    /// # Errors
    /// If there are more or fewer elements than the shape says.
    pub fn from_slice(
        shape: [usize; R],
        elements: &[T],
    ) -> Result<TensorBase<HostSlice<'_, T>, R>> {
        Ok(TensorBase {
            layout: contiguous_of(shape, elements.len())?,
            offset: 0,
            storage: HostSlice::new(elements),
        })
    }

    /// Like [`from_slice`](Self::from_slice), to write.
    ///
    /// # Errors
    /// If there are more or fewer elements than the shape says.
    pub fn from_slice_mut(
        shape: [usize; R],
        elements: &mut [T],
    ) -> Result<TensorBase<Part<'_, T>, R>> {
        Ok(TensorBase {
            layout: contiguous_of(shape, elements.len())?,
            offset: 0,
            storage: Part::of_slice(elements),
        })
    }
}

impl<S: Storage, const R: usize> TensorBase<S, R> {
    /// The elements, if they lie in the host's memory in row-major order without gaps.
    pub fn as_slice(&self) -> Option<&[S::Item]> {
        let (span, _) = self.span();
        // Others may have what lies in gaps.
        let buffer: &Buffer<_> = self.storage.borrow();
        self.is_contiguous().then(|| buffer.host(span)).flatten()
    }

    /// The elements, to write, if they lie in the host's memory in row-major order without gaps.
    pub fn as_mut_slice(&mut self) -> Option<&mut [S::Item]>
    where
        S: StorageMut,
    {
        let (span, _) = self.span();
        if !self.is_contiguous() {
            return None;
        }
        let buffer: &mut Buffer<_> = self.storage.borrow_mut();
        buffer.host_mut(span)
    }

    /// Overwrites the elements with those of a slice, in row-major order, on any device.
    ///
    /// ```
    /// use ferroattn::{Device, Tensor};
    ///
    /// let mut tensor = Tensor::zeros(&Device::cpu(), [2, 2])?;
    /// tensor.view_mut().transpose(0, 1)?.copy_from_slice(&[1, 2, 3, 4])?;
    /// assert_eq!(tensor.to_vec()?, [1, 3, 2, 4]);
    /// # Ok::<(), ferroattn::Error>(())
    /// ```
    ///
    /// # Errors
    /// If there are more or fewer elements than the tensor has, two elements to write share one place, or the driver reports a
    /// failure.
    pub fn copy_from_slice(&mut self, elements: &[S::Item]) -> Result<()>
    where
        S: StorageMut,
    {
        match self.device().is_cpu() {
            true => self.copy_from(&Tensor::from_slice(self.shape(), elements)?),
            false => self.copy_from(&Tensor::new(&self.device(), self.shape(), elements)?),
        }
    }
}
