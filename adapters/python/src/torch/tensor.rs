//! A tensor of PyTorch that is owned.

use super::device::Place;
use super::failure::Failure;
use super::shim::shim;
use ferroattn::{Dtype, RawTensor};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::slice;

/// A reference to a tensor, which it gives back when dropped.
#[derive(Debug)]
pub struct Tensor(*mut c_void);

/// Types of elements that calls take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// Numbers that attention computes in.
    Number(Dtype),
    /// Whole numbers of 32 bits.
    Int32,
    /// Whole numbers of 64 bits.
    Int64,
    /// Whole numbers of 64 bits, without a sign.
    Uint64,
    /// Truth values, a byte each.
    Bool,
    /// Bytes.
    Byte,
    /// Numbers of 8 bits, e4m3.
    E4m3,
}

impl Type {
    /// PyTorch's number of the type.
    fn code(self) -> i32 {
        let shim = shim();
        // SAFETY: each function returns a number.
        unsafe {
            match self {
                Type::Number(Dtype::F16) => (shim.f16)(),
                Type::Number(Dtype::Bf16) => (shim.bf16)(),
                Type::Number(_) => (shim.f32)(),
                Type::Int32 => (shim.i32)(),
                Type::Int64 => (shim.i64)(),
                Type::Uint64 => (shim.u64)(),
                Type::Bool => (shim.bool)(),
                Type::Byte => (shim.u8)(),
                Type::E4m3 => (shim.e4m3)(),
            }
        }
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: the reference is this one's.
        unsafe { (shim().delete)(self.0) };
    }
}

impl Tensor {
    /// A tensor whose reference is the caller's to give.
    ///
    /// # Safety
    /// The handle is a tensor's, and nothing else gives it back.
    pub unsafe fn owned(handle: *mut c_void) -> Self {
        Tensor(handle)
    }

    /// The handle, whose reference goes to the caller.
    pub fn into_handle(self) -> *mut c_void {
        let handle = self.0;
        std::mem::forget(self);
        handle
    }

    /// Bytes of a GPU's memory, of any contents.
    pub fn bytes(bytes: usize, place: Place) -> Result<Self, Failure> {
        allocated(&[bytes as i64], &[1], Type::Byte.code(), place)
    }

    /// A new tensor of any contents whose axes lie in memory in an order, the last side by side.
    pub fn ordered<const R: usize>(
        sizes: [i64; R],
        order: [usize; R],
        of: Type,
        place: Place,
    ) -> Result<Self, Failure> {
        let mut strides = [0; R];
        let mut next = 1;
        for &axis in order.iter().rev() {
            strides[axis] = next;
            next *= sizes[axis].max(1);
        }
        allocated(&sizes, &strides, of.code(), place)
    }

    /// PyTorch's tensor that is none.
    pub fn undefined() -> Self {
        let mut handle = null_mut();
        // SAFETY: the pointer is a local's.
        unsafe { (shim().undefined)(&mut handle) };
        Tensor(handle)
    }

    /// This tensor, unless it is PyTorch's that is none.
    pub fn defined(self) -> Option<Self> {
        let mut defined = false;
        // SAFETY: the tensor is live, the pointer a local's.
        unsafe { (shim().defined)(self.0, &mut defined) };
        defined.then_some(self)
    }

    /// The first elements of the last axis.
    pub fn first(&self, elements: i64) -> Result<Self, Failure> {
        let (mut sizes, strides) = (self.sizes().to_vec(), self.strides());
        if let Some(last) = sizes.last_mut() {
            *last = elements;
        }
        self.view(&sizes, strides)
    }

    /// This tensor with four axes, the first ones of one element where it has none, and so many elements in the last, repeated
    /// if it has one.
    pub fn of_pairs(&self, keys: i64) -> Result<Self, Failure> {
        let missing = 4_usize.saturating_sub(self.sizes().len());
        let mut sizes = [&[1; 4][..missing], self.sizes()].concat();
        let mut strides = [&[0; 4][..missing], self.strides()].concat();
        if let (Some(last @ 1), Some(stride)) = (sizes.last_mut(), strides.last_mut()) {
            (*last, *stride) = (keys, 0);
        }
        self.view(&sizes, &strides)?.in_rows()
    }

    /// This tensor with one more axis, the last, of one element.
    pub fn with_last_axis(&self) -> Result<Self, Failure> {
        self.view(
            &[self.sizes(), &[1]].concat(),
            &[self.strides(), &[1]].concat(),
        )
    }

    /// This tensor without its last axis, which has one element.
    pub fn without_last_axis(&self) -> Result<Self, Failure> {
        let rank = self.sizes().len().saturating_sub(1);
        self.view(&self.sizes()[..rank], &self.strides()[..rank])
    }

    /// A view that begins at the first element, and lies in this tensor's elements.
    fn view(&self, sizes: &[i64], strides: &[i64]) -> Result<Self, Failure> {
        let mut handle = null_mut();
        let rank = sizes.len() as i64;
        // SAFETY: sizes and strides are as many; the pointer is a local's.
        let status = unsafe {
            let (sizes, strides) = (sizes.as_ptr(), strides.as_ptr());
            (shim().view)(self.0, rank, sizes, strides, self.offset(), &mut handle)
        };
        match status {
            0 => Ok(Tensor(handle)),
            _ => Err(Failure::other("PyTorch gives no view of a tensor")),
        }
    }

    /// A new row-major tensor of this one's shape and type.
    pub fn like(&self) -> Result<Self, Failure> {
        let sizes = self.sizes();
        allocated(sizes, &row_major(sizes), self.dtype_code(), self.place())
    }

    /// A new tensor of this one's shape and type, whose rows begin at multiples of so many elements.
    pub fn like_in_rows_of(&self, multiple: i64) -> Result<Self, Failure> {
        let sizes = self.sizes();
        let Some((&last, rows)) = sizes.split_last() else {
            return self.like();
        };
        let padded = [rows, &[(last + multiple - 1) / multiple * multiple]].concat();
        allocated(
            &padded,
            &row_major(&padded),
            self.dtype_code(),
            self.place(),
        )?
        .first(last)
    }

    /// A new tensor `[batch, heads, seqlen]` of this one's shape and type, with the heads of a row side by side.
    pub fn like_with_heads_last(&self) -> Result<Self, Failure> {
        let &[batch, heads, seqlen] = self.sizes() else {
            return Err(Failure::other("a tensor has not three axes"));
        };
        let strides = [seqlen * heads, 1, heads];
        allocated(
            &[batch, heads, seqlen],
            &strides,
            self.dtype_code(),
            self.place(),
        )
    }

    /// Copies the elements of a tensor of the same shape, of any type, in the order of the current stream.
    pub fn copy(&self, source: &Tensor) -> Result<(), Failure> {
        // SAFETY: both tensors are live.
        match unsafe { (shim().copy)(self.0, source.0, 1) } {
            0 => Ok(()),
            _ => Err(Failure::other("PyTorch does not copy a tensor")),
        }
    }

    /// Sets all elements to 0, in the order of the current stream.
    pub fn zero(&self) -> Result<(), Failure> {
        // SAFETY: the tensor is live.
        match unsafe { (shim().zero)(self.0) } {
            0 => Ok(()),
            _ => Err(Failure::other("PyTorch does not fill a tensor")),
        }
    }

    /// This tensor, or a copy with elements of the last axis side by side.
    pub fn in_rows(self) -> Result<Self, Failure> {
        match (self.sizes().last(), self.strides().last()) {
            (Some(2..), Some(&stride)) if stride != 1 => self.copied(),
            _ => Ok(self),
        }
    }

    /// This tensor, or a row-major copy.
    pub fn contiguous(self) -> Result<Self, Failure> {
        let axes = self.sizes().iter().zip(self.strides());
        let mut axes = axes.zip(row_major(self.sizes()));
        match axes.all(|((&size, &stride), packed)| size < 2 || stride == packed) {
            true => Ok(self),
            false => self.copied(),
        }
    }

    /// A row-major copy.
    fn copied(&self) -> Result<Self, Failure> {
        let copy = self.like()?;
        copy.copy(self)?;
        Ok(copy)
    }

    /// Extents of the axes.
    pub fn sizes(&self) -> &[i64] {
        self.axes(shim().sizes)
    }

    /// Elements from one index to the next, for every axis.
    pub fn strides(&self) -> &[i64] {
        self.axes(shim().strides)
    }

    fn axes(&self, of: unsafe extern "C" fn(*mut c_void, *mut *const i64) -> i32) -> &[i64] {
        let (mut rank, mut numbers) = (0, std::ptr::null());
        // SAFETY: the tensor is live, and lends as many numbers as it has axes.
        unsafe {
            (shim().rank)(self.0, &mut rank);
            of(self.0, &mut numbers);
            match rank {
                1.. => slice::from_raw_parts(numbers, rank as usize),
                _ => &[],
            }
        }
    }

    /// The device.
    pub fn place(&self) -> Place {
        let mut place = Place { kind: 0, index: 0 };
        // SAFETY: the tensor is live, the pointers a local's.
        unsafe {
            (shim().device_type)(self.0, &mut place.kind);
            (shim().device_index)(self.0, &mut place.index);
        }
        place
    }

    fn offset(&self) -> i64 {
        let mut offset = 0;
        // SAFETY: the tensor is live, the pointer a local's.
        unsafe { (shim().offset)(self.0, &mut offset) };
        offset
    }

    fn dtype_code(&self) -> i32 {
        let mut code = 0;
        // SAFETY: the tensor is live, the pointer a local's.
        unsafe { (shim().dtype)(self.0, &mut code) };
        code
    }

    /// Whether elements are truth values.
    pub fn is_bool(&self) -> bool {
        self.dtype_code() == Type::Bool.code()
    }

    /// The type of q, k and v.
    pub fn number(&self, name: &str) -> Result<Dtype, Failure> {
        let code = self.dtype_code();
        let found = Dtype::ALL
            .into_iter()
            .find(|&dtype| Type::Number(dtype).code() == code);
        found.ok_or_else(|| {
            Failure::dtype(format!(
                "{name} must be of float16, bfloat16 or, on the CPU, float32"
            ))
        })
    }

    /// Whether it holds numbers of e4m3.
    pub fn is_e4m3(&self) -> bool {
        self.dtype_code() == Type::E4m3.code()
    }

    /// The type that a call computes in, and its device.
    pub fn computed(&self, name: &str) -> Result<(Dtype, Place), Failure> {
        let (dtype, place) = (self.number(name)?, self.place());
        match dtype == Dtype::F32 && place.is_cuda() {
            true => Err(Failure::dtype(format!(
                "{name} must be of float16 or bfloat16 on a GPU"
            ))),
            false => Ok((dtype, place)),
        }
    }

    /// Checks type and device.
    pub fn expect(&self, name: &str, of: Type, place: Place) -> Result<(), Failure> {
        if self.dtype_code() != of.code() {
            let wanted = match of {
                Type::Number(Dtype::F16) => "float16",
                Type::Number(Dtype::Bf16) => "bfloat16",
                Type::Number(_) => "float32",
                Type::Int32 => "int32",
                Type::Int64 => "int64",
                Type::Uint64 => "uint64",
                Type::Bool => "bool",
                Type::Byte => "uint8",
                Type::E4m3 => "float8_e4m3fn",
            };
            return Err(Failure::dtype(format!("{name} must be of {wanted}")));
        }
        match self.place() == place {
            true => Ok(()),
            false => Err(Failure::value(format!(
                "{name} is on another device than the other tensors"
            ))),
        }
    }

    /// Address of the first element.
    pub fn address(&self) -> u64 {
        let mut address = null_mut();
        // SAFETY: the tensor is live, the pointer a local's.
        unsafe { (shim().address)(self.0, &mut address) };
        address.expose_provenance() as u64
    }

    /// The tensor by address, its axes in an order; an axis that is none of the tensor's has extent 1.
    pub fn raw<const R: usize>(&self, axes: [Option<usize>; R]) -> RawTensor<R> {
        let (sizes, strides) = (self.sizes(), self.strides());
        RawTensor {
            address: self.address(),
            shape: axes.map(|axis| axis.map_or(1, |axis| sizes[axis] as usize)),
            strides: axes.map(|axis| axis.map_or(0, |axis| strides[axis] as isize)),
        }
    }

    /// Checks the number of axes.
    pub fn expect_rank(&self, name: &str, rank: usize, axes: &str) -> Result<(), Failure> {
        match self.sizes().len() == rank {
            true => Ok(()),
            false => Err(Failure::value(format!(
                "{name} has {} axes; it must be {axes}",
                self.sizes().len()
            ))),
        }
    }
}

/// Strides of a tensor without gaps, the last axis side by side.
fn row_major(sizes: &[i64]) -> Vec<i64> {
    let mut strides = vec![1; sizes.len()];
    for axis in (1..sizes.len()).rev() {
        strides[axis - 1] = strides[axis] * sizes[axis].max(1);
    }
    strides
}

/// A new tensor of any contents, in PyTorch's memory, of a type by PyTorch's number.
fn allocated(sizes: &[i64], strides: &[i64], dtype: i32, place: Place) -> Result<Tensor, Failure> {
    let mut handle = null_mut();
    // SAFETY: sizes and strides are as many; the pointer is a local's.
    let status = unsafe {
        (shim().empty)(
            sizes.len() as i64,
            sizes.as_ptr(),
            strides.as_ptr(),
            dtype,
            place.kind,
            place.index,
            &mut handle,
        )
    };
    match status {
        0 => Ok(Tensor(handle)),
        _ => Err(Failure::memory(sizes)),
    }
}
