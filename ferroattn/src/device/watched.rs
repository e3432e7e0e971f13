//! An emulated GPU whose loads a test watches.

use super::driver::{Driver, Handle, Launch, RawStream};
use super::{Emulator, Facts};
use crate::device::Class;
use crate::error::Result;
use crate::tensor_map::TensorMap;
use ::emulator::Options;
use std::ffi::CStr;
use std::fmt;
use std::time::Duration;

/// An emulated GPU that calls a function with a kernel's name before it loads the kernel.
pub struct Watched<F> {
    emulator: Emulator,
    before_load: F,
}

impl<F> Watched<F> {
    pub fn new(class: Class, before_load: F) -> Self {
        Watched {
            emulator: Emulator::new(Facts::emulated(class), Options::default()),
            before_load,
        }
    }
}

impl<F> fmt::Debug for Watched<F> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.emulator.fmt(f)
    }
}

/// Methods that the emulator has.
macro_rules! of_emulator {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*
     $(unsafe fn $unsafe_name:ident($($unsafe_argument:ident: $unsafe_type:ty),*) -> $unsafe_result:ty;)*) => {
        $(fn $name(&self, $($argument: $type),*) -> $result {
            self.emulator.$name($($argument),*)
        })*
        $(unsafe fn $unsafe_name(&self, $($unsafe_argument: $unsafe_type),*) -> $unsafe_result {
            // SAFETY: the caller's word.
            unsafe { self.emulator.$unsafe_name($($unsafe_argument),*) }
        })*
    };
}

// SAFETY: the emulator keeps the promise.
unsafe impl<F: Fn(&str) -> Result<()> + Send + Sync> Driver for Watched<F> {
    fn load(&self, kernel: &str, ptx: &CStr, log: &mut [u8]) -> Result<Handle> {
        (self.before_load)(kernel)?;
        self.emulator.load(kernel, ptx, log)
    }

    of_emulator! {
        fn name() -> &str;
        fn facts() -> &Facts;
        fn index() -> Option<usize>;
        fn cuda_version() -> Result<(i32, i32)>;
        fn free_memory() -> Result<Option<u64>>;
        fn synchronize() -> Result<()>;
        fn allocate(bytes: usize) -> Result<u64>;
        fn tensor_map(map: &TensorMap) -> Result<[u8; 128]>;
        fn create_stream() -> Result<Handle>;
        unsafe fn free(address: u64) -> ();
        unsafe fn allocate_in(stream: RawStream, bytes: usize) -> Result<u64>;
        unsafe fn free_in(stream: RawStream, address: u64) -> ();
        unsafe fn wait(stream: RawStream) -> Result<()>;
        unsafe fn zero(address: u64, bytes: usize, stream: RawStream) -> Result<()>;
        unsafe fn fill(address: u64, bytes: usize, word: u32, stream: RawStream) -> Result<()>;
        unsafe fn upload(to: u64, data: &[u8]) -> Result<()>;
        unsafe fn download(from: u64, data: &mut [u8]) -> Result<()>;
        unsafe fn copy(to: u64, from: u64, bytes: usize) -> Result<()>;
        unsafe fn unload(module: Handle) -> ();
        unsafe fn function(module: Handle, name: &CStr) -> Result<Handle>;
        unsafe fn launch(launch: &Launch) -> Result<()>;
        unsafe fn destroy_stream(stream: Handle) -> ();
        unsafe fn record(stream: RawStream) -> Result<Handle>;
        unsafe fn wait_for(stream: RawStream, event: Handle) -> Result<()>;
        unsafe fn reach(event: Handle) -> Result<()>;
        unsafe fn elapsed(start: Handle, end: Handle) -> Result<Duration>;
        unsafe fn forget(event: Handle) -> ();
    }
}
