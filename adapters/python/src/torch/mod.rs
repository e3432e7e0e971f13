//! Operators of PyTorch.
//!
//! | file | what it holds |
//! |---|---|
//! | `shim` | the functions of PyTorch that are called, found in the libraries that are loaded |
//! | `tensor` | a tensor that is owned |
//! | `value` | arguments and results of an operator |
//! | `failure` | errors, and how they reach Python |
//! | `device` | the library's devices by PyTorch's |
//! | `options`, `prefix` | options of a call |
//! | `forward`, `backward` | the passes |
//! | `e4m3` | the forward pass on tensors of e4m3 |
//! | `append` | new keys and values, written into a cache |
//! | `csr` | pages in the CSR form, as a table and lengths |
//! | `native` | calls whose gradient is PyTorch's own code |
//! | `sdpa` | PyTorch's own operators, replaced |
//! | `operators` | names and signatures, and their registration |

mod append;
mod backward;
mod csr;
mod device;
mod e4m3;
mod failure;
mod forward;
mod native;
mod operators;
mod options;
mod prefix;
mod sdpa;
mod shim;
mod tensor;
mod value;

use options::Numbers;
use std::ffi::{CStr, CString, c_char};
use std::panic::{UnwindSafe, catch_unwind};
use std::ptr::null;

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
    told(|| {
        shim::load(&folder.to_string_lossy())?;
        operators::register()
    })
}

/// The number of a set of options that are numbers, by which a call names them; -1 if there are too many, or one is wrong.
///
/// A scale of NaN is `1 / sqrt(dim)`; flags are 0 or 1. `carries` says that tensors of the operator `ferroattn::carry` belong to the call.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "each is a number of an option")]
pub extern "C" fn ferroattn_intern(
    scale: f64,
    causal: u32,
    left: i64,
    right: i64,
    softcap: f64,
    splits: i64,
    split_keys: i64,
    deterministic: u32,
    batch_invariant: u32,
    fp8: u32,
    heads_first: u32,
    carries: u32,
) -> i64 {
    let numbers = Numbers {
        scale: (!scale.is_nan()).then_some(scale),
        causal: causal != 0,
        left,
        right,
        softcap,
        splits,
        split_keys,
        deterministic: deterministic != 0,
        batch_invariant: batch_invariant != 0,
        fp8: fp8.into(),
        heads_first: heads_first != 0,
    };
    let set = native::Set {
        numbers,
        carries: carries != 0,
    };
    native::intern(set).map_or(-1, |number| number as i64)
}

/// Replaces PyTorch's operators behind `scaled_dot_product_attention` on a device, `CPU` or `CUDA`.
///
/// Returns null, or why not, as a line of text that is never freed.
///
/// # Safety
/// The device is a string. The operators are registered, and those that PyTorch's kernels are behind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroattn_replace_sdpa(device: *const c_char) -> *const c_char {
    // SAFETY: the caller's word.
    let device = unsafe { CStr::from_ptr(device) };
    told(|| sdpa::replace(device))
}

/// Puts PyTorch's own operators of a device back.
///
/// Returns null, or why not, as a line of text that is never freed.
///
/// # Safety
/// The device is a string. The operators are registered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroattn_restore_sdpa(device: *const c_char) -> *const c_char {
    // SAFETY: the caller's word.
    let device = unsafe { CStr::from_ptr(device) };
    told(|| {
        sdpa::restore(device);
        Ok(())
    })
}

/// Null if all went well, else why not.
fn told(body: impl FnOnce() -> Result<(), String> + UnwindSafe) -> *const c_char {
    match catch_unwind(body) {
        Ok(Ok(())) => null(),
        Ok(Err(reason)) => CString::new(reason).unwrap_or_default().into_raw(),
        Err(_) => c"a fault of the library".as_ptr(),
    }
}
