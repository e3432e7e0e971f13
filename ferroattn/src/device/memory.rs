//! Memory of a device that launches kernels, freed when dropped.

use super::driver::{RawStream, Rows};
use super::gpu::Gpu;
use crate::error::Result;
use std::ptr::null_mut;
use std::sync::Arc;

/// A number of bytes on a device.
#[derive(Debug)]
pub struct Memory {
    gpu: Arc<Gpu>,
    address: u64,
    bytes: usize,
    /// Whether its drop frees it.
    is_owned: bool,
}

impl Memory {
    /// These bytes, which the result does not own.
    ///
    /// # Safety
    /// It lives no longer than this memory.
    pub unsafe fn shared(&self) -> Self {
        Memory {
            gpu: Arc::clone(&self.gpu),
            is_owned: false,
            ..*self
        }
    }

    /// Memory filled with zeros.
    pub fn zeroed(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self> {
        let memory = Self::uninitialized(gpu, bytes)?;
        if bytes > 0 {
            // SAFETY: the memory is `bytes` long.
            unsafe { gpu.driver().zero(memory.address, bytes, null_mut())? };
        }
        Ok(memory)
    }

    /// A copy of `data`.
    pub fn from_bytes(gpu: &Arc<Gpu>, data: &[u8]) -> Result<Self> {
        let mut memory = Self::uninitialized(gpu, data.len())?;
        memory.write(0, data)?;
        Ok(memory)
    }

    fn uninitialized(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self> {
        let address = match bytes {
            0 => 0,
            // SAFETY: there is no stream.
            _ => unsafe { gpu.allocate(bytes, None)? },
        };
        Ok(Memory {
            gpu: Arc::clone(gpu),
            address,
            bytes,
            is_owned: true,
        })
    }

    /// Copies bytes from `offset` on to the host, after all work on the default stream.
    ///
    /// # Panics
    /// If they do not lie in the memory.
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        match self.part(offset, to.len()) {
            None => Ok(()),
            // SAFETY: both are this long, and both constructors fill the memory.
            Some(from) => unsafe { self.gpu.driver().download(from, to) },
        }
    }

    /// Overwrites bytes from `offset` on, in the order of the default stream.
    ///
    /// # Panics
    /// If they do not lie in the memory.
    pub fn write(&mut self, offset: usize, from: &[u8]) -> Result<()> {
        match self.part(offset, from.len()) {
            None => Ok(()),
            // SAFETY: both are this long.
            Some(to) => unsafe { self.gpu.driver().upload(to, from) },
        }
    }

    /// Overwrites bytes from `offset` on with bytes of other memory of the device, in the order of the default
    /// stream.
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
        let from = source.part(source_offset, bytes);
        match self.part(offset, bytes).zip(from) {
            None => Ok(()),
            // SAFETY: both are this long and of two allocations; `free` waits for the copy.
            Some((to, from)) => unsafe { self.gpu.driver().copy(to, from, bytes) },
        }
    }

    /// Overwrites rows from `offset` on with rows of other memory of the device, in the order of the default stream.
    ///
    /// # Panics
    /// If they do not lie in the memory.
    pub fn copy_rows(
        &mut self,
        offset: usize,
        source: &Self,
        source_offset: usize,
        rows: &Rows,
    ) -> Result<()> {
        if rows.count == 0 {
            return Ok(());
        }
        let span = |side: usize| (rows.count - 1) * rows.pitches[side] + rows.bytes;
        let from = source.part(source_offset, span(1));
        match self.part(offset, span(0)).zip(from) {
            None => Ok(()),
            // SAFETY: both hold all rows and are of two allocations; `free` waits for the copy.
            Some((to, from)) => unsafe { self.gpu.driver().copy_rows(to, from, rows) },
        }
    }

    /// Address of some bytes; `None` if there are none.
    fn part(&self, offset: usize, bytes: usize) -> Option<u64> {
        let end = offset.checked_add(bytes);
        assert!(
            end.is_some_and(|end| end <= self.bytes),
            "bytes outside the memory"
        );
        (bytes > 0).then(|| self.address + offset as u64)
    }

    /// Address of the first byte; 0 if there are none.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The device.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.bytes > 0 && self.is_owned {
            // SAFETY: allocated once, in `uninitialized`, and freed once, here.
            unsafe { self.gpu.driver().free(self.address) };
        }
    }
}

/// Uninitialised memory at a place in a stream: what is queued between creation and drop may use it.
///
/// Without memory pools it is allocated at once, and its drop waits for the stream.
#[derive(Debug)]
pub struct Workspace<'a> {
    gpu: &'a Gpu,
    address: u64,
    stream: RawStream,
}

impl<'a> Workspace<'a> {
    /// Allocates `bytes` bytes, not 0.
    ///
    /// # Safety
    /// `stream` is valid until the workspace drops.
    pub unsafe fn new(gpu: &'a Gpu, bytes: usize, stream: RawStream) -> Result<Self> {
        let pooled = gpu.driver().facts().has_pools;
        // SAFETY: the caller's word.
        let address = unsafe { gpu.allocate(bytes, pooled.then_some(stream))? };
        Ok(Workspace {
            gpu,
            address,
            stream,
        })
    }

    /// Address of the first byte, a multiple of 256.
    pub fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for Workspace<'_> {
    fn drop(&mut self) {
        let driver = self.gpu.driver();
        // SAFETY: allocated once, in `new`, and freed once, here, after all that was queued before; the stream
        // is valid by the contract of `new`.
        unsafe {
            if driver.facts().has_pools {
                driver.free_in(self.stream, self.address);
            } else {
                // A failure of the work shows again in the next call.
                let _ = driver.wait(self.stream);
                driver.free(self.address);
            }
        }
    }
}
