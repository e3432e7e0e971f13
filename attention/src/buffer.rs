//! Owned device memory.

use crate::device::driver;
use crate::device::emulation;
use crate::device::{Backend, Device};
use crate::error::{Error, Result};
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

    /// Overwrites the elements with those of another buffer of the device, after all work on the
    /// device so far.
    ///
    /// # Errors
    /// If the buffers differ in length or device, or the driver reports a failure.
    pub fn copy_from(&mut self, source: &Self) -> Result<()> {
        if self.len != source.len {
            return Err(Error::Length {
                shape: vec![self.len],
                expected: self.len,
                found: source.len,
            });
        }
        if self.device() != source.device() {
            return Err(Error::DeviceMismatch {
                argument: "source",
                expected: self.device().name().to_owned(),
                found: source.device().name().to_owned(),
            });
        }
        match (&mut self.memory, &source.memory) {
            (Memory::Cpu(to), Memory::Cpu(from)) => to.copy_from_slice(from),
            (Memory::Cuda(to), Memory::Cuda(from)) => to.copy_from(from)?,
            (Memory::Emulator(to), Memory::Emulator(from)) => {
                to.copy_from(from, self.len * size_of::<T>());
            }
            _ => unreachable!("one device has one kind of memory"),
        }
        Ok(())
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

#[cfg(test)]
mod tests {
    use crate::device::Device;
    use crate::error::Error;
    use emulator::Options;

    #[test]
    fn buffers_are_copied_on_their_device() {
        let cpu = Device::cpu();
        let emulated = Device::emulator(Options::default()).ok();
        for device in [Some(cpu.clone()), emulated].into_iter().flatten() {
            let mut to = device.upload(&[1_u16, 2, 3]).expect("memory");
            let from = device.upload(&[4, 5, 6]).expect("memory");
            to.copy_from(&from).expect("copied");
            assert_eq!(to.to_vec(), Ok(vec![4, 5, 6]));
            let shorter = device.upload(&[7]).expect("memory");
            let error = to.copy_from(&shorter).expect_err("too short");
            assert!(matches!(error, Error::Length { .. }), "{error}");
            if device != cpu {
                let elsewhere = cpu.upload(&[7, 8, 9]).expect("memory");
                let error = to.copy_from(&elsewhere).expect_err("elsewhere");
                assert!(matches!(error, Error::DeviceMismatch { .. }), "{error}");
            }
        }
    }
}
