//! Tensors with another layout of the same memory.

use super::{Layout, Part, Storage, StorageMut, TensorBase};
use crate::error::{Error, Result};

impl<S: Storage, const R: usize> TensorBase<S, R> {
    /// Indices `start..start + len` of an axis.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Device, Tensor};
    ///
    /// let tensor = Tensor::new(&Device::cpu(), [2, 3], &[0, 1, 2, 3, 4, 5])?;
    /// assert_eq!(tensor.view().narrow(1, 1, 2)?.to_vec()?, [1, 2, 4, 5]);
    /// assert_eq!(tensor.narrow(0, 1, 1)?.to_vec()?, [3, 4, 5]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If there is no such axis, or it has no such indices.
    pub fn narrow(mut self, axis: usize, start: usize, len: usize) -> Result<Self> {
        let extent = self.extent(axis)?;
        if start.checked_add(len).is_none_or(|end| end > extent) {
            return Err(Error::Range {
                axis,
                extent,
                start,
                len,
            });
        }
        self.layout.shape[axis] = len;
        // An empty part has no first element, which index `extent` could put outside the buffer.
        if !self.is_empty() {
            let stride = self.layout.strides[axis];
            self.offset = self.offset.wrapping_add_signed(start as isize * stride);
        }
        Ok(self)
    }

    /// The indices of an axis below `at`, and the others, both to write.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Attention, BackwardInputs, Device, GradientsMut, Tensor};
    ///
    /// // Gradients of queries, keys and values, packed as they are: [batch, rows, 3, heads, dim].
    /// let device = Device::cpu();
    /// let qkv = Tensor::new(&device, [2, 5, 3, 4, 8], &[0.5_f32; 960])?;
    /// let [q, k, v] = [0, 1, 2].map(|part| qkv.view().select(2, part)?.transpose(1, 2));
    /// let (q, k, v) = (q?, k?, v?);
    /// let (o, lse) = Attention::new().forward(&q, &k, &v)?;
    ///
    /// let mut gradients = Tensor::zeros(&device, [2, 5, 3, 4, 8])?;
    /// let [of_q, mut others] = gradients.split_mut(2, 1)?;
    /// let [of_k, of_v] = others.split_mut(2, 1)?;
    /// let mut dq = of_q.select(2, 0)?.transpose(1, 2)?;
    /// let mut dk = of_k.select(2, 0)?.transpose(1, 2)?;
    /// let mut dv = of_v.select(2, 0)?.transpose(1, 2)?;
    /// let inputs = BackwardInputs::new(&q, &k, &v, &o, &lse, &o);
    /// Attention::new().backward_into(&inputs, GradientsMut::new(&mut dq, &mut dk, &mut dv))?;
    /// // Five queries see each key with a weight of 1/5.
    /// assert!(gradients.to_vec()?[64..96].iter().all(|dv| (dv - 0.5).abs() < 1e-6));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If there is no such axis, `at` is above its extent, or two elements share one place.
    pub fn split_mut(
        &mut self,
        axis: usize,
        at: usize,
    ) -> Result<[TensorBase<Part<'_, S::Item>, R>; 2]>
    where
        S: StorageMut,
    {
        let extent = self.extent(axis)?;
        self.layout.expect_injective("tensor")?;
        let (offset, layout) = (self.offset, self.layout);
        let [below, others] = Part::pair(self.storage.borrow_mut()).map(|storage| TensorBase {
            storage,
            offset,
            layout,
        });
        let rest = extent.saturating_sub(at);
        Ok([below.narrow(axis, 0, at)?, others.narrow(axis, at, rest)?])
    }

    /// Axes `a` and `b` swapped.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Device, Tensor};
    ///
    /// // [batch, rows, heads, dim] memory as [batch, heads, rows, dim].
    /// let tensor = Tensor::new(&Device::cpu(), [1, 3, 2, 8], &[0.5_f32; 48])?.transpose(1, 2)?;
    /// assert_eq!(tensor.shape(), [1, 2, 3, 8]);
    /// assert_eq!(tensor.strides(), [48, 8, 16, 1]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If there is no such axis.
    pub fn transpose(mut self, a: usize, b: usize) -> Result<Self> {
        self.extent(a)?;
        self.extent(b)?;
        self.layout.shape.swap(a, b);
        self.layout.strides.swap(a, b);
        Ok(self)
    }

    /// The axes in another order: axis `i` of the result is axis `axes[i]`.
    ///
    /// # Errors
    /// If `axes` does not name every axis once.
    pub fn permute(self, axes: [usize; R]) -> Result<Self> {
        if (0..R).any(|axis| !axes.contains(&axis)) {
            let axes = axes.to_vec();
            return Err(Error::Axes { axes });
        }
        let layout = Layout {
            shape: axes.map(|axis| self.layout.shape[axis]),
            strides: axes.map(|axis| self.layout.strides[axis]),
        };
        Ok(self.with_layout(layout))
    }

    /// The elements, in row-major order, in another shape.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Device, Tensor};
    ///
    /// let tensor = Tensor::new(&Device::cpu(), [2, 6], &[0; 12])?;
    /// assert_eq!(tensor.view().reshape([2, 3, 2])?.strides(), [6, 2, 1]);
    /// // Gaps between rows are no obstacle unless two rows would become one.
    /// let narrow = tensor.view().narrow(1, 0, 4)?;
    /// assert_eq!(narrow.reshape([2, 1, 2, 2])?.strides(), [6, 4, 2, 1]);
    /// assert!(narrow.reshape([8]).is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the number of elements differs, or no strides give the shape without a copy. The result of
    /// [`try_clone`](Self::try_clone) takes every shape.
    pub fn reshape<const N: usize>(self, shape: [usize; N]) -> Result<TensorBase<S, N>> {
        super::contiguous_of(shape, self.len())?;
        match self.layout.reshape(shape) {
            Some(layout) => Ok(self.with_layout(layout)),
            None => Err(Error::Reshape {
                shape: self.shape().to_vec(),
                strides: self.strides().to_vec(),
                to: shape.to_vec(),
            }),
        }
    }

    /// The elements repeated, with strides of zero: along new axes, which come first, and along axes
    /// of extent 1.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Device, Tensor};
    ///
    /// let row = Tensor::new(&Device::cpu(), [2, 1], &[1, 2])?;
    /// let repeated = row.broadcast([2, 2, 3])?;
    /// assert_eq!(repeated.to_vec()?, [1, 1, 1, 2, 2, 2, 1, 1, 1, 2, 2, 2]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If an axis has another extent than `shape` says, and not 1; or the number of elements
    /// overflows.
    pub fn broadcast<const N: usize>(self, shape: [usize; N]) -> Result<TensorBase<S, N>> {
        super::contiguous(shape)?;
        match self.layout.broadcast(shape) {
            Some(layout) => Ok(self.with_layout(layout)),
            None => Err(Error::Broadcast {
                shape: self.shape().to_vec(),
                to: shape.to_vec(),
            }),
        }
    }

    fn remove_axis<const N: usize>(self, axis: usize, index: usize) -> Result<TensorBase<S, N>> {
        let part = self.narrow(axis, index, 1)?;
        let kept = |i: usize| i + usize::from(i >= axis);
        let layout = Layout {
            shape: std::array::from_fn(|i| part.layout.shape[kept(i)]),
            strides: std::array::from_fn(|i| part.layout.strides[kept(i)]),
        };
        Ok(part.with_layout(layout))
    }

    fn extent(&self, axis: usize) -> Result<usize> {
        let extent = self.layout.shape.get(axis).copied();
        extent.ok_or(Error::Axis { axis, axes: R })
    }

    fn with_layout<const N: usize>(self, layout: Layout<N>) -> TensorBase<S, N> {
        TensorBase {
            storage: self.storage,
            offset: self.offset,
            layout,
        }
    }
}

/// For each number of axes, because it is part of the type of the result.
macro_rules! select {
    ($($from:literal to $to:literal),+) => {$(
        impl<S: Storage> TensorBase<S, $from> {
            /// Index `index` of an axis, which the result does not have.
            ///
            /// # Errors
            /// If there is no such axis, or it has no such index.
            pub fn select(self, axis: usize, index: usize) -> Result<TensorBase<S, $to>> {
                self.remove_axis(axis, index)
            }
        }
    )+};
}

select!(6 to 5, 5 to 4, 4 to 3, 3 to 2, 2 to 1, 1 to 0);
