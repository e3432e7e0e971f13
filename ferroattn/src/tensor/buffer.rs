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
    /// Host memory of somebody else, whose lifetime the [storage](super::Storage) has.
    Host(Shared<T>),
    Gpu(device::Memory),
}

/// The first of the elements in somebody's memory.
struct Shared<T>(*mut T);

impl<T> Shared<T> {
    /// The first one of a range.
    ///
    /// # Panics
    /// If the range leaves the `len` elements.
    fn part(&self, range: &Range<usize>, len: usize) -> *mut T {
        let is_inside = range.start <= range.end && range.end <= len;
        assert!(is_inside, "{range:?} of {len} elements");
        // Inside the elements, or their end.
        self.0.wrapping_add(range.start)
    }
}

// SAFETY: the storage around the buffer borrows the elements, and says what threads may do with them.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Shared<T> {}

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
            Memory::Cpu(_) | Memory::Host(_) => Device::cpu(),
            Memory::Gpu(memory) => Device(Some(Arc::clone(memory.gpu()))),
        }
    }
}

impl<T: Pod> Buffer<T> {
    /// Elements that the host has.
    pub(super) fn of_vec(elements: Vec<T>) -> Self {
        Buffer {
            len: elements.len(),
            memory: Memory::Cpu(elements.into_boxed_slice()),
        }
    }

    /// Elements in host memory of somebody else.
    ///
    /// # Safety
    /// There are so many elements as long as the buffer lives, and nobody writes them while it is used, or uses them while it is
    /// written.
    pub(super) unsafe fn of_host(first: *mut T, len: usize) -> Self {
        Buffer {
            memory: Memory::Host(Shared(first)),
            len,
        }
    }

    /// A buffer of these elements, which it does not own. Of memory that the buffer owns itself only the last one is valid.
    ///
    /// # Safety
    /// It lives no longer than this one, and the two are used in turns, for different elements.
    pub(super) unsafe fn shared(&mut self) -> Self {
        let memory = match &mut self.memory {
            Memory::Cpu(data) => Memory::Host(Shared(data.as_mut_ptr())),
            Memory::Host(Shared(first)) => Memory::Host(Shared(*first)),
            // SAFETY: the caller's word.
            Memory::Gpu(memory) => Memory::Gpu(unsafe { memory.shared() }),
        };
        let len = self.len;
        Buffer { memory, len }
    }

    /// Some elements in host memory; `None` if they are elsewhere.
    pub(super) fn host(&self, range: Range<usize>) -> Option<&[T]> {
        match &self.memory {
            Memory::Cpu(data) => Some(&data[range]),
            Memory::Host(shared) => {
                let first = shared.part(&range, self.len);
                // SAFETY: who made the buffer vouched for its elements. The others may be borrowed to write now, so the slice has
                // none of them.
                Some(unsafe { std::slice::from_raw_parts(first, range.len()) })
            }
            Memory::Gpu(_) => None,
        }
    }

    /// Some elements in host memory, to write; `None` if they are elsewhere.
    pub(super) fn host_mut(&mut self, range: Range<usize>) -> Option<&mut [T]> {
        match &mut self.memory {
            Memory::Cpu(data) => Some(&mut data[range]),
            Memory::Host(shared) => {
                let first = shared.part(&range, self.len);
                // SAFETY: as in `host`; the caller has these elements alone.
                Some(unsafe { std::slice::from_raw_parts_mut(first, range.len()) })
            }
            Memory::Gpu(_) => None,
        }
    }

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
        if let (Memory::Gpu(memory), Memory::Gpu(source)) = (&mut self.memory, &source.memory) {
            return memory.copy_from(to, source, from, bytes);
        }
        let to = self.host_mut(first..first + range.len());
        let (to, from) = to.zip(source.host(range)).expect("both on the CPU");
        to.copy_from_slice(from);
        Ok(())
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
            Memory::Gpu(memory) => Ok(f(&download(memory, range)?)),
            _ => Ok(f(self.host(range).expect("on the CPU"))),
        }
    }

    /// Lets the host change some elements of a GPU.
    pub(super) fn modify(&mut self, range: Range<usize>, f: impl FnOnce(&mut [T])) -> Result<()> {
        let Memory::Gpu(memory) = &mut self.memory else {
            unreachable!("the host has its elements at hand");
        };
        let first = range.start * size_of::<T>();
        let mut elements = download(memory, range)?;
        f(&mut elements);
        memory.write(first, bytemuck::cast_slice(&elements))
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
            Memory::Host(Shared(first)) => first.expose_provenance() as u64,
            Memory::Gpu(memory) => memory.address(),
        }
    }

    /// Address of the first element in the device's memory, to read and to write.
    pub(crate) fn address_mut(&mut self) -> u64 {
        match &mut self.memory {
            Memory::Cpu(data) => data.as_mut_ptr().expose_provenance() as u64,
            Memory::Host(Shared(first)) => first.expose_provenance() as u64,
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
