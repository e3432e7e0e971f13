//! Arrays in the memory of a device, and the devices that tests run on.

use crate::{Cpu, c_tensor, last_error};
use bytemuck::Pod;
use ferroattn::RawTensor;
use ferroattn_c::backward::{FerroattnBackward, ferroattn_plan_backward};
use ferroattn_c::device::{FerroattnDevice, ferroattn_close, ferroattn_open_emulator};
use ferroattn_c::forward::FerroattnForward;
use ferroattn_c::memory::{ferroattn_alloc, ferroattn_download, ferroattn_upload};
use ferroattn_c::options::FerroattnOptions;
use ferroattn_c::status::FerroattnStatus;
use ferroattn_c::tensor::FerroattnTensor;
use std::ptr::{null, null_mut};

const OK: FerroattnStatus = FerroattnStatus::Ok;

/// Arrays in the memory of a device.
#[derive(Clone, Copy)]
pub struct Memory(pub *mut FerroattnDevice);

impl Memory {
    /// Gradients of a call with an option that only the forward pass has are refused.
    pub fn expect_no_gradients(
        self,
        args: &FerroattnForward,
        options: &FerroattnOptions,
        option: &str,
    ) {
        let backward = FerroattnBackward {
            struct_size: size_of::<FerroattnBackward>() as u32,
            dtype: args.dtype,
            options,
            q: args.q,
            k: args.k,
            v: args.v,
            o: args.o,
            lse: args.lse,
            d_o: args.q,
            dq: args.q,
            dk: args.k,
            dv: args.v,
            d_lse: null(),
            d_sinks: null(),
            d_bias: null(),
        };
        let mut plan = null_mut();
        // SAFETY: the device is open, and the structs live.
        let status = unsafe { ferroattn_plan_backward(self.0, &backward, &mut plan) };
        assert_eq!(status, FerroattnStatus::Unsupported);
        let message = format!("there are no gradients of a call with {option}");
        assert_eq!(last_error(), message);
    }

    /// An array of this data.
    pub fn array<T: Pod, const R: usize>(self, data: &[T], shape: [usize; R]) -> FerroattnTensor {
        let (mut address, bytes) = (0, size_of_val(data));
        // SAFETY: the device is open, and the slice has so many bytes.
        let status = unsafe {
            assert_eq!(ferroattn_alloc(self.0, bytes, &mut address), OK);
            ferroattn_upload(self.0, address, data.as_ptr().cast(), bytes)
        };
        assert_eq!(status, OK, "{}", last_error());
        c_tensor(RawTensor {
            address,
            ..RawTensor::row_major(shape)
        })
    }

    /// The first so many elements.
    pub fn numbers<T: Pod>(self, tensor: &FerroattnTensor, count: usize) -> Vec<T> {
        let mut data = vec![T::zeroed(); count];
        let to = data.as_mut_ptr().cast();
        // SAFETY: the device is open, and the vector has so many bytes.
        let status =
            unsafe { ferroattn_download(self.0, to, tensor.address, count * size_of::<T>()) };
        assert_eq!(status, OK, "{}", last_error());
        data
    }
}

/// Runs a test on the CPU and, where this build has kernels, an emulated GPU.
pub fn on_devices(test: impl Fn(Memory)) {
    let cpu = Cpu::open();
    test(Memory(cpu.0));
    let mut device = null_mut();
    // SAFETY: the handle may be written.
    match unsafe { ferroattn_open_emulator(&mut device) } {
        FerroattnStatus::Unsupported => return,
        status => assert_eq!(status, OK),
    }
    test(Memory(device));
    // SAFETY: it was opened once, and is closed once.
    unsafe { ferroattn_close(device) };
}
