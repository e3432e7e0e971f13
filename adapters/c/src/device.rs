//! Devices behind opaque handles.

use crate::memory::Blocks;
use crate::pointer;
use crate::status::{Failure, FerroattnStatus, guarded, one_line};
use ferroattn::Device;
use ferroattn::emulator::Options;
use std::ffi::{CString, c_char};
use std::ptr::null;
use std::sync::Mutex;

/// A device that computes: a GPU, the CPU, or an emulated GPU.
///
/// Threads may use one device at once; only `ferroattn_close` must come after all other calls with it.
pub struct FerroattnDevice {
    pub(crate) device: Device,
    name: CString,
    /// Memory of `ferroattn_alloc`.
    pub(crate) blocks: Mutex<Blocks>,
}

impl FerroattnDevice {
    fn boxed(device: Device) -> *mut Self {
        let name = one_line(device.name());
        Box::into_raw(Box::new(FerroattnDevice {
            device,
            name,
            blocks: Mutex::default(),
        }))
    }
}

/// Opens a device, and writes its handle.
///
/// # Safety
/// The pointer is null or may be written.
unsafe fn open(
    device: *mut *mut FerroattnDevice,
    open: impl FnOnce() -> ferroattn::Result<Device>,
) -> FerroattnStatus {
    let opened = || Ok(FerroattnDevice::boxed(open()?));
    // SAFETY: the caller's word.
    guarded(|| unsafe { pointer::write(device, "device", opened) })
}

/// Opens the CUDA device of an index, and writes its handle.
///
/// Its addresses and streams are those of the device's primary context, which the CUDA runtime uses.
///
/// # Safety
/// `device` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroattn_open_cuda(
    index: u32,
    device: *mut *mut FerroattnDevice,
) -> FerroattnStatus {
    // SAFETY: the caller's word.
    unsafe { open(device, || Device::cuda(index as usize)) }
}

/// Opens the CPU, and writes its handle. Addresses are those of the host.
///
/// # Safety
/// `device` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroattn_open_cpu(device: *mut *mut FerroattnDevice) -> FerroattnStatus {
    // SAFETY: the caller's word.
    unsafe { open(device, || Ok(Device::cpu())) }
}

/// Opens a new emulated A100, and writes its handle: it checks each access of the kernels, and is slow.
///
/// Only `ferroattn_alloc` gives memory of it.
///
/// # Safety
/// `device` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroattn_open_emulator(
    device: *mut *mut FerroattnDevice,
) -> FerroattnStatus {
    // SAFETY: the caller's word.
    unsafe { open(device, || Device::emulator(Options::default())) }
}

/// Closes a device and frees its memory of `ferroattn_alloc`, after all queued work; NULL is fine.
///
/// # Safety
/// The handle is NULL, or an opened device's that no other call uses, now or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroattn_close(device: *mut FerroattnDevice) {
    if device.is_null() {
        return;
    }
    guarded(|| {
        // SAFETY: the handle is that of `FerroattnDevice::boxed`, and this call its last.
        let owned = unsafe { Box::from_raw(device) };
        Ok(owned.device.synchronize()?)
    });
}

/// Marketing name of a GPU, `CPU` or `emulator`; NULL of NULL. It is valid until the device is closed.
///
/// # Safety
/// The handle is NULL or an open device's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroattn_device_name(device: *const FerroattnDevice) -> *const c_char {
    // SAFETY: the caller's word.
    let device = unsafe { device.as_ref() };
    device.map_or(null(), |device| device.name.as_ptr())
}

/// Waits until all work on the device is done, of all streams.
///
/// # Safety
/// The handle is NULL or an open device's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroattn_synchronize(device: *const FerroattnDevice) -> FerroattnStatus {
    guarded(|| {
        // SAFETY: the caller's word.
        let FerroattnDevice { device, .. } = unsafe { opened(device)? };
        Ok(device.synchronize()?)
    })
}

/// The device of a handle.
///
/// # Safety
/// The handle is null or an open device's during `'a`.
pub(crate) unsafe fn opened<'a>(
    device: *const FerroattnDevice,
) -> Result<&'a FerroattnDevice, Failure> {
    // SAFETY: the caller's word.
    unsafe { pointer::shared(device, "device") }
}

#[cfg(test)]
mod tests {
    use super::FerroattnDevice;

    /// Each thread may use a device: this compiles.
    #[test]
    fn devices_are_shared_by_threads() {
        fn shared<T: Send + Sync>() {}
        shared::<FerroattnDevice>();
    }
}
