//! Owned memory of a device.

use super::layout::Blocks;
use crate::device::driver::Rows;
use crate::device::{self, Device};
use crate::error::Result;
use bytemuck::Pod;
use std::any::type_name;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A fixed number of `T` in the memory of a device.
pub struct Buffer<T> {
    memory: Memory<T>,
    len: usize,
}

enum Memory<T> {
    Cpu(Box<[T]>),
    Gpu(device::Memory),
}

/// Says type, length and device, not the elements: there may be many, on a device that is at work.
impl<T> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let dtype = type_name::<T>().rsplit("::").next().unwrap_or_default();
        f.debug_struct("Buffer")
            .field("dtype", &format_args!("{dtype}"))
            .field("len", &self.len)
            .field("device", &format_args!("{}", self.device().name()))
            .finish()
    }
}

impl Device {
    /// Allocates a copy of `data` on the device.
    ///
    /// # Errors
    /// If there is not enough memory, or the driver reports another failure.
    pub fn upload<T: Pod>(&self, data: &[T]) -> Result<Buffer<T>> {
        let memory = match self.gpu() {
            None => {
                let mut copy = reserved(data.len())?;
                copy.extend_from_slice(data);
                Memory::Cpu(copy.into_boxed_slice())
            }
            Some(gpu) => Memory::Gpu(device::Memory::from_bytes(gpu, bytemuck::cast_slice(data))?),
        };
        Ok(Buffer {
            memory,
            len: data.len(),
        })
    }
}

impl<T> Buffer<T> {
    /// The device whose memory it is.
    pub fn device(&self) -> Device {
        match &self.memory {
            Memory::Cpu(_) => Device::cpu(),
            Memory::Gpu(memory) => Device(Some(Arc::clone(memory.gpu()))),
        }
    }
}

impl<T: Pod> Buffer<T> {
    pub(crate) fn zeroed(device: &Device, len: usize) -> Result<Self> {
        let bytes = len
            .checked_mul(size_of::<T>())
            .ok_or_else(|| device.out_of_memory(usize::MAX))?;
        let memory = match device.gpu() {
            None => Memory::Cpu(
                bytemuck::allocation::try_zeroed_slice_box(len)
                    .map_err(|()| device.out_of_memory(bytes))?,
            ),
            Some(gpu) => Memory::Gpu(device::Memory::zeroed(gpu, bytes)?),
        };
        Ok(Buffer { memory, len })
    }

    /// Copies the elements to the host, after all work on the device so far.
    ///
    /// # Errors
    /// If the host has not enough memory, or the driver reports a failure, of this call or of
    /// earlier work.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let mut elements = reserved(self.len)?;
        self.read(0..self.len, |data| elements.extend_from_slice(data))?;
        Ok(elements)
    }

    /// Overwrites the elements from `first` on with some of another buffer on the same device.
    pub(super) fn copy_range(
        &mut self,
        first: usize,
        source: &Self,
        range: Range<usize>,
    ) -> Result<()> {
        let size = size_of::<T>();
        let (to, from, bytes) = (first * size, range.start * size, range.len() * size);
        match (&mut self.memory, &source.memory) {
            (Memory::Cpu(to), Memory::Cpu(from)) => {
                to[first..first + range.len()].copy_from_slice(&from[range]);
                Ok(())
            }
            (Memory::Gpu(memory), Memory::Gpu(source)) => memory.copy_from(to, source, from, bytes),
            _ => unreachable!("one device has one kind of memory"),
        }
    }

    /// Overwrites blocks with blocks of another buffer on the same GPU; positions count from offsets in each.
    pub(super) fn copy_blocks(
        &mut self,
        blocks: &Blocks,
        offsets: [usize; 2],
        source: &Self,
    ) -> Result<()> {
        let size = size_of::<T>();
        let (Memory::Gpu(to), Memory::Gpu(from)) = (&mut self.memory, &source.memory) else {
            unreachable!("both are memory of a GPU");
        };
        for start in &blocks.starts {
            let first = |side: usize| size * offsets[side].wrapping_add_signed(start[side]);
            let rows = Rows {
                bytes: size * blocks.run,
                count: blocks.rows,
                pitches: blocks.pitches.map(|pitch| size * pitch),
            };
            to.copy_rows(first(0), from, first(1), &rows)?;
        }
        Ok(())
    }

    /// Shows some elements, in host memory.
    pub(super) fn read<U>(&self, range: Range<usize>, f: impl FnOnce(&[T]) -> U) -> Result<U> {
        match &self.memory {
            Memory::Cpu(data) => Ok(f(&data[range])),
            Memory::Gpu(memory) => Ok(f(&download(memory, range)?)),
        }
    }

    /// Lets the host change some elements.
    pub(super) fn modify(&mut self, range: Range<usize>, f: impl FnOnce(&mut [T])) -> Result<()> {
        match &mut self.memory {
            Memory::Cpu(data) => {
                f(&mut data[range]);
                Ok(())
            }
            Memory::Gpu(memory) => {
                let first = range.start * size_of::<T>();
                let mut elements = download(memory, range)?;
                f(&mut elements);
                memory.write(first, bytemuck::cast_slice(&elements))
            }
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first element in the device's memory, to read.
    pub(crate) fn address(&self) -> u64 {
        match &self.memory {
            Memory::Cpu(data) => data.as_ptr().expose_provenance() as u64,
            Memory::Gpu(memory) => memory.address(),
        }
    }

    /// Address of the first element in the device's memory, to read and to write.
    pub(crate) fn address_mut(&mut self) -> u64 {
        match &mut self.memory {
            Memory::Cpu(data) => data.as_mut_ptr().expose_provenance() as u64,
            Memory::Gpu(memory) => memory.address(),
        }
    }
}

/// An empty vector with room for `len` elements in host memory.
pub(super) fn reserved<T>(len: usize) -> Result<Vec<T>> {
    let mut vec = Vec::new();
    let reserved = vec.try_reserve_exact(len);
    reserved.map_err(|_| Device::cpu().out_of_memory(len.saturating_mul(size_of::<T>())))?;
    Ok(vec)
}

/// A copy of some elements in host memory.
fn download<T: Pod>(memory: &device::Memory, range: Range<usize>) -> Result<Vec<T>> {
    let mut elements = reserved(range.len())?;
    elements.resize(range.len(), T::zeroed());
    let bytes = bytemuck::cast_slice_mut(&mut elements);
    memory.read(range.start * size_of::<T>(), bytes)?;
    Ok(elements)
}
