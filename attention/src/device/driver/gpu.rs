//! A GPU and its primary context.

use super::module::Modules;
use super::pool::Pool;
use super::{check, failed, symbols};
use crate::error::{Error, Result};
use crate::forward::schedule::Facts;
use cust::CudaApiVersion;
use cust::context::{Context, ContextHandle, CurrentContext};
use cust::device::{Device, DeviceAttribute};
use cust::error::CudaError;
use cust::sys;
use kernels::catalog::class::SharedMemory;
use std::marker::PhantomData;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A GPU, its retained primary context and the modules loaded into it.
#[derive(Debug)]
pub struct Gpu {
    modules: Mutex<Modules>,
    pool: Mutex<Pool>,
    context: Context,
    index: usize,
    name: String,
    facts: Facts,
}

impl Gpu {
    /// Opens the GPU of this index.
    pub fn open(index: usize) -> Result<Self> {
        symbols::library().map_err(Error::NoDriver)?;
        let count = match cust::init(cust::CudaFlags::empty()) {
            Ok(()) => Device::num_devices().map_err(failed("counting devices"))? as usize,
            Err(CudaError::NoDevice) => 0,
            Err(error) => return Err(failed("initialising the driver")(error)),
        };
        if index >= count {
            return Err(Error::NoDevice { index, count });
        }
        let operation = "opening the device";
        let device = Device::get_device(index as u32).map_err(failed(operation))?;
        let attribute = |attribute| device.get_attribute(attribute).map_err(failed(operation));
        let facts = Facts {
            compute_capability: (
                attribute(DeviceAttribute::ComputeCapabilityMajor)?,
                attribute(DeviceAttribute::ComputeCapabilityMinor)?,
            ),
            multiprocessors: attribute(DeviceAttribute::MultiprocessorCount)? as u32,
            shared: SharedMemory {
                block: shared_memory_per_block(device)?,
                multiprocessor: attribute(DeviceAttribute::MaxSharedMemoryPerMultiprocessor)?
                    as u32,
            },
            l2_bytes: attribute(DeviceAttribute::L2CacheSize)? as u32,
            has_pools: has_pools(device),
        };
        let name = device.name().map_err(failed(operation))?;
        Ok(Gpu {
            modules: Mutex::default(),
            pool: Mutex::default(),
            context: retain(device)?,
            index,
            name,
            facts,
        })
    }

    /// Index among the machine's GPUs.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Marketing name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Compute capability, as (major, minor).
    pub fn compute_capability(&self) -> (i32, i32) {
        self.facts.compute_capability
    }

    /// What schedules depend on.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// CUDA version that the driver supports, as (major, minor).
    pub fn cuda_version(&self) -> Result<(i32, i32)> {
        let version = CudaApiVersion::get().map_err(failed("asking the driver's version"))?;
        Ok((version.major(), version.minor()))
    }

    /// Bytes of memory that can be allocated.
    pub fn free_memory(&self) -> Result<u64> {
        let _current = self.enter()?;
        let (free, _total) =
            cust::memory::mem_get_info().map_err(failed("asking for free memory"))?;
        Ok(free as u64)
    }

    /// Waits for all work on the device.
    pub fn synchronize(&self) -> Result<()> {
        let _current = self.enter()?;
        CurrentContext::synchronize().map_err(failed("waiting for the device"))
    }

    /// Where launches get their workspaces from.
    pub(super) fn pool(&self) -> &Mutex<Pool> {
        &self.pool
    }

    /// What has been loaded so far.
    pub(super) fn modules(&self) -> MutexGuard<'_, Modules> {
        self.modules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the context current on this thread until the guard drops.
    pub(super) fn enter(&self) -> Result<Current<'_>> {
        // SAFETY: the context is retained for as long as `self` lives.
        let status = unsafe { sys::cuCtxPushCurrent_v2(self.context.get_inner()) };
        check("entering the context", status)?;
        Ok(Current(PhantomData))
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // The primary context outlives this one when others hold it too: leave nothing behind.
        if let Ok(_current) = self.enter() {
            self.modules().unload();
            let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
            pool.destroy();
        }
    }
}

/// A context that is current on this thread. Guards nest, and stay on their thread.
pub(super) struct Current<'a>(PhantomData<(&'a Gpu, *const ())>);

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let mut popped = std::ptr::null_mut();
        // SAFETY: `enter` pushed a context on this thread, and later guards popped theirs.
        unsafe { sys::cuCtxPopCurrent_v2(&mut popped) };
    }
}

/// Bytes of shared memory that a block can have if its kernel asks for them.
fn shared_memory_per_block(device: Device) -> Result<u32> {
    let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
    let (status, bytes) = raw_attribute(device, attribute);
    check("opening the device", status)?;
    Ok(bytes as u32)
}

/// Whether the device has memory pools. A driver that does not know the attribute has none.
fn has_pools(device: Device) -> bool {
    let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED;
    let (status, supported) = raw_attribute(device, attribute);
    status == sys::CUresult::CUDA_SUCCESS && supported != 0
}

/// An attribute that cust does not know.
fn raw_attribute(device: Device, attribute: sys::CUdevice_attribute) -> (sys::CUresult, i32) {
    let mut value = 0;
    // SAFETY: `value` is valid for a write, and the device is open.
    let status = unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, device.as_raw()) };
    (status, value)
}

/// Retains the primary context; cust makes it current, so puts back the one that was.
fn retain(device: Device) -> Result<Context> {
    let mut previous = std::ptr::null_mut();
    // SAFETY: `previous` is valid for a write.
    let status = unsafe { sys::cuCtxGetCurrent(&mut previous) };
    check("asking for the current context", status)?;
    let context = Context::new(device).map_err(failed("retaining the primary context"))?;
    // SAFETY: this context was current a moment ago.
    let status = unsafe { sys::cuCtxSetCurrent(previous) };
    check("restoring the current context", status)?;
    Ok(context)
}
