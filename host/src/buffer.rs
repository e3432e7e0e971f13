//! Owned device memory.

use crate::device::{Backend, Device};
use crate::driver;
use crate::emulation;
use crate::error::Result;
use bytemuck::Pod;
use std::sync::Arc;

/// A fixed number of `T` in the memory of a device.
#[derive(Debug)]
pub struct Buffer<T> {
    memory: Memory<T>,
    len: usize,
}

#[derive(Debug)]
enum Memory<T> {
    Cpu(Box<[T]>),
    Cuda(driver::Memory),
    Emulator(emulation::Memory),
}

impl<T: Pod> Buffer<T> {
    pub(crate) fn from_slice(device: &Device, data: &[T]) -> Result<Self> {
        let memory = match device.backend() {
            Backend::Cpu => {
                let mut copy = Vec::new();
                copy.try_reserve_exact(data.len())
                    .map_err(|_| device.out_of_memory(size_of_val(data)))?;
                copy.extend_from_slice(data);
                Memory::Cpu(copy.into_boxed_slice())
            }
            Backend::Cuda(gpu) => {
                Memory::Cuda(driver::Memory::from_bytes(gpu, bytemuck::cast_slice(data))?)
            }
            Backend::Emulator(emulation) => Memory::Emulator(emulation::Memory::from_bytes(
                emulation,
                bytemuck::cast_slice(data),
            )),
        };
        Ok(Buffer {
            memory,
            len: data.len(),
        })
    }

    pub(crate) fn zeroed(device: &Device, len: usize) -> Result<Self> {
        let bytes = len
            .checked_mul(size_of::<T>())
            .ok_or_else(|| device.out_of_memory(usize::MAX))?;
        let memory = match device.backend() {
            Backend::Cpu => Memory::Cpu(
                bytemuck::allocation::try_zeroed_slice_box(len)
                    .map_err(|()| device.out_of_memory(bytes))?,
            ),
            Backend::Cuda(gpu) => Memory::Cuda(driver::Memory::zeroed(gpu, bytes)?),
            Backend::Emulator(emulation) => {
                Memory::Emulator(emulation::Memory::from_bytes(emulation, &vec![0; bytes]))
            }
        };
        Ok(Buffer { memory, len })
    }

    /// Copies the elements to the host, after all work on the device that the buffer is part of.
    ///
    /// # Errors
    /// If the driver reports a failure, of this call or of earlier work.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        match &self.memory {
            Memory::Cpu(data) => Ok(data.to_vec()),
            Memory::Cuda(memory) => {
                let mut data = vec![T::zeroed(); self.len];
                memory.copy_to(bytemuck::cast_slice_mut(&mut data))?;
                Ok(data)
            }
            Memory::Emulator(memory) => {
                let mut data = vec![T::zeroed(); self.len];
                memory.copy_to(bytemuck::cast_slice_mut(&mut data));
                Ok(data)
            }
        }
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device whose memory it is.
    #[must_use]
    pub fn device(&self) -> Device {
        Device::from_backend(match &self.memory {
            Memory::Cpu(_) => Backend::Cpu,
            Memory::Cuda(memory) => Backend::Cuda(Arc::clone(memory.gpu())),
            Memory::Emulator(memory) => Backend::Emulator(Arc::clone(memory.emulation())),
        })
    }

    /// Address of the first element in the device's memory, for reading.
    pub(crate) fn address(&self) -> u64 {
        match &self.memory {
            Memory::Cpu(data) => data.as_ptr().expose_provenance() as u64,
            Memory::Cuda(memory) => memory.address(),
            Memory::Emulator(memory) => memory.address(),
        }
    }

    /// Address of the first element in the device's memory, for reading and writing.
    pub(crate) fn address_mut(&mut self) -> u64 {
        match &mut self.memory {
            Memory::Cpu(data) => data.as_mut_ptr().expose_provenance() as u64,
            Memory::Cuda(memory) => memory.address(),
            Memory::Emulator(memory) => memory.address(),
        }
    }
}
