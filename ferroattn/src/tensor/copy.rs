//! Copies between tensors, devices and the host.

use super::{Storage, StorageMut, Tensor, TensorBase};
use crate::device::Device;
use crate::error::Result;
use std::ops::Range;

/// Copies on a device that are faster than one through the host's memory, about: each takes microseconds.
const MOST_BLOCKS: usize = 1024;

impl<S: Storage, const R: usize> TensorBase<S, R> {
    /// Copies the elements to the host, in row-major order, after all work on the device so far.
    ///
    /// # Errors
    /// If the host has not enough memory, or the driver reports a failure, of this call or of
    /// earlier work on the device.
    pub fn to_vec(&self) -> Result<Vec<S::Item>> {
        let buffer = self.storage.borrow();
        let mut elements = super::buffer::reserved(self.len())?;
        let (run, starts) = self.layout.runs();
        if self.device().is_cpu() {
            // Run by run: others may have what lies between.
            for start in starts {
                let start = self.offset.wrapping_add_signed(start);
                let elements_of_run = buffer.host(start..start + run);
                elements.extend_from_slice(elements_of_run.expect("on the CPU"));
            }
            return Ok(elements);
        }
        let (span, first) = self.span();
        buffer.read(span, |data| {
            for start in starts {
                let start = first.wrapping_add_signed(start);
                elements.extend_from_slice(&data[start..start + run]);
            }
        })?;
        Ok(elements)
    }

    /// A row-major copy with memory of its own, on the same device.
    ///
    /// Gaps, permutations and repeated elements are gone, so that [`reshape`](Self::reshape) gives
    /// every shape. If there are any, the elements pass through the memory of the host.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Device, Tensor};
    ///
    /// let tensor = Tensor::new(&Device::cpu(), [2, 3], &[0, 1, 2, 3, 4, 5])?;
    /// let transposed = tensor.view().transpose(0, 1)?;
    /// assert!(transposed.reshape([6]).is_err());
    /// assert_eq!(transposed.try_clone()?.reshape([6])?.to_vec()?, [0, 3, 1, 4, 2, 5]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If there is not enough memory, or the driver reports a failure.
    #[doc(alias("clone", "contiguous", "to_owned"))]
    pub fn try_clone(&self) -> Result<Tensor<S::Item, R>> {
        if !self.is_contiguous() {
            return self.to_device(&self.device());
        }
        let mut copy = Tensor::zeros(&self.device(), self.shape())?;
        copy.copy_from(self)?;
        Ok(copy)
    }

    /// A row-major copy in the memory of `device`.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Device, Tensor};
    ///
    /// let device = Device::cuda(0).unwrap_or_else(|_| Device::cpu());
    /// let tensor = Tensor::new(&Device::cpu(), [2, 2], &[1.0_f32, 2.0, 3.0, 4.0])?;
    /// let there = tensor.to_device(&device)?;
    /// assert_eq!(there.device(), device);
    /// assert_eq!(there.to_vec()?, tensor.to_vec()?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The conditions of [`try_clone`](Self::try_clone).
    pub fn to_device(&self, device: &Device) -> Result<Tensor<S::Item, R>> {
        Tensor::new(device, self.shape(), &self.to_vec()?)
    }

    /// Overwrites the elements with the elements of `source`, a tensor of the same shape on the same
    /// device, after all work on the device so far.
    ///
    /// A device copies by itself what both tensors have in rows at equal distances, such as a token of a cache
    /// `[batch, heads, seqlen, dim]`. What shares few neighbours passes through the memory of the host.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Device, Tensor};
    ///
    /// let mut tensor = Tensor::zeros(&Device::cpu(), [2, 3])?;
    /// let column = Tensor::new(&Device::cpu(), [2, 1], &[7, 8])?;
    /// tensor.view_mut().narrow(1, 2, 1)?.copy_from(&column)?;
    /// assert_eq!(tensor.to_vec()?, [0, 0, 7, 0, 0, 8]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If shapes or devices differ, two elements to write share one place, the host has not enough
    /// memory for a copy with gaps, or the driver reports a failure.
    pub fn copy_from(&mut self, source: &TensorBase<impl Storage<Item = S::Item>, R>) -> Result<()>
    where
        S: StorageMut,
    {
        super::expect_shape("source", &self.shape(), &source.shape())?;
        super::expect_device(&self.device(), [("source", source.device())])?;
        self.layout.expect_injective("tensor")?;
        let (span, first) = self.span();
        let (layout, offset, is_cpu) = (self.layout, self.offset, self.device().is_cpu());
        let buffer = self.storage.borrow_mut();
        if layout.is_contiguous() && source.is_contiguous() {
            let (source_span, _) = source.span();
            return buffer.copy_range(span.start, source.storage.borrow(), source_span);
        }
        if !is_cpu && !layout.is_empty() {
            let blocks = layout.blocks_with(&source.layout);
            if blocks.starts.len() <= MOST_BLOCKS {
                let offsets = [offset, source.offset];
                return buffer.copy_blocks(&blocks, offsets, source.storage.borrow());
            }
        }
        let elements = source.to_vec()?;
        let (run, starts) = layout.runs();
        if is_cpu {
            for (start, elements) in starts.zip(elements.chunks_exact(run)) {
                let start = offset.wrapping_add_signed(start);
                let to = buffer.host_mut(start..start + run);
                to.expect("on the CPU").copy_from_slice(elements);
            }
            return Ok(());
        }
        buffer.modify(span, |data| {
            for (start, elements) in starts.zip(elements.chunks_exact(run)) {
                let start = first.wrapping_add_signed(start);
                data[start..start + run].copy_from_slice(elements);
            }
        })
    }

    /// The part of the buffer from the lowest to the highest element, and the index of the first
    /// element in it.
    pub(super) fn span(&self) -> (Range<usize>, usize) {
        if self.is_empty() {
            return (self.offset..self.offset, 0);
        }
        let (low, high) = self.layout.span().expect("inside the buffer");
        let start = self.offset.wrapping_add_signed(low);
        let end = self.offset.wrapping_add_signed(high) + 1;
        (start..end, low.unsigned_abs())
    }
}
