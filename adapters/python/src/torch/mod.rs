//! Operators of PyTorch.
//!
//! | file | what it holds |
//! |---|---|
//! | `shim` | the functions of PyTorch that are called, found in the libraries that are loaded |
//! | `tensor` | a tensor that is owned |
//! | `value` | arguments and results of an operator |
//! | `failure` | errors, and how they reach Python |
//! | `device` | the library's devices by PyTorch's |
//! | `options` | options of a call |
//! | `forward`, `backward` | the passes |
//! | `operators` | names and signatures, and their registration |

mod backward;
mod device;
mod failure;
mod forward;
mod operators;
mod options;
mod shim;
mod tensor;
mod value;

use std::ffi::{CStr, CString, c_char};

/// Registers the operators with the PyTorch whose libraries lie in a folder, and are loaded.
///
/// Returns null, or why not, as a line of text that is never freed.
///
/// # Safety
/// The path is a string, and the libraries are PyTorch's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroattn_register_torch(folder: *const c_char) -> *const c_char {
    // SAFETY: the caller's word.
    let folder = unsafe { CStr::from_ptr(folder) };
    let registered = std::panic::catch_unwind(|| {
        shim::load(&folder.to_string_lossy())?;
        operators::register()
    });
    match registered {
        Ok(Ok(())) => std::ptr::null(),
        Ok(Err(reason)) => CString::new(reason).unwrap_or_default().into_raw(),
        Err(_) => c"a fault of the library".as_ptr(),
    }
}
