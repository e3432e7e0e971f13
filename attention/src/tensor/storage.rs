//! Memory of a tensor: owned, borrowed, or borrowed to write.

use super::buffer::Buffer;
use bytemuck::Pod;

/// The buffer of a tensor: [`Buffer<T>`] itself, `&Buffer<T>` or `&mut Buffer<T>`.
///
/// Sealed: a tensor checks its layout against its buffer once.
pub trait Storage: sealed::Sealed {
    /// Type of the elements.
    type Item: Pod;

    /// The buffer, to read.
    fn buffer(&self) -> &Buffer<Self::Item>;
}

/// A [`Storage`] that can be written: [`Buffer<T>`] or `&mut Buffer<T>`.
pub trait StorageMut: Storage {
    /// The buffer, to write.
    fn buffer_mut(&mut self) -> &mut Buffer<Self::Item>;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! storage {
    ($($type:ty)+) => {$(
        impl<T: Pod> sealed::Sealed for $type {}

        impl<T: Pod> Storage for $type {
            type Item = T;

            fn buffer(&self) -> &Buffer<T> {
                self
            }
        }
    )+};
}

macro_rules! storage_mut {
    ($($type:ty)+) => {$(
        impl<T: Pod> StorageMut for $type {
            fn buffer_mut(&mut self) -> &mut Buffer<T> {
                self
            }
        }
    )+};
}

storage!(Buffer<T> &Buffer<T> &mut Buffer<T>);
storage_mut!(Buffer<T> &mut Buffer<T>);
