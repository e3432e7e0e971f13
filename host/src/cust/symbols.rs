//! The driver functions that cust calls, looked up at run time.
//!
//! cust links against `libcuda`, which would make a program that needs a GPU just to start. Here
//! each function is defined instead and forwards to the machine's driver library, opened on first
//! use. Where there is none, every function fails with `CUDA_ERROR_NO_DEVICE`.
//!
//! A function that is missing in the list shows as an undefined symbol when the program is linked.

use cust::sys::CUresult;
use libloading::Library;
use std::error::Error;
use std::ffi::{c_char, c_void};
use std::sync::LazyLock;

const LIBRARY_NAME: &str = if cfg!(windows) {
    "nvcuda.dll"
} else {
    "libcuda.so.1"
};

static LIBRARY: LazyLock<Result<Library, String>> = LazyLock::new(|| {
    // SAFETY: the driver library may be loaded at any time, from any thread.
    unsafe { Library::new(LIBRARY_NAME) }.map_err(|error| match error.source() {
        Some(reason) => reason.to_string(),
        None => error.to_string(),
    })
});

/// Whether there is a driver library, or why not.
pub fn library() -> Result<(), String> {
    LIBRARY.as_ref().map(|_| ()).map_err(Clone::clone)
}

/// # Safety
/// `F` must be the type of the driver's function of that name.
unsafe fn function<F: Copy>(name: &str) -> Option<F> {
    let library = LIBRARY.as_ref().ok()?;
    // SAFETY: the caller vouches for the type; the library is never unloaded.
    unsafe { library.get::<F>(name) }.ok().map(|symbol| *symbol)
}

/// A status that cust's `CUresult` has a variant for: newer drivers know more of them, and an enum
/// of an unknown value would be undefined behaviour.
fn known(status: u32) -> u32 {
    match status {
        0..=8
        | 34
        | 100..=102
        | 200..=202
        | 205..=224
        | 300..=304
        | 400
        | 401
        | 500
        | 600
        | 700..=705
        | 708..=720
        | 800..=809
        | 900..=911 => status,
        _ => CUresult::CUDA_ERROR_UNKNOWN as u32,
    }
}

macro_rules! forward {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> u32 {
            type Function = unsafe extern "C" fn($($type),*) -> u32;
            static FUNCTION: LazyLock<Option<Function>> =
                // SAFETY: the rows below give every function the type that cust declares it with.
                LazyLock::new(|| unsafe { function(stringify!($name)) });
            match *FUNCTION {
                // SAFETY: the arguments are the caller's, who keeps the driver's contract.
                Some(function) => known(unsafe { function($($argument),*) }),
                None => CUresult::CUDA_ERROR_NO_DEVICE as u32,
            }
        }
    )*};
}

ferroattn::cuda_functions!(forward);
