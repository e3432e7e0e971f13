//! The driver functions that cust calls, looked up at run time.
//!
//! cust links against `libcuda`, which would make a program that needs a GPU just to start. Here
//! each function is defined instead and forwards to the machine's driver library, opened on first
//! use. Where there is none, every function fails with `CUDA_ERROR_NO_DEVICE`.
//!
//! A function that is missing here shows as an undefined symbol when the program is linked.

use cust::sys::*;
use libloading::Library;
use std::error::Error;
use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_void};
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

/// The driver's words for a status.
pub fn message(status: u32) -> String {
    type GetErrorString = unsafe extern "C" fn(u32, *mut *const c_char) -> u32;
    let mut text: *const c_char = std::ptr::null();
    // SAFETY: this is the function's type.
    if let Some(get) = unsafe { function::<GetErrorString>("cuGetErrorString") } {
        // SAFETY: `text` is valid for a write.
        unsafe { get(status, &mut text) };
    }
    if text.is_null() {
        return format!("error {status}");
    }
    // SAFETY: the driver wrote a string constant.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
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
        unsafe extern "C" fn $name($($argument: $type),*) -> u32 {
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

forward! {
    cuCtxGetCurrent(context: *mut CUcontext);
    cuCtxPopCurrent_v2(context: *mut CUcontext);
    cuCtxPushCurrent_v2(context: CUcontext);
    cuCtxSetCurrent(context: CUcontext);
    cuCtxSynchronize();
    cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    cuDeviceGetAttribute(value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice);
    cuDeviceGetCount(count: *mut c_int);
    cuDeviceGetName(name: *mut c_char, length: c_int, device: CUdevice);
    cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    cuDriverGetVersion(version: *mut c_int);
    cuEventCreate(event: *mut CUevent, flags: c_uint);
    cuEventDestroy_v2(event: CUevent);
    cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);
    cuEventRecord(event: CUevent, stream: CUstream);
    cuEventSynchronize(event: CUevent);
    cuFuncSetAttribute(function: CUfunction, attribute: CUfunction_attribute, value: c_int);
    cuGetErrorString(status: u32, text: *mut *const c_char);
    cuInit(flags: c_uint);
    cuLaunchKernel(
        function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint, shared_bytes: c_uint,
        stream: CUstream, parameters: *mut *mut c_void, extra: *mut *mut c_void
    );
    cuMemAllocFromPoolAsync(
        address: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream
    );
    cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize);
    cuMemFreeAsync(address: CUdeviceptr, stream: CUstream);
    cuMemFree_v2(address: CUdeviceptr);
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuMemPoolCreate(pool: *mut CUmemoryPool, properties: *const CUmemPoolProps);
    cuMemPoolDestroy(pool: CUmemoryPool);
    cuMemPoolSetAttribute(
        pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void
    );
    cuMemcpyDtoDAsync_v2(target: CUdeviceptr, source: CUdeviceptr, bytes: usize, stream: CUstream);
    cuMemcpyDtoH_v2(target: *mut c_void, source: CUdeviceptr, bytes: usize);
    cuMemcpyHtoD_v2(target: CUdeviceptr, source: *const c_void, bytes: usize);
    cuMemsetD8_v2(address: CUdeviceptr, value: c_uchar, bytes: usize);
    cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
    cuModuleLoadDataEx(
        module: *mut CUmodule, image: *const c_void, options: c_uint,
        keys: *mut CUjit_option, values: *mut *mut c_void
    );
    cuModuleUnload(module: CUmodule);
    cuStreamSynchronize(stream: CUstream);
}
