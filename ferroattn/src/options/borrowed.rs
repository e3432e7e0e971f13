//! Tensors that a call borrows, by address.

use super::RawE4m3Cache;
use crate::device::Device;
use crate::tensor::{RawTensor, Storage, TensorBase};
use std::marker::PhantomData;

/// Descales of a cache of e4m3.
#[derive(Clone, Debug)]
pub(crate) struct BorrowedDescales<'a> {
    /// Of k and of v, `[batch or pages, kv_heads]`.
    pub of: [Borrowed<'a, 2>; 2],
    pub of_pages: bool,
}

impl BorrowedDescales<'_> {
    pub fn raw(&self) -> RawE4m3Cache {
        let [k, v] = &self.of;
        RawE4m3Cache {
            k: Some(k.raw),
            v: Some(v.raw),
            of_pages: self.of_pages,
        }
    }
}

/// A borrowed tensor of any elements.
#[derive(Clone, Debug)]
pub(crate) struct Borrowed<'a, const R: usize> {
    pub device: Device,
    /// Its address is valid during `'a`.
    pub raw: RawTensor<R>,
    tensor: PhantomData<&'a ()>,
}

impl<'a, S: Storage, const R: usize> From<&'a TensorBase<S, R>> for Borrowed<'a, R> {
    fn from(tensor: &'a TensorBase<S, R>) -> Self {
        Borrowed {
            device: tensor.device(),
            raw: tensor.as_raw(),
            tensor: PhantomData,
        }
    }
}

impl<const R: usize> Borrowed<'_, R> {
    /// No tensor, in the place of one of this shape.
    pub fn none(shape: [usize; R], device: Device) -> Self {
        Borrowed {
            device,
            raw: RawTensor::row_major(shape),
            tensor: PhantomData,
        }
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The tensor by its address.
    pub fn raw(&self) -> RawTensor<R> {
        self.raw
    }

    pub fn shape(&self) -> [usize; R] {
        self.raw.shape
    }
}

impl<'a> Borrowed<'a, 2> {
    /// Slopes `[heads]` or `[batch, heads]`.
    pub fn slopes<S: Storage, const R: usize>(slopes: &'a TensorBase<S, R>) -> Self {
        const { assert!(R == 1 || R == 2, "slopes have one axis or two") };
        let Borrowed { device, raw, .. } = Borrowed::from(slopes);
        let (batch, stride) = match R {
            1 => (1, 0),
            _ => (raw.shape[0], raw.strides[0]),
        };
        let raw = RawTensor {
            address: raw.address,
            shape: [batch, raw.shape[R - 1]],
            strides: [stride, raw.strides[R - 1]],
        };
        Borrowed {
            device,
            raw,
            tensor: PhantomData,
        }
    }
}
