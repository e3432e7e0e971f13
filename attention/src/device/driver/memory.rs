//! Device memory.

use super::{Gpu, failed};
use crate::error::{Error, Result};
use cust::error::CudaError;
use cust::memory::DeviceBuffer;
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
        memory.write(0, bytes)?;
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

    /// Copies bytes from `offset` on to the host, after all work queued on the default stream.
    ///
    /// # Panics
    /// If they do not lie in the memory.
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        let Some(from) = self.part(offset, to.len()) else {
            return Ok(());
        };
        let _current = self.gpu.enter()?;
        // SAFETY: both are this long.
        let status = unsafe { sys::cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), from, to.len()) };
        super::check("copying from the device", status)
    }

    /// Overwrites bytes from `offset` on, after all work queued on the default stream.
    ///
    /// # Panics
    /// If they do not lie in the memory.
    pub fn write(&mut self, offset: usize, from: &[u8]) -> Result<()> {
        let Some(to) = self.part(offset, from.len()) else {
            return Ok(());
        };
        let _current = self.gpu.enter()?;
        // SAFETY: both are this long.
        let status = unsafe { sys::cuMemcpyHtoD_v2(to, from.as_ptr().cast(), from.len()) };
        super::check("copying to the device", status)
    }

    /// Overwrites bytes from `offset` on with bytes of other memory of the same GPU, in the order
    /// of the default stream.
    ///
    /// # Panics
    /// If they do not lie in the memory.
    pub fn copy_from(
        &mut self,
        offset: usize,
        source: &Self,
        source_offset: usize,
        bytes: usize,
    ) -> Result<()> {
        let parts = self
            .part(offset, bytes)
            .zip(source.part(source_offset, bytes));
        let Some((to, from)) = parts else {
            return Ok(());
        };
        let _current = self.gpu.enter()?;
        // SAFETY: both are this long; either is freed, by a call that waits, after the copy.
        let status = unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, std::ptr::null_mut()) };
        super::check("copying on the device", status)
    }

    /// Address of some bytes, `None` if there are none.
    fn part(&self, offset: usize, bytes: usize) -> Option<u64> {
        let end = offset.checked_add(bytes);
        assert!(
            end.is_some_and(|end| end <= self.buffer.len()),
            "bytes outside the memory"
        );
        (bytes > 0).then(|| self.address() + offset as u64)
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
