//! Memory of a tensor: owned, borrowed, or borrowed to write.

use super::buffer::Buffer;
use super::sealed::Sealed;
use bytemuck::Pod;
use std::borrow::{Borrow, BorrowMut};
use std::marker::PhantomData;

/// The buffer of a tensor: [`Buffer<T>`] itself, `&Buffer<T>` or `&mut Buffer<T>`, a [`HostSlice`] or a [`Part`].
///
/// Sealed: a tensor checks its layout against its buffer once.
pub trait Storage: Sealed + Borrow<Buffer<<Self as Storage>::Item>> {
    /// Type of the elements.
    type Item: Pod;
}

/// A [`Storage`] that can be written: [`Buffer<T>`], `&mut Buffer<T>` or a [`Part`].
pub trait StorageMut: Storage + BorrowMut<Buffer<<Self as Storage>::Item>> {}

/// Elements in a slice of the host's memory, from [`Tensor::from_slice`](super::Tensor::from_slice).
#[derive(Debug)]
pub struct HostSlice<'a, T> {
    buffer: Buffer<T>,
    elements: PhantomData<&'a [T]>,
}

/// Some of the elements of a tensor, or of a slice of the host's memory, to write; others may have the rest.
///
/// Parts stay in their thread: what copies through the host reads and writes what lies between its elements, too.
#[derive(Debug)]
pub struct Part<'a, T> {
    buffer: Buffer<T>,
    elements: PhantomData<(&'a mut [T], *mut T)>,
}

impl<'a, T: Pod> HostSlice<'a, T> {
    pub(super) fn new(elements: &'a [T]) -> Self {
        HostSlice {
            // SAFETY: the elements are borrowed as long, and nothing writes them by this type.
            buffer: unsafe { Buffer::of_host(elements.as_ptr().cast_mut(), elements.len()) },
            elements: PhantomData,
        }
    }
}

impl<'a, T: Pod> Part<'a, T> {
    pub(super) fn of_slice(elements: &'a mut [T]) -> Self {
        Part {
            // SAFETY: the elements are borrowed as long, by nobody else.
            buffer: unsafe { Buffer::of_host(elements.as_mut_ptr(), elements.len()) },
            elements: PhantomData,
        }
    }

    /// Two holders of one buffer, for different elements of it.
    pub(super) fn pair(buffer: &'a mut Buffer<T>) -> [Self; 2] {
        // SAFETY: the buffer is borrowed as long. Both are of one thread, which uses them in turns, and callers have different
        // elements.
        let mut first = unsafe { buffer.shared() };
        // SAFETY: as above. A second one of `buffer` itself would borrow it anew, which ends the first.
        let second = unsafe { first.shared() };
        [first, second].map(|buffer| Part {
            buffer,
            elements: PhantomData,
        })
    }
}

impl<T> Borrow<Buffer<T>> for HostSlice<'_, T> {
    fn borrow(&self) -> &Buffer<T> {
        &self.buffer
    }
}

impl<T> Borrow<Buffer<T>> for Part<'_, T> {
    fn borrow(&self) -> &Buffer<T> {
        &self.buffer
    }
}

impl<T> BorrowMut<Buffer<T>> for Part<'_, T> {
    fn borrow_mut(&mut self) -> &mut Buffer<T> {
        &mut self.buffer
    }
}

macro_rules! storage {
    ($($type:ty),+) => {$(
        impl<T: Pod> Sealed for $type {}

        impl<T: Pod> Storage for $type {
            type Item = T;
        }
    )+};
}

storage!(
    Buffer<T>,
    &Buffer<T>,
    &mut Buffer<T>,
    HostSlice<'_, T>,
    Part<'_, T>
);

impl<T: Pod> StorageMut for Buffer<T> {}

impl<T: Pod> StorageMut for &mut Buffer<T> {}

impl<T: Pod> StorageMut for Part<'_, T> {}
