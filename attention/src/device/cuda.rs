//! CUDA devices through `cudarc`, which opens the driver library when it is first used.
//!
//! Nothing outside this file names cudarc. The primary context is the one of the CUDA runtime, candle and burn:
//! their addresses and streams are valid here, and ours there.

use super::driver::{Driver, Handle, KEPT_BYTES, Launch, Stream};
use super::facts::Facts;
use crate::error::{Error, Result};
use ::emulator::Counters;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use kernels::catalog::class::SharedMemory;
use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::ptr::null_mut;
use std::time::Duration;

/// A GPU and its retained primary context.
#[derive(Debug)]
pub struct Cuda {
    index: usize,
    name: String,
    facts: Facts,
    device: sys::CUdevice,
    context: sys::CUcontext,
    /// Where workspaces come from; null on devices without pools. Our own: the settings of the device's default
    /// pool are everybody's.
    pool: sys::CUmemoryPool,
}

// SAFETY: the CUDA driver accepts contexts and pools from any thread.
unsafe impl Send for Cuda {}
// SAFETY: as above; nothing changes them after `open`.
unsafe impl Sync for Cuda {}

impl Cuda {
    /// Opens the GPU of this index.
    ///
    /// # Errors
    /// If there is no NVIDIA driver or no such device, or the driver reports a failure.
    pub fn open(index: usize) -> Result<Self> {
        // SAFETY: the driver library may be loaded at any time, from any thread.
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::NoDriver("libcuda was not found".to_owned()));
        }
        let count = match result::init() {
            Ok(()) => ok("counting devices", result::device::get_count())? as usize,
            Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => 0,
            Err(error) => return Err(failure("initialising the driver", error)),
        };
        if index >= count {
            return Err(Error::NoDevice { index, count });
        }
        let operation = "opening the device";
        let device = ok(operation, result::device::get(index as i32))?;
        let attribute = |attribute| {
            // SAFETY: the device was just opened.
            let value = unsafe { result::device::get_attribute(device, attribute) };
            ok(operation, value).map(|value| value as u32)
        };
        use sys::CUdevice_attribute as A;
        let facts = Facts {
            compute_capability: (
                attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? as i32,
                attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)? as i32,
            ),
            multiprocessors: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            shared: SharedMemory {
                block: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
                multiprocessor: attribute(
                    A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
                )?,
            },
            l2_bytes: attribute(A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
            // A driver that does not know the attribute has no pools.
            has_pools: attribute(A::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)
                .is_ok_and(|supported| supported != 0),
        };
        let name = ok(operation, result::device::get_name(device))?;
        // SAFETY: the device was just opened.
        let context = unsafe { result::primary_ctx::retain(device) };
        let mut cuda = Cuda {
            index,
            name: name.trim_end_matches('\0').to_owned(),
            facts,
            device,
            context: ok("retaining the primary context", context)?,
            pool: null_mut(),
        };
        if facts.has_pools {
            let _current = cuda.enter()?;
            cuda.pool = pool(index)?;
        }
        Ok(cuda)
    }

    /// Makes the context current on this thread until the guard drops.
    fn enter(&self) -> Result<Current> {
        // SAFETY: the context is retained for as long as `self` lives.
        let status = unsafe { sys::cuCtxPushCurrent_v2(self.context) };
        ok("entering the context", status.result())?;
        Ok(Current(PhantomData))
    }
}

/// A context that is current on this thread. Guards nest, and stay on their thread.
struct Current(PhantomData<*const ()>);

impl Drop for Current {
    fn drop(&mut self) {
        let mut popped = null_mut();
        // SAFETY: `enter` pushed a context on this thread, and later guards popped theirs.
        let _ = unsafe { sys::cuCtxPopCurrent_v2(&mut popped) };
    }
}

/// A memory pool of the GPU of this index, whose context is current.
fn pool(index: usize) -> Result<sys::CUmemoryPool> {
    // SAFETY: the properties are plain data, of which 0 says "default".
    let mut properties: sys::CUmemPoolProps = unsafe { std::mem::zeroed() };
    properties.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = index as i32;
    // SAFETY: the properties are whole.
    let pool = ok("creating a memory pool", unsafe {
        result::mem_pool::create(&properties)
    })?;
    let mut kept = KEPT_BYTES;
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the pool was just created, and this attribute is a u64.
    let status = unsafe { sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut kept).cast()) };
    ok("setting up a memory pool", status.result())?;
    Ok(pool)
}

impl Drop for Cuda {
    fn drop(&mut self) {
        if let Ok(_current) = self.enter()
            && !self.pool.is_null()
        {
            // SAFETY: the pool is used no more; memory that a stream still frees outlives it.
            let _ = unsafe { result::mem_pool::destroy(self.pool) };
        }
        // SAFETY: retained once, in `open`.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

impl Driver for Cuda {
    fn name(&self) -> &str {
        &self.name
    }

    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn index(&self) -> Option<usize> {
        Some(self.index)
    }

    fn cuda_version(&self) -> Result<(i32, i32)> {
        let mut version = 0;
        // SAFETY: `version` is valid for a write.
        let status = unsafe { sys::cuDriverGetVersion(&mut version) };
        ok("asking the driver's version", status.result())?;
        Ok((version / 1000, version % 1000 / 10))
    }

    fn free_memory(&self) -> Result<Option<u64>> {
        let _current = self.enter()?;
        let (free, _total) = ok("asking for free memory", result::mem_get_info())?;
        Ok(Some(free as u64))
    }

    fn synchronize(&self) -> Result<()> {
        let _current = self.enter()?;
        ok("waiting for the device", result::ctx::synchronize())
    }

    fn allocate(&self, bytes: usize) -> Result<u64> {
        let _current = self.enter()?;
        // SAFETY: callers fill the memory before anything reads it.
        ok("allocating device memory", unsafe {
            result::malloc_sync(bytes)
        })
    }

    unsafe fn free(&self, address: u64) {
        // Memory of a context that cannot be entered any more is gone with it.
        if let Ok(_current) = self.enter() {
            // SAFETY: the caller's word.
            let _ = unsafe { result::free_sync(address) };
        }
    }

    unsafe fn allocate_in(&self, stream: Stream, bytes: usize) -> Result<u64> {
        let _current = self.enter()?;
        // SAFETY: the pool exists on devices with pools; the stream is the caller's word.
        ok("allocating a workspace", unsafe {
            result::mem_pool::alloc_async(self.pool, bytes, stream.cast())
        })
    }

    unsafe fn free_in(&self, stream: Stream, address: u64) {
        if let Ok(_current) = self.enter() {
            // SAFETY: the caller's word.
            let _ = unsafe { result::free_async(address, stream.cast()) };
        }
    }

    unsafe fn wait(&self, stream: Stream) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: the caller's word.
        ok("waiting for a stream", unsafe {
            result::stream::synchronize(stream.cast())
        })
    }

    unsafe fn zero(&self, address: u64, bytes: usize) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: the caller's word.
        ok("filling device memory", unsafe {
            result::memset_d8_sync(address, 0, bytes)
        })
    }

    unsafe fn upload(&self, to: u64, data: &[u8]) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: the caller's word.
        ok("copying to the device", unsafe {
            result::memcpy_htod_sync(to, data)
        })
    }

    unsafe fn download(&self, from: u64, data: &mut [u8]) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: the caller's word.
        ok("copying from the device", unsafe {
            result::memcpy_dtoh_sync(data, from)
        })
    }

    unsafe fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: the caller's word; null is the default stream.
        ok("copying on the device", unsafe {
            result::memcpy_dtod_async(to, from, bytes, null_mut())
        })
    }

    fn load(&self, _: &str, ptx: &CStr, log: &mut [u8]) -> Result<Handle> {
        let _current = self.enter()?;
        let mut keys = [
            sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
            sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        let mut values = [log.as_mut_ptr().cast(), log.len() as *mut c_void];
        let mut module = null_mut();
        // SAFETY: the text ends with NUL, and both options describe `log`, which outlives the call.
        let status = unsafe {
            sys::cuModuleLoadDataEx(
                &mut module,
                ptx.as_ptr().cast(),
                keys.len() as u32,
                keys.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        ok("loading a PTX module", status.result())?;
        Ok(Handle(module.cast()))
    }

    unsafe fn unload(&self, module: Handle) {
        if let Ok(_current) = self.enter() {
            // SAFETY: the caller's word.
            let _ = unsafe { result::module::unload(module.0.cast()) };
        }
    }

    unsafe fn function(&self, module: Handle, name: &CStr) -> Result<Handle> {
        let _current = self.enter()?;
        let mut function = null_mut();
        // SAFETY: the caller's word; the name ends with NUL.
        let status =
            unsafe { sys::cuModuleGetFunction(&mut function, module.0.cast(), name.as_ptr()) };
        ok("looking up a kernel in its module", status.result())?;
        // Above 48 KB a kernel has to ask.
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let most = self.facts.shared.block as i32;
        // SAFETY: the function was just looked up.
        let status = unsafe { sys::cuFuncSetAttribute(function, attribute, most) };
        ok("reserving shared memory for a kernel", status.result())?;
        Ok(Handle(function.cast()))
    }

    unsafe fn launch(&self, launch: &Launch) -> Result<Option<Counters>> {
        let _current = self.enter()?;
        let mut arguments = [launch.argument.as_ptr().cast_mut().cast()];
        // SAFETY: the CUDA driver copies the argument before it returns; the rest is the caller's word.
        let status = unsafe {
            result::launch_kernel(
                launch.function.0.cast(),
                (launch.blocks, 1, 1),
                (launch.threads, 1, 1),
                launch.shared_bytes,
                launch.stream.cast(),
                &mut arguments,
            )
        };
        ok("launching a kernel", status)?;
        Ok(None)
    }

    fn record(&self) -> Result<Handle> {
        let _current = self.enter()?;
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT);
        let event = ok("creating an event", event)?;
        // SAFETY: the event was just created in this context; null is its default stream.
        ok("recording an event", unsafe {
            result::event::record(event, null_mut())
        })?;
        Ok(Handle(event.cast()))
    }

    unsafe fn reach(&self, event: Handle) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: the caller's word.
        ok("waiting for the device", unsafe {
            result::event::synchronize(event.0.cast())
        })
    }

    unsafe fn elapsed(&self, start: Handle, end: Handle) -> Result<Duration> {
        let _current = self.enter()?;
        // SAFETY: the caller's word.
        let milliseconds = ok("reading the time between events", unsafe {
            result::event::elapsed(start.0.cast(), end.0.cast())
        })?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds) / 1e3))
    }

    unsafe fn forget(&self, event: Handle) {
        if let Ok(_current) = self.enter() {
            // SAFETY: the caller's word.
            let _ = unsafe { result::event::destroy(event.0.cast()) };
        }
    }
}

/// Turns a result of cudarc into ours.
fn ok<T>(operation: &'static str, result: std::result::Result<T, DriverError>) -> Result<T> {
    result.map_err(|error| failure(operation, error))
}

fn failure(operation: &'static str, error: DriverError) -> Error {
    let status = error.0 as u32;
    let message = match error.error_string() {
        Ok(text) => text.to_string_lossy().into_owned(),
        Err(_) => format!("error {status}"),
    };
    Error::Cuda {
        operation,
        status,
        message,
    }
}
