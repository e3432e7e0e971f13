//! The library's devices by PyTorch's.

use super::failure::Failure;
use super::shim::{current_stream, shim};
use crate::gpus;
use ferroattn::Device;
use std::ffi::c_void;
use std::ptr::null_mut;

/// A device of PyTorch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The type's number.
    pub kind: i32,
    /// The index, -1 of the CPU.
    pub index: i32,
}

impl Place {
    /// The CPU.
    pub fn cpu() -> Self {
        // SAFETY: the function returns a number.
        let kind = unsafe { (shim().device_cpu)() };
        Place { kind, index: -1 }
    }

    /// Whether it is a CUDA device.
    pub fn is_cuda(self) -> bool {
        // SAFETY: the function returns a number.
        self.kind == unsafe { (shim().device_cuda)() }
    }

    /// The library's device, and PyTorch's current stream there.
    pub fn device(self) -> Result<(Device, *mut c_void), Failure> {
        if self.kind == Self::cpu().kind {
            return Ok((Device::cpu(), null_mut()));
        }
        let (true, Some(stream_of)) = (self.is_cuda(), current_stream()) else {
            return Err(Failure::value(
                "tensors must be of the CPU or of CUDA devices",
            ));
        };
        let mut stream = null_mut();
        // SAFETY: the device is PyTorch's, the pointer a local's.
        if unsafe { stream_of(self.index, &mut stream) } != 0 {
            return Err(Failure::other("PyTorch tells no stream"));
        }
        Ok((gpus::open(self.index as usize)?, stream))
    }
}
