//! A driver that does nothing: what is timed with it is the library alone.

use ferroattn::device::driver::{Handle, Launch};
use ferroattn::device::{Driver, RawStream, TensorMap};

use ferroattn::{Class, Facts, Result};
use std::ffi::CStr;
use std::ptr::null_mut;
use std::time::Duration;

/// A driver for an H100 that is not there.
pub fn driver() -> impl Driver {
    Silent(Facts::emulated(Class::Sm90))
}

#[derive(Debug)]
struct Silent(Facts);

/// Methods that give one value, whatever they are asked.
macro_rules! answers {
    ($(fn $name:ident($($type:ty),*) -> $result:ty = $value:expr;)*
     $(unsafe fn $unsafe_name:ident($($unsafe_type:ty),*) -> $unsafe_result:ty = $unsafe_value:expr;)*) => {
        $(fn $name(&self, $(_: $type),*) -> $result { $value })*
        $(unsafe fn $unsafe_name(&self, $(_: $unsafe_type),*) -> $unsafe_result { $unsafe_value })*
    };
}

const NOTHING: Handle = Handle(null_mut());

// SAFETY: nothing is read from memory of this device.
unsafe impl Driver for Silent {
    fn facts(&self) -> &Facts {
        &self.0
    }

    answers! {
        fn name() -> &str = "silent";
        fn index() -> Option<usize> = None;
        fn cuda_version() -> Result<(i32, i32)> = Ok((13, 0));
        fn free_memory() -> Result<Option<u64>> = Ok(None);
        fn synchronize() -> Result<()> = Ok(());
        fn allocate(usize) -> Result<u64> = Ok(256);
        fn create_stream() -> Result<Handle> = Ok(NOTHING);
        fn load(&str, &CStr, &mut [u8]) -> Result<Handle> = Ok(NOTHING);
        fn tensor_map(&TensorMap) -> Result<[u8; 128]> = Ok([0; 128]);
        unsafe fn free(u64) -> () = ();
        unsafe fn allocate_in(RawStream, usize) -> Result<u64> = Ok(256);
        unsafe fn free_in(RawStream, u64) -> () = ();
        unsafe fn destroy_stream(Handle) -> () = ();
        unsafe fn wait(RawStream) -> Result<()> = Ok(());
        unsafe fn zero(u64, usize, RawStream) -> Result<()> = Ok(());
        unsafe fn fill(u64, usize, u32, RawStream) -> Result<()> = Ok(());
        unsafe fn upload(u64, &[u8]) -> Result<()> = Ok(());
        unsafe fn download(u64, &mut [u8]) -> Result<()> = Ok(());
        unsafe fn copy(u64, u64, usize) -> Result<()> = Ok(());
        unsafe fn unload(Handle) -> () = ();
        unsafe fn function(Handle, &CStr) -> Result<Handle> = Ok(NOTHING);
        unsafe fn launch(&Launch) -> Result<()> = Ok(());
        unsafe fn record(RawStream) -> Result<Handle> = Ok(NOTHING);
        unsafe fn wait_for(RawStream, Handle) -> Result<()> = Ok(());
        unsafe fn reach(Handle) -> Result<()> = Ok(());
        unsafe fn elapsed(Handle, Handle) -> Result<Duration> = Ok(Duration::ZERO);
        unsafe fn forget(Handle) -> () = ();
    }
}
