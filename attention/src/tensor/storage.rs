//! Memory of a tensor: owned, borrowed, or borrowed to write.

use super::buffer::Buffer;
use super::sealed::Sealed;
use bytemuck::Pod;
use std::borrow::{Borrow, BorrowMut};

/// The buffer of a tensor: [`Buffer<T>`] itself, `&Buffer<T>` or `&mut Buffer<T>`.
///
/// Sealed: a tensor checks its layout against its buffer once.
pub trait Storage: Sealed + Borrow<Buffer<<Self as Storage>::Item>> {
    /// Type of the elements.
    type Item: Pod;
}

/// A [`Storage`] that can be written: [`Buffer<T>`] or `&mut Buffer<T>`.
pub trait StorageMut: Storage + BorrowMut<Buffer<<Self as Storage>::Item>> {}

macro_rules! storage {
    ($($type:ty),+) => {$(
        impl<T: Pod> Sealed for $type {}

        impl<T: Pod> Storage for $type {
            type Item = T;
        }
    )+};
}

storage!(Buffer<T>, &Buffer<T>, &mut Buffer<T>);

impl<T: Pod> StorageMut for Buffer<T> {}

impl<T: Pod> StorageMut for &mut Buffer<T> {}
