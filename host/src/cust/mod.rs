//! CUDA devices through `cust`, for the library's plans.
//!
//! Nothing outside this folder names cust. As with the library's own driver, each call makes the device's primary
//! context current for as long as it takes, and work goes to the legacy default stream unless one is given.

mod symbols;

use attention::device::driver::{Driver, Handle, KEPT_BYTES, Launch, Stream};
use attention::device::{Facts, SharedMemory};
use attention::emulator::Counters;
use attention::{Error, Result};
use cust::CudaApiVersion;
use cust::context::{Context, ContextHandle, CurrentContext};
use cust::device::{Device, DeviceAttribute};
use cust::error::{CudaError, CudaResult};
use cust::memory::DevicePointer;
use cust::sys;
use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::ptr::null_mut;
use std::time::Duration;

/// A GPU and its retained primary context.
#[derive(Debug)]
pub struct Cust {
    index: usize,
    name: String,
    facts: Facts,
    context: Context,
    /// Where workspaces come from; null on devices without pools. Our own: the settings of the device's default
    /// pool are everybody's.
    pool: sys::CUmemoryPool,
}

// SAFETY: the CUDA driver accepts contexts and pools from any thread.
unsafe impl Send for Cust {}
// SAFETY: as above; nothing changes them after `open`.
unsafe impl Sync for Cust {}

impl Cust {
    /// Opens the GPU of this index.
    ///
    /// # Errors
    /// If there is no NVIDIA driver or no such device, or the driver reports a failure.
    pub fn open(index: usize) -> Result<Self> {
        symbols::library().map_err(Error::NoDriver)?;
        let count = match cust::init(cust::CudaFlags::empty()) {
            Ok(()) => ok("counting devices", Device::num_devices())? as usize,
            Err(CudaError::NoDevice) => 0,
            Err(error) => return Err(failure("initialising the driver", error as u32)),
        };
        if index >= count {
            return Err(Error::NoDevice { index, count });
        }
        let operation = "opening the device";
        let device = ok(operation, Device::get_device(index as u32))?;
        let attribute = |attribute| ok(operation, device.get_attribute(attribute));
        use sys::CUdevice_attribute as Raw;
        let facts = Facts {
            compute_capability: (
                attribute(DeviceAttribute::ComputeCapabilityMajor)?,
                attribute(DeviceAttribute::ComputeCapabilityMinor)?,
            ),
            multiprocessors: attribute(DeviceAttribute::MultiprocessorCount)? as u32,
            shared: SharedMemory {
                block: raw_attribute(
                    device,
                    Raw::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
                )? as u32,
                multiprocessor: attribute(DeviceAttribute::MaxSharedMemoryPerMultiprocessor)?
                    as u32,
            },
            l2_bytes: attribute(DeviceAttribute::L2CacheSize)? as u32,
            // A driver that does not know the attribute has no pools.
            has_pools: raw_attribute(device, Raw::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)
                .is_ok_and(|supported| supported != 0),
        };
        let mut cust = Cust {
            index,
            name: ok(operation, device.name())?,
            facts,
            context: retain(device)?,
            pool: null_mut(),
        };
        if facts.has_pools {
            let _current = cust.enter()?;
            cust.pool = pool(index)?;
        }
        Ok(cust)
    }

    /// Makes the context current on this thread until the guard drops.
    fn enter(&self) -> Result<Current> {
        // SAFETY: the context is retained for as long as `self` lives.
        let status = unsafe { sys::cuCtxPushCurrent_v2(self.context.get_inner()) };
        check("entering the context", status)?;
        Ok(Current(PhantomData))
    }
}

/// A context that is current on this thread. Guards nest, and stay on their thread.
struct Current(PhantomData<*const ()>);

impl Drop for Current {
    fn drop(&mut self) {
        let mut popped = null_mut();
        // SAFETY: `enter` pushed a context on this thread, and later guards popped theirs.
        unsafe { sys::cuCtxPopCurrent_v2(&mut popped) };
    }
}

/// An attribute that cust does not know.
fn raw_attribute(device: Device, attribute: sys::CUdevice_attribute) -> Result<i32> {
    let mut value = 0;
    // SAFETY: `value` is valid for a write, and the device is open.
    let status = unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, device.as_raw()) };
    check("opening the device", status)?;
    Ok(value)
}

/// Retains the primary context; cust makes it current, so puts back the one that was.
fn retain(device: Device) -> Result<Context> {
    let mut previous = null_mut();
    // SAFETY: `previous` is valid for a write.
    let status = unsafe { sys::cuCtxGetCurrent(&mut previous) };
    check("asking for the current context", status)?;
    let context = ok("retaining the primary context", Context::new(device))?;
    // SAFETY: this context was current a moment ago.
    let status = unsafe { sys::cuCtxSetCurrent(previous) };
    check("restoring the current context", status)?;
    Ok(context)
}

/// A memory pool of the GPU of this index, whose context is current.
fn pool(index: usize) -> Result<sys::CUmemoryPool> {
    let properties = sys::CUmemPoolProps {
        allocType: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        handleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location: sys::CUmemLocation {
            type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: index as i32,
        },
        win32SecurityAttributes: null_mut(),
        reserved: [0; 64],
    };
    let mut pool = null_mut();
    // SAFETY: `pool` is valid for a write and the properties are whole.
    let status = unsafe { sys::cuMemPoolCreate(&mut pool, &properties) };
    check("creating a memory pool", status)?;
    let mut kept = KEPT_BYTES;
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the pool was just created, and this attribute is a u64.
    let status = unsafe { sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut kept).cast()) };
    check("setting up a memory pool", status)?;
    Ok(pool)
}

impl Drop for Cust {
    fn drop(&mut self) {
        if let Ok(_current) = self.enter()
            && !self.pool.is_null()
        {
            // SAFETY: the pool is used no more; memory that a stream still frees outlives it.
            unsafe { sys::cuMemPoolDestroy(self.pool) };
        }
    }
}

impl Driver for Cust {
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
        let version = ok("asking the driver's version", CudaApiVersion::get())?;
        Ok((version.major(), version.minor()))
    }

    fn free_memory(&self) -> Result<Option<u64>> {
        let _current = self.enter()?;
        let (free, _total) = ok("asking for free memory", cust::memory::mem_get_info())?;
        Ok(Some(free as u64))
    }

    fn synchronize(&self) -> Result<()> {
        let _current = self.enter()?;
        ok("waiting for the device", CurrentContext::synchronize())
    }

    fn allocate(&self, bytes: usize) -> Result<u64> {
        let _current = self.enter()?;
        // SAFETY: callers fill the memory before anything reads it.
        let memory = unsafe { cust::memory::cuda_malloc::<u8>(bytes) };
        ok("allocating device memory", memory).map(|memory| memory.as_raw())
    }

    unsafe fn free(&self, address: u64) {
        // Memory of a context that cannot be entered any more is gone with it.
        if let Ok(_current) = self.enter() {
            // SAFETY: the caller's word.
            let _ = unsafe { cust::memory::cuda_free(DevicePointer::<u8>::from_raw(address)) };
        }
    }

    unsafe fn allocate_in(&self, stream: Stream, bytes: usize) -> Result<u64> {
        let _current = self.enter()?;
        let mut address = 0;
        // SAFETY: the pool exists on devices with pools; the stream is the caller's word.
        let status =
            unsafe { sys::cuMemAllocFromPoolAsync(&mut address, bytes, self.pool, stream.cast()) };
        check("allocating a workspace", status)?;
        Ok(address)
    }

    unsafe fn free_in(&self, stream: Stream, address: u64) {
        if let Ok(_current) = self.enter() {
            // SAFETY: the caller's word.
            unsafe { sys::cuMemFreeAsync(address, stream.cast()) };
        }
    }

    unsafe fn wait(&self, stream: Stream) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: the caller's word.
        check("waiting for a stream", unsafe {
            sys::cuStreamSynchronize(stream.cast())
        })
    }

    unsafe fn zero(&self, address: u64, bytes: usize) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: the caller's word.
        check("filling device memory", unsafe {
            sys::cuMemsetD8_v2(address, 0, bytes)
        })
    }

    unsafe fn upload(&self, to: u64, data: &[u8]) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: the caller's word.
        check("copying to the device", unsafe {
            sys::cuMemcpyHtoD_v2(to, data.as_ptr().cast(), data.len())
        })
    }

    unsafe fn download(&self, from: u64, data: &mut [u8]) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: the caller's word.
        check("copying from the device", unsafe {
            sys::cuMemcpyDtoH_v2(data.as_mut_ptr().cast(), from, data.len())
        })
    }

    unsafe fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: the caller's word; null is the default stream.
        check("copying on the device", unsafe {
            sys::cuMemcpyDtoDAsync_v2(to, from, bytes, null_mut())
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
        check("loading a PTX module", status)?;
        Ok(Handle(module.cast()))
    }

    unsafe fn unload(&self, module: Handle) {
        if let Ok(_current) = self.enter() {
            // SAFETY: the caller's word.
            unsafe { sys::cuModuleUnload(module.0.cast()) };
        }
    }

    unsafe fn function(&self, module: Handle, name: &CStr) -> Result<Handle> {
        let _current = self.enter()?;
        let mut function = null_mut();
        // SAFETY: the caller's word; the name ends with NUL.
        let status =
            unsafe { sys::cuModuleGetFunction(&mut function, module.0.cast(), name.as_ptr()) };
        check("looking up a kernel in its module", status)?;
        // Above 48 KB a kernel has to ask.
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let most = self.facts.shared.block as i32;
        // SAFETY: the function was just looked up.
        let status = unsafe { sys::cuFuncSetAttribute(function, attribute, most) };
        check("reserving shared memory for a kernel", status)?;
        Ok(Handle(function.cast()))
    }

    unsafe fn launch(&self, launch: &Launch) -> Result<Option<Counters>> {
        let _current = self.enter()?;
        let mut arguments = [launch.argument.as_ptr().cast_mut().cast()];
        // SAFETY: the CUDA driver copies the argument before it returns; the rest is the caller's word.
        let status = unsafe {
            sys::cuLaunchKernel(
                launch.function.0.cast(),
                launch.blocks,
                1,
                1,
                launch.threads,
                1,
                1,
                launch.shared_bytes,
                launch.stream.cast(),
                arguments.as_mut_ptr(),
                null_mut(),
            )
        };
        check("launching a kernel", status)?;
        Ok(None)
    }

    /// Records an event in the default stream; cust's own events need a stream that cust created.
    fn record(&self) -> Result<Handle> {
        let _current = self.enter()?;
        let mut event = null_mut();
        // SAFETY: `event` is valid for a write.
        let status = unsafe { sys::cuEventCreate(&mut event, 0) };
        check("creating an event", status)?;
        // SAFETY: the event was just created in this context; null is its default stream.
        let status = unsafe { sys::cuEventRecord(event, null_mut()) };
        check("recording an event", status)?;
        Ok(Handle(event.cast()))
    }

    unsafe fn reach(&self, event: Handle) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: the caller's word.
        check("waiting for the device", unsafe {
            sys::cuEventSynchronize(event.0.cast())
        })
    }

    unsafe fn elapsed(&self, start: Handle, end: Handle) -> Result<Duration> {
        let _current = self.enter()?;
        let mut milliseconds = 0.0;
        // SAFETY: the caller's word.
        let status =
            unsafe { sys::cuEventElapsedTime(&mut milliseconds, start.0.cast(), end.0.cast()) };
        check("reading the time between events", status)?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds) / 1e3))
    }

    unsafe fn forget(&self, event: Handle) {
        if let Ok(_current) = self.enter() {
            // SAFETY: the caller's word.
            unsafe { sys::cuEventDestroy_v2(event.0.cast()) };
        }
    }
}

/// Turns a status of a raw driver call into a result.
fn check(operation: &'static str, status: sys::CUresult) -> Result<()> {
    match status {
        sys::CUresult::CUDA_SUCCESS => Ok(()),
        status => Err(failure(operation, status as u32)),
    }
}

/// Turns a result of cust into ours.
fn ok<T>(operation: &'static str, result: CudaResult<T>) -> Result<T> {
    result.map_err(|error| failure(operation, error as u32))
}

fn failure(operation: &'static str, status: u32) -> Error {
    Error::Cuda {
        operation,
        status,
        message: symbols::message(status),
    }
}
