//! CUDA devices: one driver, through any [`Binding`] of the CUDA driver's functions.
//!
//! The primary context is the one of the CUDA runtime, candle and burn: their addresses and streams are valid here,
//! and ours there. Nothing but this file, `binding` and `attributes` names cudarc, whose constants these are.

use super::attributes::Attributes;
use super::binding::{Binding, Cudarc};
use super::driver::{Driver, Handle, KEPT_BYTES, Launch, RawStream, Rows};
use super::facts::Facts;
use crate::device::SharedMemory;
use crate::error::{Error, Result};
use crate::tensor_map::TensorMap;
use cudarc::driver::sys;
use std::ffi::{CStr, CString, c_void};
use std::marker::PhantomData;
use std::ptr::null_mut;
use std::time::Duration;

/// The library's own driver.
pub type Cuda = CudaDriver<Cudarc>;

/// A GPU and its retained primary context.
#[derive(Debug)]
pub struct CudaDriver<B: Binding> {
    index: usize,
    name: String,
    facts: Facts,
    device: i32,
    context: *mut c_void,
    /// Where workspaces come from; null on devices without pools. Our own: the settings of the device's default
    /// pool are everybody's.
    pool: *mut c_void,
    /// Whether the CUDA driver has libraries, which it compiles side by side. Modules of a context it compiles one by one:
    /// eight kernels took 11.7 s on eight threads, and 3.1 s as libraries (H100, driver 580; `docs/tuning.md`).
    has_libraries: bool,
    /// Whether kernels are launched [early](kernels::text::early): they wait for the launch before them themselves.
    launches_early: bool,
    binding: PhantomData<B>,
}

/// The most bytes from a row to the next one in a copy of rows (`CU_DEVICE_ATTRIBUTE_MAX_PITCH` of all devices).
const MOST_PITCH: usize = i32::MAX as usize;

/// The first CUDA version with libraries.
const LIBRARIES: (i32, i32) = (12, 0);

/// The first CUDA version whose graphs hold early launches, and the first compute capability that has them.
const EARLY_LAUNCHES: [(i32, i32); 2] = [(12, 3), (9, 0)];

// SAFETY: the CUDA driver accepts contexts and pools from any thread.
unsafe impl<B: Binding> Send for CudaDriver<B> {}
// SAFETY: as above; nothing changes them after `open`.
unsafe impl<B: Binding> Sync for CudaDriver<B> {}

/// Lets this thread allocate and load while a stream of it is captured, which none of that is part of: else the CUDA driver
/// refuses it and breaks the capture. Its drop puts the mode back.
struct Relaxed<B: Binding> {
    mode: u32,
    binding: PhantomData<B>,
}

impl<B: Binding> Relaxed<B> {
    fn enter() -> Result<Self> {
        let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as u32;
        // SAFETY: the mode is valid for a read and a write.
        let status = unsafe { B::cuThreadExchangeStreamCaptureMode(&mut mode) };
        check::<B>("changing the mode of captures", status)?;
        Ok(Relaxed {
            mode,
            binding: PhantomData,
        })
    }
}

impl<B: Binding> Drop for Relaxed<B> {
    fn drop(&mut self) {
        // SAFETY: the mode is valid for a read and a write.
        unsafe { B::cuThreadExchangeStreamCaptureMode(&mut self.mode) };
    }
}

impl<B: Binding> CudaDriver<B> {
    /// Opens the GPU of this index.
    ///
    /// # Errors
    /// If there is no NVIDIA driver or no such device, or the driver reports a failure.
    pub fn open(index: usize) -> Result<Self> {
        B::library().map_err(Error::NoDriver)?;
        let mut count = 0;
        // SAFETY: the library is there.
        let status = unsafe { B::cuInit(0) };
        if status != sys::CUresult::CUDA_ERROR_NO_DEVICE as u32 {
            check::<B>("initialising the driver", status)?;
            // SAFETY: `count` is valid for a write.
            let status = unsafe { B::cuDeviceGetCount(&mut count) };
            check::<B>("counting devices", status)?;
        }
        let count = count as usize;
        if index >= count {
            return Err(Error::NoDevice { index, count });
        }
        let _relaxed = Relaxed::<B>::enter()?;
        let operation = "opening the device";
        let mut device = 0;
        // SAFETY: `device` is valid for a write.
        let status = unsafe { B::cuDeviceGet(&mut device, index as i32) };
        check::<B>(operation, status)?;
        let attribute = |attribute| {
            let mut value = 0;
            // SAFETY: `value` is valid for a write, and the device was just opened.
            let status = unsafe { B::cuDeviceGetAttribute(&mut value, attribute as u32, device) };
            check::<B>(operation, status).map(|()| value as u32)
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
        let mut name = [0; 256];
        // SAFETY: `name` is valid for writes of its length.
        let status = unsafe { B::cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, device) };
        check::<B>(operation, status)?;
        // SAFETY: the CUDA driver ended the name with NUL.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) };
        let mut context = null_mut();
        // SAFETY: `context` is valid for a write, and the device was just opened.
        let status = unsafe { B::cuDevicePrimaryCtxRetain(&mut context, device) };
        check::<B>("retaining the primary context", status)?;
        let mut cuda = CudaDriver {
            index,
            name: name.to_string_lossy().into_owned(),
            facts,
            device,
            context,
            pool: null_mut(),
            has_libraries: false,
            launches_early: false,
            binding: PhantomData,
        };
        let version = cuda.cuda_version()?;
        cuda.has_libraries = version >= LIBRARIES;
        let [since, on] = EARLY_LAUNCHES;
        cuda.launches_early = version >= since && facts.compute_capability >= on;
        if facts.has_pools {
            cuda.pool = cuda.create_pool()?;
        }
        Ok(cuda)
    }

    /// Makes the context current on this thread while `function` runs, which returns the status of `operation`. A thread of a
    /// framework has it already: a change and one back would take a fifth of a launch.
    fn call(&self, operation: &'static str, function: impl FnOnce() -> u32) -> Result<()> {
        let mut current = null_mut();
        // SAFETY: `current` is valid for a write.
        let asked = unsafe { B::cuCtxGetCurrent(&mut current) };
        if asked == 0 && current == self.context {
            return check::<B>(operation, function());
        }
        // SAFETY: the context is retained for as long as `self` lives.
        let status = unsafe { B::cuCtxPushCurrent_v2(self.context) };
        check::<B>("entering the context", status)?;
        let status = function();
        // SAFETY: this thread pushed a context above.
        unsafe { B::cuCtxPopCurrent_v2(&mut null_mut()) };
        check::<B>(operation, status)
    }

    fn create_pool(&self) -> Result<*mut c_void> {
        // SAFETY: the properties are plain data, of which 0 says "default".
        let mut properties: sys::CUmemPoolProps = unsafe { std::mem::zeroed() };
        properties.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        properties.location.id = self.index as i32;
        let mut pool = null_mut();
        // SAFETY: `pool` is valid for a write, and the properties are whole.
        self.call("creating a memory pool", || unsafe {
            B::cuMemPoolCreate(&mut pool, (&raw const properties).cast())
        })?;
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD as u32;
        let mut kept = KEPT_BYTES;
        // SAFETY: the pool was just created, and this attribute is a u64.
        self.call("setting up a memory pool", || unsafe {
            B::cuMemPoolSetAttribute(pool, attribute, (&raw mut kept).cast())
        })?;
        Ok(pool)
    }
}

impl<B: Binding> Drop for CudaDriver<B> {
    fn drop(&mut self) {
        if !self.pool.is_null() {
            // SAFETY: the pool is used no more; memory that a stream still frees outlives it.
            let _ =
                unsafe { self.call("freeing a memory pool", || B::cuMemPoolDestroy(self.pool)) };
        }
        // SAFETY: retained once, in `open`.
        unsafe { B::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

// SAFETY: each call is the CUDA driver's of that name, in the primary context of the device whose facts it asked for.
unsafe impl<B: Binding> Driver for CudaDriver<B> {
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
        let status = unsafe { B::cuDriverGetVersion(&mut version) };
        check::<B>("asking the driver's version", status)?;
        Ok((version / 1000, version % 1000 / 10))
    }

    fn free_memory(&self) -> Result<Option<u64>> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are valid for a write.
        self.call("asking for free memory", || unsafe {
            B::cuMemGetInfo_v2(&mut free, &mut total)
        })?;
        Ok(Some(free as u64))
    }

    fn synchronize(&self) -> Result<()> {
        // SAFETY: a context is current.
        unsafe { self.call("waiting for the device", || B::cuCtxSynchronize()) }
    }

    fn allocate(&self, bytes: usize) -> Result<u64> {
        let _relaxed = Relaxed::<B>::enter()?;
        let mut address = 0;
        // SAFETY: `address` is valid for a write.
        self.call("allocating device memory", || unsafe {
            B::cuMemAlloc_v2(&mut address, bytes)
        })?;
        Ok(address)
    }

    unsafe fn free(&self, address: u64) {
        // Memory of a context that cannot be entered any more is gone with it.
        // SAFETY: the caller's word.
        let _ = unsafe { self.call("freeing device memory", || B::cuMemFree_v2(address)) };
    }

    unsafe fn allocate_in(&self, stream: RawStream, bytes: usize) -> Result<u64> {
        let mut address = 0;
        // SAFETY: the pool exists on devices with pools; the stream is the caller's word.
        self.call("allocating a workspace", || unsafe {
            B::cuMemAllocFromPoolAsync(&mut address, bytes, self.pool, stream)
        })?;
        Ok(address)
    }

    unsafe fn free_in(&self, stream: RawStream, address: u64) {
        // SAFETY: the caller's word.
        let _ = unsafe { self.call("freeing a workspace", || B::cuMemFreeAsync(address, stream)) };
    }

    fn create_stream(&self) -> Result<Handle> {
        let mut stream = null_mut();
        // SAFETY: `stream` is valid for a write. Flags of 0 order it with the legacy default stream.
        self.call("creating a stream", || unsafe {
            B::cuStreamCreate(&mut stream, 0)
        })?;
        Ok(Handle(stream))
    }

    unsafe fn destroy_stream(&self, stream: Handle) {
        // SAFETY: the caller's word.
        let _ = unsafe { self.call("destroying a stream", || B::cuStreamDestroy_v2(stream.0)) };
    }

    unsafe fn wait(&self, stream: RawStream) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe { self.call("waiting for a stream", || B::cuStreamSynchronize(stream)) }
    }

    unsafe fn zero(&self, address: u64, bytes: usize, stream: RawStream) -> Result<()> {
        // SAFETY: the caller's word.
        self.call("filling device memory", || unsafe {
            B::cuMemsetD8Async(address, 0, bytes, stream)
        })
    }

    unsafe fn fill(&self, address: u64, bytes: usize, word: u32, stream: RawStream) -> Result<()> {
        // SAFETY: the caller's word.
        self.call("filling device memory", || unsafe {
            B::cuMemsetD32Async(address, word, bytes / 4, stream)
        })
    }

    unsafe fn upload(&self, to: u64, data: &[u8]) -> Result<()> {
        // SAFETY: the caller's word.
        self.call("copying to the device", || unsafe {
            B::cuMemcpyHtoD_v2(to, data.as_ptr().cast(), data.len())
        })
    }

    unsafe fn download(&self, from: u64, data: &mut [u8]) -> Result<()> {
        // SAFETY: the caller's word.
        self.call("copying from the device", || unsafe {
            B::cuMemcpyDtoH_v2(data.as_mut_ptr().cast(), from, data.len())
        })
    }

    unsafe fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<()> {
        // SAFETY: the caller's word; null is the default stream.
        self.call("copying on the device", || unsafe {
            B::cuMemcpyDtoDAsync_v2(to, from, bytes, null_mut())
        })
    }

    unsafe fn copy_rows(&self, to: u64, from: u64, rows: &Rows) -> Result<()> {
        let [to_pitch, from_pitch] = rows.pitches;
        if to_pitch.max(from_pitch) > MOST_PITCH {
            // SAFETY: the caller's word.
            return rows.each(to, from, |to, from| unsafe {
                self.copy(to, from, rows.bytes)
            });
        }
        let (host, array) = (null_mut(), null_mut());
        let copy = sys::CUDA_MEMCPY2D_v2 {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcHost: host,
            srcDevice: from,
            srcArray: array,
            srcPitch: from_pitch,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: host,
            dstDevice: to,
            dstArray: array,
            dstPitch: to_pitch,
            WidthInBytes: rows.bytes,
            Height: rows.count,
        };
        // SAFETY: the caller's word; the description outlives the call, and null is the default stream.
        self.call("copying on the device", || unsafe {
            B::cuMemcpy2DAsync_v2((&raw const copy).cast(), null_mut())
        })
    }

    fn load(&self, _: &str, ptx: &CStr, log: &mut [u8]) -> Result<Handle> {
        let _relaxed = Relaxed::<B>::enter()?;
        let mut keys = [
            sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER as u32,
            sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES as u32,
        ];
        let mut values = [log.as_mut_ptr().cast(), log.len() as *mut c_void];
        let count = keys.len() as u32;
        let (keys, values) = (keys.as_mut_ptr(), values.as_mut_ptr());
        let early = self.launches_early.then(|| early(ptx)).transpose()?;
        let text = early.as_deref().unwrap_or(ptx).as_ptr().cast();
        let mut loaded = null_mut();
        // SAFETY: the text ends with NUL, and both options describe `log`, which outlives the call.
        self.call("loading a PTX module", || unsafe {
            match self.has_libraries {
                true => B::cuLibraryLoadData(
                    &mut loaded,
                    text,
                    keys,
                    values,
                    count,
                    null_mut(),
                    null_mut(),
                    0,
                ),
                false => B::cuModuleLoadDataEx(&mut loaded, text, count, keys, values),
            }
        })?;
        Ok(Handle(loaded))
    }

    unsafe fn unload(&self, module: Handle) {
        let unload = match self.has_libraries {
            true => B::cuLibraryUnload,
            false => B::cuModuleUnload,
        };
        // SAFETY: the caller's word.
        let _ = unsafe { self.call("unloading a PTX module", || unload(module.0)) };
    }

    unsafe fn function(&self, module: Handle, name: &CStr) -> Result<Handle> {
        let operation = "looking up a kernel in its module";
        let mut function = null_mut();
        if self.has_libraries {
            let mut kernel = null_mut();
            // SAFETY: the caller's word; the name ends with NUL.
            self.call(operation, || unsafe {
                B::cuLibraryGetKernel(&mut kernel, module.0, name.as_ptr())
            })?;
            // SAFETY: the kernel was just looked up.
            self.call(operation, || unsafe {
                B::cuKernelGetFunction(&mut function, kernel)
            })?;
        } else {
            // SAFETY: the caller's word; the name ends with NUL.
            self.call(operation, || unsafe {
                B::cuModuleGetFunction(&mut function, module.0, name.as_ptr())
            })?;
        }
        // Above 48 KB a kernel has to ask.
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let most = self.facts.shared.block as i32;
        // SAFETY: the function was just looked up.
        self.call("reserving shared memory for a kernel", || unsafe {
            B::cuFuncSetAttribute(function, attribute as u32, most)
        })?;
        // From 9 blocks on a cluster has to ask.
        if self.facts.compute_capability >= (9, 0) {
            let attribute =
                sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
            // SAFETY: as above.
            self.call("allowing large clusters of a kernel", || unsafe {
                B::cuFuncSetAttribute(function, attribute as u32, 1)
            })?;
        }
        Ok(Handle(function))
    }

    fn tensor_map(&self, map: &TensorMap) -> Result<[u8; 128]> {
        #[repr(align(64))]
        struct Encoded([u8; 128]);
        let mut encoded = Encoded([0; 128]);
        // SAFETY: the map is writable and aligned, and all arrays have an element for each axis.
        self.call("encoding a tensor map", || unsafe {
            B::cuTensorMapEncodeTiled(
                (&raw mut encoded).cast(),
                sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT16 as u32,
                map.sizes.len() as u32,
                map.address as *mut c_void,
                map.sizes.as_ptr(),
                map.strides.as_ptr(),
                map.box_sizes.as_ptr(),
                [1; 4].as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE as u32,
                map.swizzle as u32,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B as u32,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE as u32,
            )
        })?;
        Ok(encoded.0)
    }

    unsafe fn launch(&self, launch: &Launch) -> Result<()> {
        let mut arguments = [launch.argument.as_ptr().cast_mut().cast()];
        let mut attributes = Attributes::new(launch.cluster, self.launches_early);
        let attributes = attributes.as_mut_slice();
        let config = sys::CUlaunchConfig {
            gridDimX: launch.blocks,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: launch.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: launch.shared_bytes,
            hStream: launch.stream.cast(),
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as u32,
        };
        // SAFETY: the CUDA driver copies the arguments before it returns; the rest is the caller's word. What launches early
        // waits at its first instruction, since `load` wrote that.
        self.call("launching a kernel", || unsafe {
            match config.numAttrs > 0 {
                true => B::cuLaunchKernelEx(
                    (&raw const config).cast(),
                    launch.function.0,
                    arguments.as_mut_ptr(),
                    null_mut(),
                ),
                false => B::cuLaunchKernel(
                    launch.function.0,
                    launch.blocks,
                    1,
                    1,
                    launch.threads,
                    1,
                    1,
                    launch.shared_bytes,
                    launch.stream,
                    arguments.as_mut_ptr(),
                    null_mut(),
                ),
            }
        })
    }

    unsafe fn record(&self, stream: RawStream) -> Result<Handle> {
        let mut event = null_mut();
        // SAFETY: `event` is valid for a write.
        self.call("creating an event", || unsafe {
            B::cuEventCreate(&mut event, 0)
        })?;
        // SAFETY: the event was just created in this context; the stream is the caller's word.
        let recorded = self.call("recording an event", || unsafe {
            B::cuEventRecord(event, stream)
        });
        if recorded.is_err() {
            // SAFETY: nobody else knows the event.
            unsafe { self.forget(Handle(event)) };
        }
        recorded.map(|()| Handle(event))
    }

    unsafe fn wait_for(&self, stream: RawStream, event: Handle) -> Result<()> {
        // SAFETY: the caller's word.
        self.call("waiting for an event", || unsafe {
            B::cuStreamWaitEvent(stream, event.0, 0)
        })
    }

    unsafe fn reach(&self, event: Handle) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe { self.call("waiting for the device", || B::cuEventSynchronize(event.0)) }
    }

    unsafe fn elapsed(&self, start: Handle, end: Handle) -> Result<Duration> {
        let mut milliseconds = 0.0;
        // SAFETY: the caller's word.
        self.call("reading the time between events", || unsafe {
            B::cuEventElapsedTime(&mut milliseconds, start.0, end.0)
        })?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds) / 1e3))
    }

    unsafe fn forget(&self, event: Handle) {
        // SAFETY: the caller's word.
        let _ = unsafe { self.call("destroying an event", || B::cuEventDestroy_v2(event.0)) };
    }
}

/// A text with kernels that may be launched early.
fn early(ptx: &CStr) -> Result<CString> {
    let text = kernels::text::early(&ptx.to_string_lossy()).ok_or_else(|| Error::Cuda {
        operation: "loading a PTX module",
        status: sys::CUresult::CUDA_ERROR_INVALID_PTX as u32,
        message: "the start of a kernel is not in the form of the builder".to_owned(),
    })?;
    Ok(CString::new(text).expect("a text without NUL has none after"))
}

/// An error if the status of `operation` is one.
fn check<B: Binding>(operation: &'static str, status: u32) -> Result<()> {
    if status == 0 {
        return Ok(());
    }
    let mut text = std::ptr::null();
    // SAFETY: `text` is valid for a write, and a function of this binding returned the status.
    unsafe { B::cuGetErrorString(status, &mut text) };
    let message = if text.is_null() {
        format!("error {status}")
    } else {
        // SAFETY: the CUDA driver wrote a string constant.
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned()
    };
    Err(Error::Cuda {
        operation,
        status,
        message,
    })
}
