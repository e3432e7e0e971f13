//! Memory that a launch needs only while it runs, allocated and freed in the order of its stream; on
//! devices without memory pools, allocated at once and freed after a wait for the stream.

use super::{Gpu, check};
use crate::error::{Error, Result};
use cust::sys;
use std::ffi::c_void;
use std::sync::PoisonError;

/// Bytes that the pool keeps for the next launch when the device is waited for; a longer workspace
/// goes back to the driver.
const KEPT_BYTES: u64 = 256 << 20;

/// A pool of a GPU's memory, made on first use. Its own, and not the device's default one, whose
/// settings are others' too.
#[derive(Debug, Default)]
pub(super) struct Pool(Option<sys::CUmemoryPool>);

// SAFETY: pool handles may be used from any thread.
unsafe impl Send for Pool {}

impl Pool {
    /// The pool of the GPU of this index. Its context must be current.
    fn get(&mut self, gpu: usize) -> Result<sys::CUmemoryPool> {
        if let Some(pool) = self.0 {
            return Ok(pool);
        }
        let properties = sys::CUmemPoolProps {
            allocType: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            handleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
            location: sys::CUmemLocation {
                type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
                id: gpu as i32,
            },
            win32SecurityAttributes: std::ptr::null_mut(),
            reserved: [0; 64],
        };
        let mut pool = std::ptr::null_mut();
        // SAFETY: `pool` is valid for a write and the properties are whole.
        let status = unsafe { sys::cuMemPoolCreate(&mut pool, &properties) };
        check("creating a memory pool", status)?;
        self.0 = Some(pool);
        let mut kept = KEPT_BYTES;
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: the pool is alive, and this attribute is a u64.
        let status = unsafe {
            sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut kept).cast::<c_void>())
        };
        check("setting up a memory pool", status)?;
        Ok(pool)
    }

    /// Gives the pool back. The context must be current.
    pub fn destroy(&mut self) {
        if let Some(pool) = self.0.take() {
            // SAFETY: the pool is used no more; memory that a stream still frees outlives it.
            unsafe { sys::cuMemPoolDestroy(pool) };
        }
    }
}

/// Uninitialised device memory that belongs to a place in a stream: what is queued between its
/// creation and its drop may use it.
pub struct Workspace<'a> {
    gpu: &'a Gpu,
    address: u64,
    stream: *mut c_void,
}

impl Gpu {
    /// Allocates `bytes` bytes, not 0, at this point of a stream.
    ///
    /// # Safety
    /// `stream` is null or a stream of this GPU's primary context, alive until the workspace drops.
    pub unsafe fn workspace(&self, bytes: usize, stream: *mut c_void) -> Result<Workspace<'_>> {
        let _current = self.enter()?;
        let mut address = 0;
        let status = if self.facts().has_pools {
            let mut pool = self.pool().lock().unwrap_or_else(PoisonError::into_inner);
            let pool = pool.get(self.index())?;
            // SAFETY: `address` is valid for a write, the pool is alive, the stream the caller's word.
            unsafe { sys::cuMemAllocFromPoolAsync(&mut address, bytes, pool, stream.cast()) }
        } else {
            // SAFETY: `address` is valid for a write.
            unsafe { sys::cuMemAlloc_v2(&mut address, bytes) }
        };
        if status == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            return Err(Error::OutOfMemory {
                device: self.name().to_owned(),
                needed: bytes as u64,
                free: self.free_memory().unwrap_or(0),
            });
        }
        check("allocating a workspace", status)?;
        Ok(Workspace {
            gpu: self,
            address,
            stream,
        })
    }
}

impl Workspace<'_> {
    /// Device address of the first byte, a multiple of 256.
    pub fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for Workspace<'_> {
    fn drop(&mut self) {
        // Memory of a context that cannot be entered any more is gone with it.
        if let Ok(_current) = self.gpu.enter() {
            // SAFETY: freed once, here, after all that was queued before; `workspace` says that the
            // stream is alive.
            unsafe {
                if self.gpu.facts().has_pools {
                    sys::cuMemFreeAsync(self.address, self.stream.cast());
                } else {
                    // A failure of the work before shows again in the next call.
                    sys::cuStreamSynchronize(self.stream.cast());
                    sys::cuMemFree_v2(self.address);
                }
            }
        }
    }
}
