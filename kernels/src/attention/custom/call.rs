//! What a [`Custom`](super::Custom) type reads.

use crate::abi::{ARRAYS, ArrayRef};
use core::marker::PhantomData;

/// A batch entry of a call: its lengths, and the arrays of the call.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Number of the batch entry.
    pub batch: u32,
    /// Queries of a head.
    pub queries: u32,
    /// Keys of a head.
    pub keys: u32,
    arrays: [ArrayRef; ARRAYS],
}

impl Call {
    /// A batch entry of a call.
    ///
    /// # Safety
    /// Each array that is read has an element, and lies in memory that is readable where this code runs and that nothing
    /// writes meanwhile.
    #[inline(always)]
    pub unsafe fn new(batch: u32, [queries, keys]: [u32; 2], arrays: [ArrayRef; ARRAYS]) -> Self {
        Call {
            batch,
            queries,
            keys,
            arrays,
        }
    }

    /// An array of the call, by its number.
    ///
    /// # Panics
    /// If it is above [`ARRAYS`]: at compile time, where the number is a constant.
    #[inline(always)]
    pub fn array<T: Word>(&self, number: usize) -> Array<T> {
        let ArrayRef { address, len } = self.arrays[number];
        Array {
            address,
            len: len as u32,
            elements: PhantomData,
        }
    }
}

/// An array of a call, with one element at least.
#[derive(Clone, Copy, Debug)]
pub struct Array<T> {
    address: u64,
    len: u32,
    elements: PhantomData<T>,
}

impl<T: Word> Array<T> {
    /// Part `number` of an array of parts of `len` elements, such as the row of a batch entry.
    #[inline(always)]
    #[must_use]
    pub fn part(self, number: u32, len: u32) -> Self {
        let len = len.max(1).min(self.len);
        let first = (u64::from(number) * u64::from(len)).min(u64::from(self.len - len));
        Array {
            address: self.address + 4 * first,
            len,
            elements: PhantomData,
        }
    }

    /// The element at a place; behind the last one, the last one.
    #[inline(always)]
    pub fn at(self, place: u32) -> T {
        let address = self.address + 4 * u64::from(place.min(self.len - 1));
        // SAFETY: the element exists, by the contract of `Call::new`.
        T::of(unsafe { load(address) })
    }
}

/// Elements of an [`Array`]: 4 bytes.
pub trait Word: Copy + 'static {
    /// The value of these bits.
    fn of(bits: u32) -> Self;
}

impl Word for u32 {
    #[inline(always)]
    fn of(bits: u32) -> Self {
        bits
    }
}

impl Word for i32 {
    #[inline(always)]
    fn of(bits: u32) -> Self {
        bits as i32
    }
}

impl Word for f32 {
    #[inline(always)]
    fn of(bits: u32) -> Self {
        f32::from_bits(bits)
    }
}

/// Reads what nothing writes: where the result is not used, it is not read.
///
/// # Safety
/// The address is a multiple of 4, and its 4 bytes are readable and never written.
#[inline(always)]
unsafe fn load(address: u64) -> u32 {
    #[cfg(target_arch = "nvptx64")]
    {
        let word: u32;
        // SAFETY: the caller's promise.
        unsafe {
            core::arch::asm!(
                "ld.global.nc.b32 {}, [{}];", out(reg32) word, in(reg64) address,
                options(pure, nomem, nostack)
            );
        }
        word
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        let word = std::ptr::with_exposed_provenance::<u32>(address as usize);
        // SAFETY: the caller's promise.
        unsafe { *word }
    }
}
