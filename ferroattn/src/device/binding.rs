//! The functions of the CUDA driver, through any crate that binds them.
//!
//! [`cuda_functions`](crate::cuda_functions) lists them once. The trait [`Binding`] and its implementations follow
//! from the list: through `cudarc` here, through another crate in a program.

use cudarc::driver::sys;
use libloading::Library;
use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
use std::ffi::{c_char, c_void};
use std::fmt::Debug;

/// Passes the functions that [`CudaDriver`](crate::device::CudaDriver) calls to the macro `$then`, after `$first`.
///
/// Handles are pointers, enums and statuses are numbers. `c_char` and `c_void` must be in scope.
#[macro_export]
macro_rules! cuda_functions {
    ($then:ident $($first:tt)*) => { $then! { $($first)*
        cuCtxGetCurrent(context: *mut *mut c_void);
        cuCtxPopCurrent_v2(context: *mut *mut c_void);
        cuCtxPushCurrent_v2(context: *mut c_void);
        cuCtxSynchronize();
        cuDeviceGet(device: *mut i32, index: i32);
        cuDeviceGetAttribute(value: *mut i32, attribute: u32, device: i32);
        cuDeviceGetCount(count: *mut i32);
        cuDeviceGetName(name: *mut c_char, length: i32, device: i32);
        cuDevicePrimaryCtxRelease_v2(device: i32);
        cuDevicePrimaryCtxRetain(context: *mut *mut c_void, device: i32);
        cuDriverGetVersion(version: *mut i32);
        cuEventCreate(event: *mut *mut c_void, flags: u32);
        cuEventDestroy_v2(event: *mut c_void);
        cuEventElapsedTime(milliseconds: *mut f32, start: *mut c_void, end: *mut c_void);
        cuEventRecord(event: *mut c_void, stream: *mut c_void);
        cuEventSynchronize(event: *mut c_void);
        cuFuncSetAttribute(function: *mut c_void, attribute: u32, value: i32);
        cuGetErrorString(status: u32, text: *mut *const c_char);
        cuInit(flags: u32);
        cuKernelGetFunction(function: *mut *mut c_void, kernel: *mut c_void);
        cuLaunchKernel(
            function: *mut c_void, grid_x: u32, grid_y: u32, grid_z: u32,
            block_x: u32, block_y: u32, block_z: u32, shared_bytes: u32,
            stream: *mut c_void, parameters: *mut *mut c_void, extra: *mut *mut c_void
        );
        cuLaunchKernelEx(
            config: *const c_void, function: *mut c_void, parameters: *mut *mut c_void, extra: *mut *mut c_void
        );
        cuLibraryGetKernel(kernel: *mut *mut c_void, library: *mut c_void, name: *const c_char);
        cuLibraryLoadData(
            library: *mut *mut c_void, code: *const c_void, keys: *mut u32, values: *mut *mut c_void,
            options: u32, library_keys: *mut u32, library_values: *mut *mut c_void, library_options: u32
        );
        cuLibraryUnload(library: *mut c_void);
        cuMemAllocFromPoolAsync(
            address: *mut u64, bytes: usize, pool: *mut c_void, stream: *mut c_void
        );
        cuMemAlloc_v2(address: *mut u64, bytes: usize);
        cuMemFreeAsync(address: u64, stream: *mut c_void);
        cuMemFree_v2(address: u64);
        cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
        cuMemPoolCreate(pool: *mut *mut c_void, properties: *const c_void);
        cuMemPoolDestroy(pool: *mut c_void);
        cuMemPoolSetAttribute(pool: *mut c_void, attribute: u32, value: *mut c_void);
        cuMemcpy2DAsync_v2(copy: *const c_void, stream: *mut c_void);
        cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: *mut c_void);
        cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize);
        cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize);
        cuMemsetD32Async(address: u64, word: u32, count: usize, stream: *mut c_void);
        cuMemsetD8Async(address: u64, value: u8, bytes: usize, stream: *mut c_void);
        cuModuleGetFunction(function: *mut *mut c_void, module: *mut c_void, name: *const c_char);
        cuModuleLoadDataEx(
            module: *mut *mut c_void, image: *const c_void, options: u32,
            keys: *mut u32, values: *mut *mut c_void
        );
        cuModuleUnload(module: *mut c_void);
        cuStreamCreate(stream: *mut *mut c_void, flags: u32);
        cuStreamDestroy_v2(stream: *mut c_void);
        cuStreamSynchronize(stream: *mut c_void);
        cuStreamWaitEvent(stream: *mut c_void, event: *mut c_void, flags: u32);
        cuThreadExchangeStreamCaptureMode(mode: *mut u32);
        cuTensorMapEncodeTiled(
            map: *mut c_void, dtype: u32, rank: u32, address: *mut c_void, sizes: *const u64,
            strides: *const u64, box_sizes: *const u32, steps: *const u32, interleave: u32,
            swizzle: u32, promotion: u32, fill: u32
        );
    }};
}

macro_rules! declare {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {
        /// The functions of the CUDA driver, as a crate binds them.
        ///
        /// # Safety
        /// Each function is the driver's of its name.
        #[expect(non_snake_case, clippy::too_many_arguments, reason = "the driver's own")]
        pub unsafe trait Binding: Debug + Send + Sync + 'static {
            /// Whether the driver library is there; no other function may be called before.
            ///
            /// # Errors
            /// Says why it cannot be opened.
            fn library() -> Result<(), String>;

            $(
                /// The driver's function of this name, which returns its status.
                ///
                /// # Safety
                /// The conditions in the driver's documentation.
                unsafe fn $name($($argument: $type),*) -> u32;
            )*
        }
    };
}

cuda_functions!(declare);

/// Implements the functions of a [`Binding`] by the functions of the same names in the module `$bindings`.
#[macro_export]
macro_rules! bind_cuda_functions {
    ($bindings:ident $($name:ident($($argument:ident: $type:ty),*);)*) => {$(
        unsafe fn $name($($argument: $type),*) -> u32 {
            // SAFETY: the caller's word; both declare one C function, in types of other names.
            unsafe { $bindings::$name($($crate::device::passed($argument)),*) as u32 }
        }
    )*};
}

/// An argument in a binding's own type: a pointer to another name of its type, or an enum in place of its number.
///
/// # Safety
/// `To` has this value.
pub unsafe fn passed<From, To>(argument: From) -> To {
    const { assert!(size_of::<From>() == size_of::<To>()) };
    // SAFETY: the sizes agree; the rest is the caller's word.
    unsafe { std::mem::transmute_copy(&argument) }
}

/// The functions of the crate `cudarc`, which opens the driver library when the first is called, unless another crate links the
/// program with it.
#[derive(Debug)]
pub struct Cudarc;

// SAFETY: the list names the driver's functions, and cudarc calls those of these names.
unsafe impl Binding for Cudarc {
    fn library() -> Result<(), String> {
        // Names that cudarc tries, too. It panics where there is no library, and says so only if it opens the library itself.
        let names = [("cuda", ""), ("cuda", ".1"), ("nvcuda", "")];
        let is_there = names.iter().any(|(name, version)| {
            let name = format!("{DLL_PREFIX}{name}{DLL_SUFFIX}{version}");
            // SAFETY: the driver library may be loaded at any time, from any thread.
            unsafe { Library::new(name) }.is_ok()
        });
        match is_there {
            true => Ok(()),
            false => Err("libcuda was not found".to_owned()),
        }
    }

    cuda_functions!(bind_cuda_functions sys);
}
