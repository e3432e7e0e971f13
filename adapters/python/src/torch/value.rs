//! Arguments and results of an operator, as PyTorch passes them: 64 bits each.

use super::shim::{StableValue, shim};
use super::tensor::Tensor;
use std::ffi::c_void;

/// Arguments that are read in their order. Each is the operator's own, so all are read.
#[derive(Debug)]
pub struct Arguments<'s> {
    stack: &'s [StableValue],
}

impl<'s> Arguments<'s> {
    /// The arguments of a call.
    pub fn new(stack: &'s [StableValue]) -> Self {
        Arguments { stack }
    }

    fn next(&mut self) -> StableValue {
        let (&first, rest) = self.stack.split_first().expect("the signature has it");
        self.stack = rest;
        first
    }

    /// A tensor.
    pub fn tensor(&mut self) -> Tensor {
        let handle = pointer(self.next());
        // SAFETY: the reference is the operator's own, and read once.
        unsafe { Tensor::owned(handle) }
    }

    /// A value that may be `None`: then PyTorch passes 0, else an address that is the operator's to free.
    fn optional(&mut self) -> Option<StableValue> {
        let place = self.next();
        if place == 0 {
            return None;
        }
        let place = pointer(place).cast::<StableValue>();
        // SAFETY: PyTorch allocated the value for this operator, which reads it once.
        unsafe {
            let value = *place;
            (shim().delete_optional)(place.cast());
            Some(value)
        }
    }

    /// A tensor that may be `None`, or PyTorch's that is none.
    pub fn optional_tensor(&mut self) -> Option<Tensor> {
        let handle = pointer(self.optional()?);
        // SAFETY: the reference is the operator's own, and read once.
        unsafe { Tensor::owned(handle) }.defined()
    }

    /// A tensor that may be PyTorch's that is none.
    pub fn defined_tensor(&mut self) -> Option<Tensor> {
        self.tensor().defined()
    }

    /// One truth value of a list.
    pub fn bool_of_list(&mut self, index: usize) -> bool {
        let list = pointer(self.next());
        let mut value = 0;
        // SAFETY: the list is the operator's own, read once; the pointer is a local's.
        unsafe {
            (shim().list_item)(list, index, &mut value);
            (shim().delete_list)(list);
        }
        value as u8 != 0
    }

    /// Leaves out so many numbers.
    pub fn skip(&mut self, numbers: usize) {
        self.stack = &self.stack[numbers..];
    }

    /// A whole number.
    pub fn int(&mut self) -> i64 {
        self.next().cast_signed()
    }

    /// A number.
    pub fn float(&mut self) -> f64 {
        f64::from_bits(self.next())
    }

    /// A number that may be `None`.
    pub fn optional_float(&mut self) -> Option<f64> {
        self.optional().map(f64::from_bits)
    }

    /// A whole number that may be `None`.
    pub fn optional_int(&mut self) -> Option<i64> {
        self.optional().map(StableValue::cast_signed)
    }

    /// A truth value.
    pub fn bool(&mut self) -> bool {
        // The byte alone is written.
        self.next() as u8 != 0
    }
}

/// The pointer in a value.
pub fn pointer(value: StableValue) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(value as usize)
}

/// Tensors that an operator returns.
pub fn results<const N: usize>(stack: &mut [StableValue], tensors: [Tensor; N]) {
    for (place, tensor) in stack.iter_mut().zip(tensors) {
        *place = value(tensor);
    }
}

/// A tensor that an operator returns.
pub fn value(tensor: Tensor) -> StableValue {
    tensor.into_handle().expose_provenance() as StableValue
}
