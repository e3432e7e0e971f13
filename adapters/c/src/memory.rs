//! Memory of a device, for programs that have no other allocator of it.

use crate::device::{FerroattnDevice, opened};
use crate::pointer;
use crate::status::{Failure, FerroattnStatus, guarded};
use ferroattn::{Device, Tensor};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use std::slice;
use std::sync::{MutexGuard, PoisonError};

/// Alignment of addresses on all devices: that of GPUs.
const ALIGNMENT: usize = 256;

/// Blocks by their address.
pub(crate) type Blocks = BTreeMap<u64, Block>;

/// Bytes that are allocated, zeros at first.
pub(crate) enum Block {
    /// Host memory by address, which a tensor would not let others write.
    Host(u64, Layout),
    /// Memory of a GPU.
    Gpu(Tensor<u8, 1>),
}

impl Block {
    fn new(device: &Device, bytes: usize) -> Result<Self, Failure> {
        if bytes == 0 {
            return Err(Failure::argument("bytes is 0; it must be at least 1"));
        }
        if !device.is_cpu() {
            return Ok(Block::Gpu(Tensor::zeros(device, [bytes])?));
        }
        let layout =
            Layout::from_size_align(bytes, ALIGNMENT).map_err(|_| Failure::host_memory(bytes))?;
        // SAFETY: there is at least one byte.
        let first = unsafe { alloc_zeroed(layout) };
        match first.is_null() {
            true => Err(Failure::host_memory(bytes)),
            false => Ok(Block::Host(first.expose_provenance() as u64, layout)),
        }
    }

    fn address(&mut self) -> u64 {
        match self {
            Block::Host(address, _) => *address,
            Block::Gpu(tensor) => tensor.address_mut(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Block::Host(_, layout) => layout.size(),
            Block::Gpu(tensor) => tensor.len(),
        }
    }

    /// Overwrites bytes from `offset` on, which are in the block.
    fn write(&mut self, offset: usize, data: &[u8]) -> Result<(), Failure> {
        match self {
            Block::Host(address, _) => {
                let first = with_exposed_provenance_mut::<u8>(*address as usize + offset);
                // SAFETY: they are in the block, and other memory than the data, which is borrowed.
                unsafe { first.copy_from_nonoverlapping(data.as_ptr(), data.len()) };
            }
            Block::Gpu(tensor) => {
                let source = Tensor::new(&tensor.device(), [data.len()], data)?;
                let mut part = tensor.view_mut().narrow(0, offset, data.len())?;
                part.copy_from(&source)?;
            }
        }
        Ok(())
    }

    /// Copies bytes from `offset` on, which are in the block.
    fn read(&self, offset: usize, data: *mut u8, bytes: usize) -> Result<(), Failure> {
        match self {
            Block::Host(address, _) => {
                let first = with_exposed_provenance::<u8>(*address as usize + offset);
                // SAFETY: they are in the block; `data` has as many, by the word of `ferroattn_download`'s caller.
                unsafe { first.copy_to(data, bytes) };
            }
            Block::Gpu(tensor) => {
                let found = tensor.view().narrow(0, offset, bytes)?.to_vec()?;
                // SAFETY: `data` has as many, by the word of `ferroattn_download`'s caller.
                unsafe { data.copy_from_nonoverlapping(found.as_ptr(), bytes) };
            }
        }
        Ok(())
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Block::Host(address, layout) = *self {
            // SAFETY: `new` allocated it with this layout, and this is its end.
            unsafe { dealloc(with_exposed_provenance_mut(address as usize), layout) };
        }
    }
}

impl FerroattnDevice {
    fn blocks(&self) -> MutexGuard<'_, Blocks> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The block that has so many bytes from an address, and their offset in it.
fn part(blocks: &mut Blocks, address: u64, bytes: usize) -> Result<(&mut Block, usize), Failure> {
    let found = blocks.range_mut(..=address).next_back();
    let inside = found.and_then(|(first, block)| {
        let offset = usize::try_from(address - first).ok()?;
        let end = offset.checked_add(bytes)?;
        (end <= block.bytes()).then_some((block, offset))
    });
    inside.ok_or_else(|| {
        let reason = format!("{bytes} bytes at {address:#x} are not memory of ferroattn_alloc");
        Failure::argument(reason)
    })
}

/// Allocates bytes of the device, zeros, at a multiple of 256, and writes their address.
///
/// # Safety
/// `device` is NULL or an open device's, and `address` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroattn_alloc(
    device: *const FerroattnDevice,
    bytes: usize,
    address: *mut u64,
) -> FerroattnStatus {
    guarded(|| {
        // SAFETY: the caller's word.
        let device = unsafe { opened(device)? };
        let allocated = || {
            let mut block = Block::new(&device.device, bytes)?;
            let address = block.address();
            device.blocks().insert(address, block);
            Ok(address)
        };
        // SAFETY: the caller's word.
        unsafe { pointer::write(address, "address", allocated) }
    })
}

/// Copies host memory to memory of `ferroattn_alloc`, in the order of the default stream.
///
/// # Safety
/// `device` is NULL or an open device's; `data` is NULL or has as many bytes, which do not overlap with those at the address. Work of other streams with the memory is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroattn_upload(
    device: *const FerroattnDevice,
    address: u64,
    data: *const c_void,
    bytes: usize,
) -> FerroattnStatus {
    guarded(|| {
        // SAFETY: the caller's word.
        let device = unsafe { opened(device)? };
        let data = pointer::checked(data.cast::<u8>(), "data")?;
        let mut blocks = device.blocks();
        let (block, offset) = part(&mut blocks, address, bytes)?;
        // SAFETY: the caller's word; a block has no more bytes than a slice can have.
        block.write(offset, unsafe { slice::from_raw_parts(data, bytes) })
    })
}

/// Copies memory of `ferroattn_alloc` to the host, after all work on the default stream.
///
/// # Safety
/// `device` is NULL or an open device's; `data` is NULL, or as many bytes of it may be written. Work of other streams with the
/// memory is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroattn_download(
    device: *const FerroattnDevice,
    data: *mut c_void,
    address: u64,
    bytes: usize,
) -> FerroattnStatus {
    guarded(|| {
        // SAFETY: the caller's word.
        let device = unsafe { opened(device)? };
        pointer::checked(data, "data")?;
        let mut blocks = device.blocks();
        let (block, offset) = part(&mut blocks, address, bytes)?;
        block.read(offset, data.cast(), bytes)
    })
}

/// Frees memory of `ferroattn_alloc`, by the address that it gave, after all work of the device; 0 is fine.
///
/// # Safety
/// `device` is NULL or an open device's, and no later work uses the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroattn_free(
    device: *const FerroattnDevice,
    address: u64,
) -> FerroattnStatus {
    guarded(|| {
        // SAFETY: the caller's word.
        let device = unsafe { opened(device)? };
        if address == 0 || device.blocks().remove(&address).is_some() {
            return Ok(());
        }
        let reason = format!("{address:#x} is not an address of ferroattn_alloc");
        Err(Failure::argument(reason))
    })
}
