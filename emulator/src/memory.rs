//! Global memory: separate buffers, far apart.
//!
//! Each buffer starts at its own multiple of 2^40. So an overrun, however long, ends in no other
//! buffer, and a freed address is never used again.

use crate::bytes::Bytes;
use crate::error::{Rule, Violation};
use crate::nan::canonical_bits;
use crate::shared::BULK_ALIGNMENT;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, RwLock};

const ADDRESS_BITS: u32 = 40;

/// Generic address of a kernel's parameters, below all buffers.
pub(crate) const PARAMETERS: u64 = 1 << (ADDRESS_BITS - 1);

/// The accesses that kernels may make to a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// Loads only.
    ReadOnly,
    /// Loads and stores.
    ReadWrite,
}

/// A host access that does not lie in one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes at {address:#x} do not lie in a buffer")]
pub struct MemoryError {
    /// Address of the access, or where a buffer should start.
    pub address: u64,
    /// Its size.
    pub bytes: usize,
}

/// The emulated device's memory, shared by all launches on it.
#[derive(Debug, Default)]
pub struct Memory {
    buffers: RwLock<Buffers>,
    launches: Mutex<Launches>,
}

/// Launches are numbers, from 1 on.
#[derive(Clone, Copy, Debug, Default)]
struct Launches {
    last: u32,
    /// The last one that waits at its start for those before it.
    settled: u32,
}

#[derive(Debug, Default)]
struct Buffers {
    by_id: BTreeMap<u64, Arc<Buffer>>,
    last_id: u64,
}

/// One allocation.
#[derive(Debug)]
struct Buffer {
    bytes: Bytes,
    writable: AtomicBool,
}

impl Memory {
    /// Memory with no buffers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Allocates a writable buffer of `bytes` bytes, none of them written, and returns its address,
    /// a multiple of 2^40.
    ///
    /// # Panics
    /// If `bytes` is more than 2^39, or the host has no memory for them.
    pub fn allocate(&self, bytes: usize) -> u64 {
        self.try_allocate(bytes).expect("memory for the buffer")
    }

    /// Like [`allocate`](Self::allocate); `None` in place of a panic.
    pub fn try_allocate(&self, bytes: usize) -> Option<u64> {
        if bytes > 1 << (ADDRESS_BITS - 1) {
            return None;
        }
        let buffer = Buffer {
            bytes: Bytes::try_new(bytes)?,
            writable: AtomicBool::new(true),
        };
        let mut buffers = self.buffers.write().expect(POISONED);
        buffers.last_id += 1;
        let id = buffers.last_id;
        buffers.by_id.insert(id, Arc::new(buffer));
        Some(id << ADDRESS_BITS)
    }

    /// Allocates a read-only buffer that holds `data`.
    pub fn upload(&self, data: &[u8]) -> u64 {
        let address = self.allocate(data.len());
        self.write(address, data).expect("a new buffer");
        self.protect(address, Permission::ReadOnly)
            .expect("a new buffer");
        address
    }

    /// Frees the buffer that starts at `address`.
    ///
    /// # Errors
    /// If no buffer starts there.
    pub fn free(&self, address: u64) -> Result<(), MemoryError> {
        self.start_of_buffer(address)?;
        let mut buffers = self.buffers.write().expect(POISONED);
        buffers.by_id.remove(&(address >> ADDRESS_BITS));
        Ok(())
    }

    /// Sets what kernels may do with the buffer that starts at `address`, from the next launch on. The
    /// host may always write it.
    ///
    /// # Errors
    /// If no buffer starts there.
    pub fn protect(&self, address: u64, permission: Permission) -> Result<(), MemoryError> {
        let buffer = self.start_of_buffer(address)?;
        buffer
            .writable
            .store(permission == Permission::ReadWrite, Relaxed);
        Ok(())
    }

    /// Copies `data` into a buffer.
    ///
    /// # Errors
    /// If `address..address + data.len()` does not lie in one buffer.
    pub fn write(&self, address: u64, data: &[u8]) -> Result<(), MemoryError> {
        let (buffer, offset) = self.host_range(address, data.len())?;
        buffer.bytes.write(offset, data, 0);
        Ok(())
    }

    /// Copies bytes out of a buffer. Bytes that were never written read as `0xff`, part of a NaN.
    ///
    /// # Errors
    /// If `address..address + to.len()` does not lie in one buffer.
    pub fn read(&self, address: u64, to: &mut [u8]) -> Result<(), MemoryError> {
        let (buffer, offset) = self.host_range(address, to.len())?;
        buffer.bytes.read_or(offset, to, 0xff);
        Ok(())
    }

    fn find(&self, address: u64) -> Option<Arc<Buffer>> {
        let buffers = self.buffers.read().expect(POISONED);
        buffers.by_id.get(&(address >> ADDRESS_BITS)).cloned()
    }

    fn start_of_buffer(&self, address: u64) -> Result<Arc<Buffer>, MemoryError> {
        let is_start = address.is_multiple_of(1 << ADDRESS_BITS);
        let buffer = self.find(address).filter(|_| is_start);
        buffer.ok_or(MemoryError { address, bytes: 0 })
    }

    fn host_range(&self, address: u64, bytes: usize) -> Result<(Arc<Buffer>, usize), MemoryError> {
        let found = self.find(address).and_then(|buffer| {
            let offset = buffer.offset(address, bytes)?;
            Some((buffer, offset))
        });
        found.ok_or(MemoryError { address, bytes })
    }

    /// The memory for a launch: without locks, and with buffers that stay while the launch runs. If its kernel waits
    /// itself for the launches before, also as it is until then.
    pub(crate) fn of_launch(&self, waits_itself: bool) -> (Global, Option<Global>) {
        let mut launches = self.launches.lock().expect(POISONED);
        launches.last += 1;
        if !waits_itself {
            launches.settled = launches.last;
        }
        let early = waits_itself.then(|| self.snapshot(launches.last, Some(launches.settled)));
        (self.snapshot(launches.last, None), early)
    }

    fn snapshot(&self, launch: u32, settled: Option<u32>) -> Global {
        let buffers = self.buffers.read().expect(POISONED);
        let first = buffers.by_id.keys().next().copied().unwrap_or(0);
        let last = buffers.by_id.keys().next_back().copied().unwrap_or(0);
        let by_id = first..=last;
        Global {
            first,
            buffers: by_id.map(|id| buffers.by_id.get(&id).cloned()).collect(),
            updating: Mutex::default(),
            launch,
            settled,
        }
    }
}

const POISONED: &str = "no code panics while it holds the lock";

impl Buffer {
    /// Where an access that lies in the buffer starts.
    fn offset(&self, address: u64, bytes: usize) -> Option<usize> {
        let offset = (address % (1 << ADDRESS_BITS)) as usize;
        (offset <= self.bytes.len() && bytes <= self.bytes.len() - offset).then_some(offset)
    }
}

/// Global memory as a kernel accesses it.
#[derive(Debug)]
pub(crate) struct Global {
    /// The buffers, from the one of the smallest id on.
    buffers: Vec<Option<Arc<Buffer>>>,
    first: u64,
    /// Held by an atomic operation.
    updating: Mutex<()>,
    /// The launch.
    launch: u32,
    /// Before the launch has waited for those before it: the launch before which all have ended.
    settled: Option<u32>,
}

impl Global {
    /// Reads `to.len()` bytes from an address that is a multiple of `alignment`.
    pub fn read(
        &self,
        lane: u32,
        address: u64,
        alignment: u32,
        to: &mut [u8],
    ) -> Result<(), Box<Violation>> {
        let (buffer, offset) = self.locate(lane, address, alignment, to.len())?;
        self.check_settled(lane, address, || buffer.bytes.last_writer(offset, to.len()))?;
        buffer
            .bytes
            .read(offset, to)
            .map_err(|unwritten| uninitialised(lane, address, unwritten - offset))
    }

    /// Checks that a kernel may read some bytes.
    pub fn check_readable(
        &self,
        lane: u32,
        address: u64,
        alignment: u32,
        bytes: usize,
    ) -> Result<(), Box<Violation>> {
        let (buffer, offset) = self.locate(lane, address, alignment, bytes)?;
        self.check_settled(lane, address, || buffer.bytes.last_writer(offset, bytes))?;
        let unwritten = buffer.bytes.unwritten(offset, bytes);
        unwritten.map_or(Ok(()), |unwritten| {
            Err(uninitialised(lane, address, unwritten - offset))
        })
    }

    /// Writes bytes to an address that is a multiple of `alignment`.
    pub fn write(
        &self,
        lane: u32,
        address: u64,
        alignment: u32,
        from: &[u8],
    ) -> Result<(), Box<Violation>> {
        let (buffer, offset) = self.writable(lane, address, alignment, from.len())?;
        buffer.bytes.write(offset, from, self.launch);
        Ok(())
    }

    /// Changes the `bytes` bytes at an address at once; what they were.
    pub fn update(
        &self,
        lane: u32,
        address: u64,
        bytes: u32,
        change: impl FnOnce(u64) -> u64,
    ) -> Result<u64, Box<Violation>> {
        let _updating = self.updating.lock().expect(POISONED);
        let mut value = [0; 8];
        let value = &mut value[..bytes as usize];
        self.read(lane, address, bytes, value)?;
        let number = |value: &[u8]| value.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b));
        let before = number(value);
        value.copy_from_slice(&change(before).to_le_bytes()[..bytes as usize]);
        self.write(lane, address, bytes, value)?;
        Ok(before)
    }

    /// Adds f32 values to the values at an address, a multiple of 16: each at once.
    pub fn add_f32(&self, lane: u32, address: u64, values: &[u8]) -> Result<(), Box<Violation>> {
        let _updating = self.updating.lock().expect(POISONED);
        let mut sums = vec![0; values.len()];
        self.read(lane, address, BULK_ALIGNMENT, &mut sums)?;
        for (sum, value) in sums.chunks_exact_mut(4).zip(values.chunks_exact(4)) {
            let number = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().expect("4 bytes"));
            let total = canonical_bits(number(sum) + number(value));
            sum.copy_from_slice(&total.to_le_bytes());
        }
        self.write(lane, address, BULK_ALIGNMENT, &sums)
    }

    /// Checks that a buffer has the byte at an address.
    pub fn find(&self, lane: u32, address: u64) -> Result<(), Box<Violation>> {
        self.locate(lane, address, 1, 1).map(drop)
    }

    /// Checks that a kernel may write some bytes.
    pub fn check_writable(
        &self,
        lane: u32,
        address: u64,
        alignment: u32,
        bytes: usize,
    ) -> Result<(), Box<Violation>> {
        self.writable(lane, address, alignment, bytes).map(drop)
    }

    fn writable(
        &self,
        lane: u32,
        address: u64,
        alignment: u32,
        bytes: usize,
    ) -> Result<(&Buffer, usize), Box<Violation>> {
        let (buffer, offset) = self.locate(lane, address, alignment, bytes)?;
        self.check_settled(lane, address, || self.launch)?;
        match buffer.writable.load(Relaxed) {
            true => Ok((buffer, offset)),
            false => Err(Violation::at(Rule::GlobalReadOnly, lane, address)),
        }
    }

    /// Checks that the launch that writes the bytes at an address has surely ended.
    #[inline]
    fn check_settled(
        &self,
        lane: u32,
        address: u64,
        writer: impl FnOnce() -> u32,
    ) -> Result<(), Box<Violation>> {
        match self.settled {
            // The host is writer 0.
            Some(settled) if writer() >= settled.max(1) => {
                Err(Violation::at(Rule::EarlyAccess, lane, address))
            }
            _ => Ok(()),
        }
    }

    fn locate(
        &self,
        lane: u32,
        address: u64,
        alignment: u32,
        bytes: usize,
    ) -> Result<(&Buffer, usize), Box<Violation>> {
        if !address.is_multiple_of(u64::from(alignment)) {
            let rule = Rule::GlobalMisaligned { bytes: alignment };
            return Err(Violation::at(rule, lane, address));
        }
        let place = (address >> ADDRESS_BITS).wrapping_sub(self.first) as usize;
        let buffer = self.buffers.get(place).and_then(Option::as_deref);
        let found = buffer.and_then(|buffer| Some((buffer, buffer.offset(address, bytes)?)));
        found.ok_or_else(|| {
            let bytes = bytes as u32;
            Violation::at(Rule::GlobalOutOfBounds { bytes }, lane, address)
        })
    }
}

/// The violation of reading a byte, this many after an address, that was never written.
#[cold]
fn uninitialised(lane: u32, address: u64, offset: usize) -> Box<Violation> {
    Violation::at(Rule::GlobalUninitialised, lane, address + offset as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_reads_what_it_wrote() {
        let memory = Memory::new();
        let address = memory.allocate(4);
        memory.write(address + 1, &[1, 2]).unwrap();
        let mut bytes = [0; 4];
        memory.read(address, &mut bytes).unwrap();
        assert_eq!(bytes, [0xff, 1, 2, 0xff]);
    }

    #[test]
    fn accesses_outside_buffers_are_errors() {
        let memory = Memory::new();
        let address = memory.upload(&[0; 4]);
        let beyond = MemoryError {
            address: address + 1,
            bytes: 4,
        };
        assert_eq!(memory.write(address + 1, &[0; 4]), Err(beyond));
        assert!(memory.read(address - 1, &mut [0]).is_err());
        assert!(memory.free(address + 1).is_err());
        memory.free(address).unwrap();
        assert!(memory.read(address, &mut []).is_err());
        assert_ne!(memory.allocate(4), address);
    }
}
