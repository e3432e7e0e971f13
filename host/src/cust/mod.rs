//! CUDA devices through `cust`. Nothing outside this folder names it.

mod symbols;

use ferroattn::device::{Binding, CudaDriver};
use ferroattn::{bind_cuda_functions, cuda_functions};
use std::ffi::{c_char, c_void};

/// cust's declarations, and those that it lacks.
mod functions {
    pub use super::symbols::{
        cuKernelGetFunction, cuLaunchKernelEx, cuLibraryGetKernel, cuLibraryLoadData,
        cuLibraryUnload, cuTensorMapEncodeTiled,
    };
    pub use cust::sys::*;
}

/// A GPU that the program reaches through `cust`.
pub type Cust = CudaDriver<CustFunctions>;

/// The functions of the CUDA driver, as `cust` declares them.
#[derive(Debug)]
pub struct CustFunctions;

// SAFETY: the list names the driver's functions, and cust and the list declare those of these names.
unsafe impl Binding for CustFunctions {
    fn library() -> Result<(), String> {
        symbols::library()
    }

    cuda_functions!(bind_cuda_functions functions);
}
