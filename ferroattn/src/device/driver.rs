//! The interface that a device must offer to launch kernels: memory, modules, launches, streams and events.
//!
//! A driver knows nothing of attention, and keeps no record: the file `gpu` remembers what is loaded.
//! `Cuda` launches through `cudarc`, `Emulator` on the CPU; a program may bring its own for
//! [`Device::with_driver`](crate::Device::with_driver).

use super::facts::Facts;
use crate::error::Result;
use crate::tensor_map::TensorMap;
#[cfg(feature = "emulator")]
use ::emulator::Counters;
use std::ffi::{CStr, c_void};
use std::fmt::Debug;
use std::time::Duration;

/// A `CUstream` of the device's primary context; null is the legacy default stream.
pub type RawStream = *mut c_void;

/// Bytes that a memory pool keeps for the next call when the device is waited for; a longer workspace goes back
/// to the CUDA driver.
pub const KEPT_BYTES: u64 = 256 << 20;

/// A module, function or event, as its driver names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle(pub *mut c_void);

// SAFETY: drivers accept their handles from any thread.
unsafe impl Send for Handle {}
// SAFETY: as above; the handle itself never changes.
unsafe impl Sync for Handle {}

/// One launch of a kernel with a single argument.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Launch<'a> {
    /// The kernel's name.
    pub name: &'static str,
    /// The kernel, from [`Driver::function`].
    pub function: Handle,
    /// Blocks of the grid, in one dimension.
    pub blocks: u32,
    /// Blocks of a cluster, of which the grid has a multiple; 1 where each is alone.
    pub cluster: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of a block's dynamic shared memory.
    pub shared_bytes: u32,
    /// The argument, passed by value.
    pub argument: &'a [u8],
    /// Where the launch is queued.
    pub stream: RawStream,
}

/// Rows of `bytes` bytes that are copied.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// Bytes of a row, not 0.
    pub bytes: usize,
    /// How many rows.
    pub count: usize,
    /// Bytes from a row to the next one, where they are written and where they are read: at least those of a row.
    pub pitches: [usize; 2],
}

impl Rows {
    /// Calls `copy` with the addresses of each row, to write and to read.
    ///
    /// # Errors
    /// The first failure.
    pub fn each(
        &self,
        to: u64,
        from: u64,
        mut copy: impl FnMut(u64, u64) -> Result<()>,
    ) -> Result<()> {
        let [to_pitch, from_pitch] = self.pitches.map(|pitch| pitch as u64);
        (0..self.count as u64)
            .try_for_each(|row| copy(to + row * to_pitch, from + row * from_pitch))
    }
}

/// One device and the calls that reach it, from any thread.
///
/// A driver for CUDA works in the device's primary context, which it makes current for each call and no
/// longer: the thread's own current context stays.
///
/// # Safety
/// Safe calls rely on it: memory that is allocated is the caller's alone until it is freed, has all bytes at its address, and each call
/// does what it says. [`facts`](Self::facts) are those of the device.
///
/// # Errors
/// Of each call, [`Error::Cuda`](crate::Error::Cuda) with the status that the driver reports. From it the library
/// makes the more telling errors (out of memory, driver too old).
pub unsafe trait Driver: Debug + Send + Sync {
    /// Marketing name of the device.
    fn name(&self) -> &str;

    /// The facts that plans depend on.
    fn facts(&self) -> &Facts;

    /// Index among the machine's GPUs; `None` if the device is emulated. Drivers with one index share memory.
    fn index(&self) -> Option<usize>;

    /// CUDA version that the driver supports, as (major, minor).
    fn cuda_version(&self) -> Result<(i32, i32)>;

    /// Bytes of memory that can be allocated now; `None` if the host's memory is the limit.
    fn free_memory(&self) -> Result<Option<u64>>;

    /// Waits for all work on the device.
    fn synchronize(&self) -> Result<()>;

    /// Allocates `bytes` bytes, not 0, and returns their address: a multiple of 256.
    fn allocate(&self, bytes: usize) -> Result<u64>;

    /// Frees memory, after all work that was queued before.
    ///
    /// # Safety
    /// [`allocate`](Self::allocate) returned the address, and nothing uses the memory any more.
    unsafe fn free(&self, address: u64);

    /// Like [`allocate`](Self::allocate), in the order of a stream. Only of devices with
    /// [memory pools](Facts::has_pools).
    ///
    /// # Safety
    /// `stream` is valid.
    unsafe fn allocate_in(&self, stream: RawStream, bytes: usize) -> Result<u64>;

    /// Frees memory in the order of a stream.
    ///
    /// # Safety
    /// [`allocate_in`](Self::allocate_in) returned the address for this stream, which is valid, and nothing
    /// uses the memory after what the stream holds now.
    unsafe fn free_in(&self, stream: RawStream, address: u64);

    /// Creates a stream that waits for the legacy default stream, and holds it back.
    fn create_stream(&self) -> Result<Handle>;

    /// Destroys a stream, after its work.
    ///
    /// # Safety
    /// [`create_stream`](Self::create_stream) returned it, and nothing is queued on it any more.
    unsafe fn destroy_stream(&self, stream: Handle);

    /// Waits for all work of a stream.
    ///
    /// # Safety
    /// `stream` is valid.
    unsafe fn wait(&self, stream: RawStream) -> Result<()>;

    /// Fills memory with zeros, in the order of a stream.
    ///
    /// # Safety
    /// `bytes` bytes from the address, not 0, are allocated, and the stream is valid.
    unsafe fn zero(&self, address: u64, bytes: usize, stream: RawStream) -> Result<()>;

    /// Fills memory with a word of four bytes, in the order of a stream.
    ///
    /// # Safety
    /// `bytes` bytes from the address, not 0, are allocated, both are multiples of 4, and the stream is valid.
    unsafe fn fill(&self, address: u64, bytes: usize, word: u32, stream: RawStream) -> Result<()>;

    /// Copies host memory to the device, in the order of the default stream.
    ///
    /// # Safety
    /// `data.len()` bytes from the address are allocated.
    unsafe fn upload(&self, to: u64, data: &[u8]) -> Result<()>;

    /// Copies device memory to the host, after all work on the default stream.
    ///
    /// # Safety
    /// `data.len()` bytes from the address are allocated and written.
    unsafe fn download(&self, from: u64, data: &mut [u8]) -> Result<()>;

    /// Copies memory of the device, in the order of the default stream.
    ///
    /// # Safety
    /// Both addresses have `bytes` bytes, which do not overlap.
    unsafe fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<()>;

    /// Copies rows of memory of the device, in the order of the default stream.
    ///
    /// # Safety
    /// Both addresses have all rows, and those that are read overlap with none that is written.
    unsafe fn copy_rows(&self, to: u64, from: u64, rows: &Rows) -> Result<()> {
        // SAFETY: the caller's word.
        rows.each(to, from, |to, from| unsafe {
            self.copy(to, from, rows.bytes)
        })
    }

    /// Whether the device names source lines: [marks](kernels::text::lines) in the texts that it loads.
    fn reads_marks(&self) -> bool {
        false
    }

    /// Compiles the PTX text of a kernel, the only one in its module; where that fails, writes what the compiler says to
    /// `log`. Threads call it for several kernels at once.
    fn load(&self, kernel: &str, ptx: &CStr, log: &mut [u8]) -> Result<Handle>;

    /// Unloads a module.
    ///
    /// # Safety
    /// The module is loaded, and none of its functions is used any more.
    unsafe fn unload(&self, module: Handle);

    /// A kernel of a module, whose launches may use all shared memory that the device has for a block.
    ///
    /// # Safety
    /// The module is loaded.
    unsafe fn function(&self, module: Handle, name: &CStr) -> Result<Handle>;

    /// A tensor map, as the device's kernels read it.
    fn tensor_map(&self, map: &TensorMap) -> Result<[u8; 128]>;

    /// Says that a call begins, whose launches follow.
    fn begin(&self) {}

    /// Queues a launch; an emulator runs it.
    ///
    /// # Safety
    /// The function's module is loaded and the function takes one argument of this size; all memory that it
    /// uses is valid until it has run; the stream is valid.
    unsafe fn launch(&self, launch: &Launch) -> Result<()>;

    /// Counters of each launch of the last call, with the kernel's name, if the driver counts it.
    #[cfg(feature = "emulator")]
    fn counters(&self) -> Vec<(&'static str, Counters)> {
        Vec::new()
    }

    /// An event recorded after all work queued so far on a stream.
    ///
    /// # Safety
    /// `stream` is valid.
    unsafe fn record(&self, stream: RawStream) -> Result<Handle>;

    /// Lets what a stream gets from here on wait for an event.
    ///
    /// # Safety
    /// `stream` is valid, and the event exists.
    unsafe fn wait_for(&self, stream: RawStream, event: Handle) -> Result<()>;

    /// Waits until the device reaches an event.
    ///
    /// # Safety
    /// The event exists.
    unsafe fn reach(&self, event: Handle) -> Result<()>;

    /// The device's time between two events that it has reached.
    ///
    /// # Safety
    /// Both events exist.
    unsafe fn elapsed(&self, start: Handle, end: Handle) -> Result<Duration>;

    /// Destroys an event.
    ///
    /// # Safety
    /// The event exists, and nothing uses it any more.
    unsafe fn forget(&self, event: Handle);
}
