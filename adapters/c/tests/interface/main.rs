//! The functions of the interface, called as C calls them.

mod append;
mod arguments;
mod arrays;
mod case;
mod csr;
mod e4m3;
mod emulated;
mod fp8;
mod memory;
mod merge;
mod modifiers;
mod packed_queries;
mod prefix;
mod random;

use ferroattn::RawTensor;
use ferroattn_c::device::{FerroattnDevice, ferroattn_close, ferroattn_open_cpu};
use ferroattn_c::status::{FerroattnStatus, ferroattn_last_error};
use ferroattn_c::tensor::FerroattnTensor;
use std::ffi::CStr;
use std::ptr::null_mut;

/// The CPU, open as long as this lives.
struct Cpu(*mut FerroattnDevice);

impl Cpu {
    fn open() -> Self {
        let mut device = null_mut();
        // SAFETY: the handle may be written.
        let status = unsafe { ferroattn_open_cpu(&mut device) };
        assert_eq!(status, FerroattnStatus::Ok);
        Cpu(device)
    }
}

impl Drop for Cpu {
    fn drop(&mut self) {
        // SAFETY: it was opened once, and is closed once.
        unsafe { ferroattn_close(self.0) };
    }
}

/// The text of the thread's last error.
fn last_error() -> String {
    // SAFETY: the text is this thread's, which calls nothing meanwhile.
    let text = unsafe { CStr::from_ptr(ferroattn_last_error()) };
    text.to_str().expect("UTF-8").to_owned()
}

/// A tensor as C has it; axes that it lacks hold what no call accepts.
fn c_tensor<const R: usize>(raw: RawTensor<R>) -> FerroattnTensor {
    let (mut shape, mut strides) = ([i64::MIN; 4], [i64::MIN; 4]);
    for axis in 0..R {
        shape[axis] = raw.shape[axis] as i64;
        strides[axis] = raw.strides[axis] as i64;
    }
    FerroattnTensor {
        address: raw.address,
        shape,
        strides,
    }
}
