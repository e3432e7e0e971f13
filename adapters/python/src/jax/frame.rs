//! What XLA passes to a handler: arrays and attributes by their names, and the stream.
//!
//! XLA numbers arguments and results. The attributes `arguments` and `results` have their names, with a space between two.

use super::abi::{
    Api, Buffer, Buffers, CallFrame, DeviceOrdinalGet, Scalar, StreamGet, Text, attribute, element,
    head,
};
use super::failure::Failure;
use ferroattn::{Dtype, RawTensor};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::slice;

/// A call.
#[derive(Clone, Copy)]
pub struct Frame<'f> {
    frame: &'f CallFrame,
    arguments: &'f str,
    results: &'f str,
}

impl<'f> Frame<'f> {
    /// # Safety
    /// The frame is XLA's, of a call to execute.
    pub unsafe fn new(frame: &'f CallFrame) -> Result<Self, Failure> {
        // SAFETY: XLA's functions are live as long as the program.
        if unsafe { (*frame.api).head.struct_size } < size_of::<Api>() {
            return Err(Failure::internal(
                "XLA is too old; JAX must be 0.6.2 or later",
            ));
        }
        let mut found = Frame {
            frame,
            arguments: "",
            results: "",
        };
        (found.arguments, found.results) = (found.text("arguments")?, found.text("results")?);
        Ok(found)
    }

    /// An argument or a result; none if the call has none of that name.
    pub fn array(&self, name: &str) -> Option<Array<'f>> {
        let CallFrame {
            arguments, results, ..
        } = self.frame;
        let found = |names: &str, buffers: &'f Buffers| {
            let index = names.split(' ').position(|other| other == name)?;
            (index < buffers.size as usize).then(|| {
                // SAFETY: XLA's buffers are as many, all of them live during the call.
                Array(unsafe { &**buffers.buffers.add(index) })
            })
        };
        found(self.arguments, arguments).or_else(|| found(self.results, results))
    }

    /// An array with these axes, by address, if the call has it.
    pub fn optional<const R: usize>(
        &self,
        name: &str,
        of: u32,
        axes: [Option<usize>; R],
    ) -> Result<Option<RawTensor<R>>, Failure> {
        let array = self.array(name);
        array.map(|array| array.raw(name, of, axes)).transpose()
    }

    /// An array that each call has.
    pub fn tensor<const R: usize>(
        &self,
        name: &str,
        of: u32,
        axes: [Option<usize>; R],
    ) -> Result<RawTensor<R>, Failure> {
        let found = self.optional(name, of, axes)?;
        found.ok_or_else(|| Failure::internal(format!("the call has no array {name}")))
    }

    /// A whole number.
    pub fn int(&self, name: &str) -> Result<i64, Failure> {
        // SAFETY: elements of this type are so.
        unsafe { self.number(name, element::S64) }
    }

    /// A number.
    pub fn float(&self, name: &str) -> Result<f32, Failure> {
        // SAFETY: elements of this type are so.
        unsafe { self.number(name, element::F32) }
    }

    /// A truth value.
    pub fn flag(&self, name: &str) -> Result<bool, Failure> {
        // SAFETY: elements of this type are so, of which a byte that is not 0 is true.
        let byte: u8 = unsafe { self.number(name, element::PRED)? };
        Ok(byte != 0)
    }

    /// # Safety
    /// Elements of this number are of type `T`.
    unsafe fn number<T: Copy>(&self, name: &str, of: u32) -> Result<T, Failure> {
        let scalar: &Scalar = self.attribute(name, attribute::SCALAR)?;
        match scalar.element == of {
            // SAFETY: the value is XLA's, of this type.
            true => Ok(unsafe { *scalar.value.cast() }),
            false => Err(Failure::internal(format!(
                "the attribute {name} has elements of number {}",
                scalar.element
            ))),
        }
    }

    fn text(&self, name: &str) -> Result<&'f str, Failure> {
        let text: &Text = self.attribute(name, attribute::STRING)?;
        // SAFETY: the text is XLA's, live during the call.
        let bytes = unsafe { bytes(text) };
        str::from_utf8(bytes)
            .map_err(|_| Failure::internal(format!("the attribute {name} is no text")))
    }

    /// An attribute, whose struct this kind has.
    fn attribute<A>(&self, name: &str, kind: u32) -> Result<&'f A, Failure> {
        let attributes = &self.frame.attributes;
        let found = (0..attributes.size as usize).find(|&index| {
            // SAFETY: names and kinds are as many, all of them live during the call.
            unsafe {
                bytes(&**attributes.names.add(index)) == name.as_bytes()
                    && *attributes.kinds.add(index) == kind
            }
        });
        let index =
            found.ok_or_else(|| Failure::internal(format!("the call has no attribute {name}")))?;
        // SAFETY: values are as many, and a kind's struct is the caller's `A`.
        Ok(unsafe { &*(*attributes.values.add(index)).cast() })
    }

    /// The stream that the call runs in.
    pub fn stream(&self) -> Result<*mut c_void, Failure> {
        let mut args = StreamGet {
            head: head::<StreamGet>(),
            context: self.frame.context,
            stream: null_mut(),
        };
        // SAFETY: the functions are XLA's, the context the call's.
        let error = unsafe { ((*self.frame.api).stream_get)(&mut args) };
        match error.is_null() {
            true => Ok(args.stream),
            false => Err(Failure::OfXla(error)),
        }
    }

    /// The index of the GPU that the call runs on.
    pub fn gpu(&self) -> Result<usize, Failure> {
        let mut args = DeviceOrdinalGet {
            head: head::<DeviceOrdinalGet>(),
            context: self.frame.context,
            ordinal: -1,
        };
        // SAFETY: the functions are XLA's, the context the call's.
        let error = unsafe { ((*self.frame.api).device_ordinal_get)(&mut args) };
        if !error.is_null() {
            return Err(Failure::OfXla(error));
        }
        usize::try_from(args.ordinal).map_err(|_| Failure::internal("XLA tells no device"))
    }
}

/// An array of a call.
#[derive(Clone, Copy)]
pub struct Array<'f>(&'f Buffer);

impl<'f> Array<'f> {
    /// The type of q, k and v.
    pub fn dtype(&self, name: &str) -> Result<Dtype, Failure> {
        let found = Dtype::ALL
            .into_iter()
            .find(|&dtype| number(dtype) == self.0.element);
        found.ok_or_else(|| Failure::internal(format!("{name} has elements of no known type")))
    }

    /// Extents of the axes.
    pub fn dims(&self) -> &'f [i64] {
        match self.0.rank {
            // SAFETY: XLA's extents are as many, live during the call.
            rank @ 1.. => unsafe { slice::from_raw_parts(self.0.dims, rank as usize) },
            _ => &[],
        }
    }

    /// Address of the first element.
    pub fn address(&self) -> u64 {
        self.0.data.expose_provenance() as u64
    }

    /// The array by address, of elements of this number, its axes in an order; an axis that is none of its own has extent 1.
    pub fn raw<const R: usize>(
        &self,
        name: &str,
        of: u32,
        axes: [Option<usize>; R],
    ) -> Result<RawTensor<R>, Failure> {
        let dims = self.dims();
        if self.0.element != of || dims.len() != axes.iter().flatten().count() {
            let (element, rank) = (self.0.element, dims.len());
            return Err(Failure::internal(format!(
                "{name} has {rank} axes and elements of number {element}"
            )));
        }
        let stride =
            |axis: usize| -> i64 { dims[axis + 1..].iter().map(|&dim| dim.max(1)).product() };
        Ok(RawTensor {
            address: self.address(),
            shape: axes.map(|axis| axis.map_or(1, |axis| dims[axis] as usize)),
            strides: axes.map(|axis| axis.map_or(0, |axis| stride(axis) as isize)),
        })
    }
}

/// XLA's number of a type.
pub fn number(dtype: Dtype) -> u32 {
    match dtype {
        Dtype::F16 => element::F16,
        Dtype::Bf16 => element::BF16,
        // There is no other.
        _ => element::F32,
    }
}

/// # Safety
/// The text is live during `'t`.
unsafe fn bytes<'t>(text: &Text) -> &'t [u8] {
    match text.bytes {
        0 => &[],
        // SAFETY: the caller's word.
        bytes => unsafe { slice::from_raw_parts(text.first, bytes) },
    }
}
