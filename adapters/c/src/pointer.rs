//! Pointers of C, checked as far as they can be.

use crate::status::Failure;
use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;

/// A parameter struct: its first field is `struct_size`, and later versions may add fields behind the last one.
///
/// # Safety
/// The struct is `repr(C)`, begins with a `u32`, and is valid with all bits zero, which turn a field off.
pub(crate) unsafe trait Parameters: Copy {
    /// Name of the struct.
    const NAME: &'static str;
    /// Bytes of the struct in each version that has another size, the latest last.
    const SIZES: &'static [usize];
}

/// Checks that a pointer is neither null nor misaligned.
pub(crate) fn checked<T>(pointer: *const T, name: &str) -> Result<*const T, Failure> {
    if pointer.is_null() {
        return Err(Failure::argument(format!("{name} is NULL")));
    }
    match pointer.is_aligned() {
        true => Ok(pointer),
        false => Err(Failure::argument(format!("{name} is not aligned"))),
    }
}

/// The value behind a pointer.
///
/// # Safety
/// The pointer is null, or the value behind it is valid and nothing changes it during `'a`.
pub(crate) unsafe fn shared<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, Failure> {
    let pointer = checked(pointer, name)?;
    // SAFETY: the caller's word, and it is aligned.
    Ok(unsafe { &*pointer })
}

/// A copy of the value behind a pointer; `None` if it is null.
///
/// # Safety
/// The pointer is null, or the value behind it is valid.
pub(crate) unsafe fn optional<T: Copy>(
    pointer: *const T,
    name: &str,
) -> Result<Option<T>, Failure> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's word.
    unsafe { shared(pointer, name).copied().map(Some) }
}

/// Writes a result through a pointer.
///
/// # Safety
/// The pointer is null or may be written.
pub(crate) unsafe fn write<T>(
    pointer: *mut T,
    name: &str,
    value: impl FnOnce() -> Result<T, Failure>,
) -> Result<(), Failure> {
    checked(pointer, name)?;
    let value = value()?;
    // SAFETY: the caller's word, and it is aligned.
    unsafe { pointer.write(value) };
    Ok(())
}

/// The parameter struct behind a pointer; fields of later versions than the caller's are zeros.
///
/// # Safety
/// The pointer is null, or as many bytes behind it as its `struct_size` says are valid.
pub(crate) unsafe fn parameters<T: Parameters>(
    pointer: *const T,
    name: &str,
) -> Result<T, Failure> {
    let pointer = checked(pointer, name)?;
    // SAFETY: the struct begins with its size, by the trait.
    let struct_size = unsafe { pointer.cast::<u32>().read() };
    let bytes = known_size::<T>(struct_size, name)?;
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: so many bytes are the caller's word, no more than the struct's, which zeros make valid by the trait.
    unsafe {
        pointer
            .cast::<u8>()
            .copy_to_nonoverlapping(value.as_mut_ptr().cast(), bytes);
        Ok(value.assume_init())
    }
}

/// Writes the defaults of as many bytes as the caller's version of a parameter struct has.
///
/// # Safety
/// The pointer is null, or so many bytes behind it may be written.
pub(crate) unsafe fn init<T: Parameters + Default>(
    pointer: *mut T,
    name: &str,
    struct_size: u32,
) -> Result<(), Failure> {
    checked(pointer, name)?;
    let bytes = known_size::<T>(struct_size, name)?;
    let value = T::default();
    // SAFETY: so many bytes are the caller's word, no more than the struct's; the struct begins with its size.
    unsafe {
        pointer
            .cast::<u8>()
            .copy_from_nonoverlapping((&raw const value).cast(), bytes);
        pointer.cast::<u32>().write(struct_size);
    }
    Ok(())
}

/// The size of a struct, if a version of the interface has it.
fn known_size<T: Parameters>(struct_size: u32, name: &str) -> Result<usize, Failure> {
    let (bytes, sizes) = (struct_size as usize, T::SIZES);
    match sizes.contains(&bytes) {
        true => Ok(bytes),
        false => Err(Failure::argument(format!(
            "struct_size of {name} is {bytes}; {} has one of {sizes:?} in the versions that this library knows",
            T::NAME
        ))),
    }
}

/// The text behind a pointer; `None` if it is null.
///
/// # Safety
/// The pointer is null, or a zero ends the text behind it.
pub(crate) unsafe fn text(pointer: *const c_char, name: &str) -> Result<Option<String>, Failure> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's word.
    let text = unsafe { CStr::from_ptr(pointer) };
    match text.to_str() {
        Ok(text) => Ok(Some(text.to_owned())),
        Err(_) => Err(Failure::argument(format!("{name} is not UTF-8"))),
    }
}

#[cfg(test)]
mod tests {
    use super::{Parameters, parameters};

    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Grown {
        struct_size: u32,
        old: u32,
        new: u64,
    }

    // SAFETY: plain numbers, the size first.
    unsafe impl Parameters for Grown {
        const NAME: &'static str = "Grown";
        const SIZES: &'static [usize] = &[8, 16];
    }

    /// The struct that is read where one of 16 bytes claims so many.
    fn read(struct_size: u32) -> Result<Grown, String> {
        let given = Grown {
            struct_size,
            old: 3,
            new: 5,
        };
        // SAFETY: the struct has all bytes of its sizes.
        let read = unsafe { parameters(&given, "given") };
        read.map_err(|failure| format!("{failure:?}"))
    }

    #[test]
    fn fields_that_the_caller_does_not_know_are_zeros() {
        assert_eq!(read(16).map(|read| read.new), Ok(5));
        assert_eq!(read(8).map(|read| (read.old, read.new)), Ok((3, 0)));
    }

    #[test]
    fn sizes_of_no_version_are_refused() {
        for size in [0, 4, 12, 24, u32::MAX] {
            let refused = read(size).expect_err("refused");
            assert!(refused.contains("struct_size of given is"), "{refused}");
        }
    }
}
