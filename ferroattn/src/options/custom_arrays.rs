//! Arrays of a score or mask of another crate, as tensors.

use super::custom::ARRAY;
use super::{CustomKernels, RawArray, RawCustom};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::tensor::{Storage, TensorBase};
use kernels::abi::ARRAYS;
use kernels::attention::custom::Word;
use std::marker::PhantomData;
use std::sync::Arc;

/// An array of a call with a [`Custom`](crate::custom::Custom) type: a contiguous tensor of `u32`, `i32` or `f32` of any shape.
#[derive(Clone, Debug)]
pub struct CustomArray<'a> {
    device: Device,
    address: u64,
    len: usize,
    is_contiguous: bool,
    tensor: PhantomData<&'a ()>,
}

impl<'a, S: Storage<Item: Word>, const R: usize> From<&'a TensorBase<S, R>> for CustomArray<'a> {
    fn from(tensor: &'a TensorBase<S, R>) -> Self {
        let raw = tensor.as_raw();
        CustomArray {
            device: tensor.device(),
            address: raw.address,
            len: raw.shape.iter().product(),
            is_contiguous: raw.layout().is_contiguous(),
            tensor: PhantomData,
        }
    }
}

/// A score or mask of another crate, as a call borrows it.
#[derive(Clone, Debug)]
pub(crate) struct BorrowedCustom<'a> {
    pub kernels: &'static CustomKernels,
    pub arrays: Arc<[CustomArray<'a>]>,
}

impl BorrowedCustom<'_> {
    /// The device of each array.
    pub fn devices(&self) -> impl Iterator<Item = Device> {
        self.arrays.iter().map(|array| array.device.clone())
    }

    /// The arrays at their addresses.
    pub fn raw(&self) -> Result<RawCustom> {
        let mut arrays = [RawArray::default(); ARRAYS];
        if self.arrays.len() != self.kernels.arrays {
            return Err(Error::Arrays {
                wanted: self.kernels.arrays,
                found: self.arrays.len(),
            });
        }
        for (to, array) in arrays.iter_mut().zip(&*self.arrays) {
            if !array.is_contiguous {
                return Err(Error::NotContiguous(ARRAY));
            }
            let (address, len) = (array.address, array.len as u64);
            *to = RawArray { address, len };
        }
        Ok(RawCustom {
            kernels: self.kernels,
            arrays,
        })
    }
}
