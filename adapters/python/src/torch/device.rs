//! The library's devices by PyTorch's.

use super::failure::Failure;
use super::shim::{current_stream, shim};
use ferroattn::Device;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::OnceLock;

/// CUDA devices that a program may have; PyTorch has fewer.
const MOST: usize = 64;

/// Devices that are open, by their index: a failure to open is not kept.
static OPEN: [OnceLock<Device>; MOST] = [const { OnceLock::new() }; MOST];

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
        Ok((cuda_device(self.index)?, stream))
    }
}

fn cuda_device(index: i32) -> Result<Device, Failure> {
    let index = index as usize;
    let slot = OPEN.get(index);
    let slot = slot.ok_or_else(|| Failure::value(format!("device {index} is beyond the last")))?;
    if let Some(device) = slot.get() {
        return Ok(device.clone());
    }
    let device = Device::cuda(index)?;
    Ok(slot.get_or_init(|| device).clone())
}
