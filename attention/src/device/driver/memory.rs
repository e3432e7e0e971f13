//! Device memory.

use super::{Gpu, failed};
use crate::error::{Error, Result};
use cust::error::CudaError;
use cust::memory::{CopyDestination, DeviceBuffer};
use cust::sys;
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// Owned device memory, in bytes.
#[derive(Debug)]
pub struct Memory {
    buffer: ManuallyDrop<DeviceBuffer<u8>>,
    gpu: Arc<Gpu>,
}

impl Memory {
    /// Allocates memory filled with zeros.
    pub fn zeroed(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self> {
        let memory = Self::uninitialized(gpu, bytes)?;
        if bytes > 0 {
            let _current = gpu.enter()?;
            // SAFETY: the memory is `bytes` long.
            let status = unsafe { sys::cuMemsetD8_v2(memory.address(), 0, bytes) };
            super::check("filling device memory", status)?;
        }
        Ok(memory)
    }

    /// Allocates a copy of `bytes`.
    pub fn from_bytes(gpu: &Arc<Gpu>, bytes: &[u8]) -> Result<Self> {
        let mut memory = Self::uninitialized(gpu, bytes.len())?;
        let _current = gpu.enter()?;
        memory
            .buffer
            .copy_from(bytes)
            .map_err(failed("copying to the device"))?;
        Ok(memory)
    }

    fn uninitialized(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self> {
        let _current = gpu.enter()?;
        // SAFETY: both callers fill the memory before anything can read it.
        let buffer = unsafe { DeviceBuffer::uninitialized(bytes) };
        let buffer = buffer.map_err(|error| match (error, gpu.free_memory()) {
            (CudaError::OutOfMemory, Ok(free)) => Error::OutOfMemory {
                device: gpu.name().to_owned(),
                needed: bytes as u64,
                free,
            },
            (error, _) => failed("allocating device memory")(error),
        })?;
        Ok(Memory {
            buffer: ManuallyDrop::new(buffer),
            gpu: Arc::clone(gpu),
        })
    }

    /// Copies everything to `bytes`, after all work queued on the device's default stream.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn copy_to(&self, bytes: &mut [u8]) -> Result<()> {
        let _current = self.gpu.enter()?;
        self.buffer
            .copy_to(bytes)
            .map_err(failed("copying from the device"))
    }

    /// Copies all of `source`, memory of the same GPU, in the order of the default stream.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn copy_from(&mut self, source: &Self) -> Result<()> {
        assert_eq!(self.buffer.len(), source.buffer.len(), "bytes to copy");
        if self.buffer.is_empty() {
            return Ok(());
        }
        let _current = self.gpu.enter()?;
        let (to, from) = (self.address(), source.address());
        // SAFETY: both are this long; either is freed, by a call that waits, after the copy.
        let status =
            unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, self.buffer.len(), std::ptr::null_mut()) };
        super::check("copying on the device", status)
    }

    /// Device address of the first byte.
    pub fn address(&self) -> u64 {
        self.buffer.as_device_ptr().as_raw()
    }

    /// The GPU whose memory it is.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // Memory of a context that cannot be entered any more is gone with it.
        if let Ok(_current) = self.gpu.enter() {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.buffer) };
        }
    }
}
