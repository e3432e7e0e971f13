//! The part of a call that a [`Custom`](super::Custom) type reads.

use crate::abi::{ARRAYS, ArrayRef};
use core::marker::PhantomData;

/// A batch entry of a call: its lengths, and the arrays of the call, which live as long as `'a`.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Number of the batch entry.
    pub batch: u32,
    /// Queries of a head.
    pub queries: u32,
    /// Keys of a head.
    pub keys: u32,
    arrays: [ArrayRef; ARRAYS],
    memory: PhantomData<&'a [u32]>,
}

impl<'a> Call<'a> {
    /// A batch entry of a call.
    ///
    /// # Safety
    /// Each array that has elements, at most `u32::MAX`, lies in memory that is readable where this code runs, at a multiple
    /// of 4 bytes, and that nothing writes during `'a`.
    #[inline(always)]
    pub unsafe fn new(batch: u32, [queries, keys]: [u32; 2], arrays: [ArrayRef; ARRAYS]) -> Self {
        Call {
            batch,
            queries,
            keys,
            arrays,
            memory: PhantomData,
        }
    }

    /// An array of the call, by its number; of one that was not given, an array without elements.
    ///
    /// # Panics
    /// If the number is not below [`ARRAYS`]: at compile time, where it is a constant.
    #[inline(always)]
    pub fn array<T: Word>(&self, number: usize) -> Array<'a, T> {
        let ArrayRef { address, len } = self.arrays[number];
        Array {
            address,
            len: len as u32,
            elements: PhantomData,
        }
    }
}

/// An array of a call, which lives as long as `'a`.
#[derive(Clone, Copy, Debug)]
pub struct Array<'a, T> {
    address: u64,
    len: u32,
    elements: PhantomData<&'a [T]>,
}

impl<T: Word> Array<'_, T> {
    /// Part `number` of an array of parts of `len` elements, such as the row of a batch entry.
    ///
    /// Behind the last part it is the last one. A `len` of 0 is taken for 1, and a longer one than the array's for the
    /// array's.
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

    /// The element at a place; behind the last one, the last one. An array without elements has zeros everywhere.
    #[inline(always)]
    pub fn at(self, place: u32) -> T {
        let last = self.len.wrapping_sub(1);
        let address = self.address + 4 * u64::from(place.min(last));
        // SAFETY: if there are elements, this one is among them; the contract of `Call::new` holds during `'a`.
        T::of(unsafe { load(address, self.len) })
    }
}

mod sealed {
    pub trait Sealed {}

    impl Sealed for u32 {}

    impl Sealed for i32 {}

    impl Sealed for f32 {}
}

/// Elements of an [`Array`]: 4 bytes, `u32`, `i32` or `f32`. Sealed: arrays of other sizes would be read out of bounds.
pub trait Word: sealed::Sealed + Copy + 'static {
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

/// Reads what nothing writes, or gives 0 if `len` is 0: where the result is not used, nothing is read.
///
/// # Safety
/// Unless `len` is 0, the address is a multiple of 4, and its 4 bytes are readable and never written.
#[inline(always)]
unsafe fn load(address: u64, len: u32) -> u32 {
    #[cfg(target_arch = "nvptx64")]
    {
        let word: u32;
        // SAFETY: the caller's promise; the load is off without elements.
        unsafe {
            core::arch::asm!(
                concat!(
                    "{{ .reg .pred some; setp.ne.u32 some, {2}, 0; mov.b32 {0}, 0; ",
                    "@some ld.global.nc.b32 {0}, [{1}]; }}"
                ),
                out(reg32) word, in(reg64) address, in(reg32) len, options(pure, nomem, nostack)
            );
        }
        word
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        if len == 0 {
            return 0;
        }
        let word = std::ptr::with_exposed_provenance::<u32>(address as usize);
        // SAFETY: the caller's promise.
        unsafe { *word }
    }
}

#[cfg(test)]
mod tests {
    use super::{ArrayRef, Call};

    fn call(elements: &[u32]) -> Call<'_> {
        let given = ArrayRef {
            address: elements.as_ptr().expose_provenance() as u64,
            len: elements.len() as u64,
        };
        let none = ArrayRef::default();
        // SAFETY: the elements are borrowed for as long, and the other arrays have none.
        unsafe { Call::new(0, [1, 1], [given, none, none, none]) }
    }

    /// An array that was not given lies at address 0.
    #[test]
    fn arrays_without_elements_are_zeros() {
        let call = call(&[7]);
        for place in [0, 1, u32::MAX] {
            assert_eq!(call.array::<u32>(3).at(place), 0);
            assert_eq!(call.array::<i32>(1).part(place, 5).at(place), 0);
            assert_eq!(call.array::<f32>(2).part(5, place).at(2), 0.0);
        }
    }

    #[test]
    fn places_behind_the_last_are_the_last() {
        let elements = [1, 2, 3, 4, 5];
        let array = call(&elements).array::<u32>(0);
        assert_eq!(
            [0, 4, 5, u32::MAX].map(|place| array.at(place)),
            [1, 5, 5, 5]
        );
        let part = |number, len| array.part(number, len);
        assert_eq!([0, 1, 2].map(|place| part(1, 2).at(place)), [3, 4, 4]);
        assert_eq!([0, 1, 2].map(|place| part(9, 2).at(place)), [4, 5, 5]);
        assert_eq!([0, 4, 9].map(|place| part(1, 9).at(place)), [1, 5, 5]);
        assert_eq!(part(3, 0).at(7), 4);
    }
}
