//! Memory of a device.

use crate::{Cpu, last_error};
use ferroattn_c::device::{
    FerroattnDevice, ferroattn_close, ferroattn_open_emulator, ferroattn_synchronize,
};
use ferroattn_c::memory::{ferroattn_alloc, ferroattn_download, ferroattn_free, ferroattn_upload};
use ferroattn_c::status::FerroattnStatus;
use std::ptr::null_mut;

const OK: FerroattnStatus = FerroattnStatus::Ok;
const ARGUMENT: FerroattnStatus = FerroattnStatus::Argument;

fn check_memory(device: *mut FerroattnDevice) {
    let (mut address, mut other) = (0, 0);
    let data = [1_u8, 2, 3, 4, 5];
    let mut found = [9_u8; 8];
    // SAFETY: the device is open, and the arrays have as many bytes as the calls say.
    unsafe {
        assert_eq!(ferroattn_alloc(device, 1000, &mut address), OK);
        assert_eq!(ferroattn_alloc(device, 1, &mut other), OK);
        assert!(address.is_multiple_of(256) && other.is_multiple_of(256));
        let part = address + 501;
        assert_eq!(ferroattn_upload(device, part, data.as_ptr().cast(), 5), OK);
        let to = found.as_mut_ptr().cast();
        assert_eq!(ferroattn_download(device, to, part - 2, 8), OK);
        assert_eq!(found, [0, 0, 1, 2, 3, 4, 5, 0]);
        assert_eq!(ferroattn_synchronize(device), OK);

        for (wrong, bytes) in [
            (address + 996, 5),
            (address + 1000, 1),
            (address, usize::MAX),
        ] {
            let from = data.as_ptr().cast();
            assert_eq!(ferroattn_upload(device, wrong, from, bytes), ARGUMENT);
            assert_eq!(ferroattn_download(device, to, wrong, bytes), ARGUMENT);
            assert!(last_error().ends_with("are not memory of ferroattn_alloc"));
        }
        assert_eq!(ferroattn_free(device, part), ARGUMENT);
        assert_eq!(ferroattn_free(device, address), OK);
        assert_eq!(ferroattn_free(device, address), ARGUMENT);
        assert_eq!(
            ferroattn_upload(device, part, data.as_ptr().cast(), 5),
            ARGUMENT
        );
        assert_eq!(ferroattn_free(device, 0), OK);
    }
    // `other` is freed with the device.
}

#[test]
fn memory_of_the_cpu() {
    let cpu = Cpu::open();
    check_memory(cpu.0);
    let mut address = 7;
    // SAFETY: the device is open.
    unsafe {
        assert_eq!(ferroattn_alloc(cpu.0, 0, &mut address), ARGUMENT);
        let huge = ferroattn_alloc(cpu.0, usize::MAX, &mut address);
        assert_eq!(huge, FerroattnStatus::Memory);
    }
    assert_eq!(address, 7);
}

#[test]
fn memory_of_an_emulated_gpu() {
    let mut device = null_mut();
    // SAFETY: the handle is opened once, and closed once.
    unsafe {
        match ferroattn_open_emulator(&mut device) {
            // This build has no kernels.
            FerroattnStatus::Unsupported => return,
            status => assert_eq!(status, OK),
        }
        check_memory(device);
        ferroattn_close(device);
    }
}
