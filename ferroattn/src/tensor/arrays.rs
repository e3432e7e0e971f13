//! Tensors in host memory as arrays of `ndarray`.

use super::{Layout, RawTensor};
use crate::error::{Error, Result};
use ndarray::{
    ArrayBase, ArrayView, ArrayView2, ArrayViewMut, Axis, Dimension, IntoDimension, RawData,
    ShapeBuilder, StrideShape, s,
};
use std::ptr::{NonNull, with_exposed_provenance_mut};

impl<const R: usize> RawTensor<R> {
    /// Checks that elements can be counted, repeated ones too: a view in host memory needs it.
    pub(crate) fn expect_countable(&self, argument: &'static str) -> Result<()> {
        let row_major = Layout::contiguous(self.shape);
        row_major.map(|_| ()).ok_or(Error::Overflow(argument))
    }

    /// The tensor in host memory, to read.
    ///
    /// # Safety
    /// Every element lies in readable memory, aligned, and nothing writes it while the view lives.
    pub(crate) unsafe fn view<'a, T, D: Dimension>(&self) -> ArrayView<'a, T, D>
    where
        [usize; R]: IntoDimension<Dim = D>,
    {
        // SAFETY: the caller's word.
        self.in_host_memory(|shape, first| unsafe { ArrayView::from_shape_ptr(shape, first) })
    }

    /// The tensor in host memory, to write.
    ///
    /// # Safety
    /// Every element lies in writable memory, aligned, at a place of its own, and nothing else touches it
    /// while the view lives.
    pub(crate) unsafe fn view_mut<'a, T, D: Dimension>(&self) -> ArrayViewMut<'a, T, D>
    where
        [usize; R]: IntoDimension<Dim = D>,
    {
        // SAFETY: the caller's word.
        self.in_host_memory(|shape, first| unsafe { ArrayViewMut::from_shape_ptr(shape, first) })
    }

    /// The view that `new` makes of the shape and the lowest element in host memory.
    fn in_host_memory<S: RawData, D: Dimension>(
        &self,
        new: impl FnOnce(StrideShape<D>, *mut S::Elem) -> ArrayBase<S, D>,
    ) -> ArrayBase<S, D>
    where
        [usize; R]: IntoDimension<Dim = D>,
    {
        let (low, _) = self.layout().span().expect("it is in the address space");
        let first = with_exposed_provenance_mut::<S::Elem>(self.address as usize);
        let (strides, lowest) = match self.layout().is_empty() {
            // There need be no memory.
            true => (
                Self::row_major(self.shape).strides,
                NonNull::dangling().as_ptr(),
            ),
            false => (self.used_strides(), first.wrapping_offset(low)),
        };
        let shape = self.shape.strides(strides.map(isize::unsigned_abs));
        let mut view = new(shape, lowest);
        // ndarray takes strides without signs.
        for axis in (0..R).filter(|&axis| strides[axis] < 0) {
            view.invert_axis(Axis(axis));
        }
        view
    }
}

impl RawTensor {
    /// The part of the head `[batch, head]` in host memory, to read.
    ///
    /// # Safety
    /// The conditions of [`view`](Self::view).
    pub(crate) unsafe fn view_of_head<'a, T>(
        &self,
        [batch, head]: [usize; 2],
    ) -> ArrayView2<'a, T> {
        // SAFETY: the caller's word.
        let all = unsafe { self.view() };
        all.slice_move(s![batch, head, .., ..])
    }
}
