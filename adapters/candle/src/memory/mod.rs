//! Where tensors lie: what a call needs of each of candle's devices.

#[cfg(feature = "cuda")]
mod cuda;
mod host;
mod in_place;

#[cfg(feature = "cuda")]
pub(crate) use cuda::Cuda;
pub(crate) use host::Host;
pub(crate) use in_place::{in_place, share_storage};

use candle_core::backend::BackendStorage;
use candle_core::op::BackpropOp;
use candle_core::{DType, Error, Layout, Result, Shape, Storage, Tensor};
use ferroattn::device::RawStream;
use ferroattn::{RawTensor, RawWorkspace};
use std::ops::Deref;

/// A device's memory, in candle's types.
pub(crate) trait Memory {
    /// Candle's storage of a tensor's elements.
    type Storage: BackendStorage + 'static;
    /// A guard that lives until the work that uses an address is queued.
    type Guard<'a>
    where
        Self: 'a;

    /// The library's name of the device.
    fn device(&self) -> Result<ferroattn::Device>;

    /// The stream of candle's own work.
    fn stream(&self) -> RawStream;

    /// Room for so many elements, of any values.
    fn alloc(&self, dtype: DType, len: usize) -> Result<Self::Storage>;

    /// The address of the first element, to read.
    fn read<'a>(&'a self, storage: &'a Self::Storage) -> Result<(u64, Self::Guard<'a>)>;

    /// The address of the first element, to write.
    fn write<'a>(&'a self, storage: &'a mut Self::Storage) -> Result<(u64, Self::Guard<'a>)>;

    /// The storage, if it is in this memory.
    fn of(storage: &Storage) -> Option<&Self::Storage>;

    /// The storage among those of all devices.
    fn wrap(storage: Self::Storage) -> Storage;
}

/// A tensor in a memory.
pub(crate) struct Placed<'a, M: Memory> {
    pub storage: &'a M::Storage,
    pub layout: &'a Layout,
}

/// A tensor whose storage nobody writes meanwhile.
pub(crate) struct Locked<'a> {
    /// Candle's guard, whose type candle 0.11.0 and 0.11.1 do not share.
    storage: Box<dyn Deref<Target = Storage> + 'a>,
    layout: &'a Layout,
}

impl<'a> Locked<'a> {
    pub fn new(tensor: &'a Tensor) -> Self {
        let (storage, layout) = tensor.storage_and_layout();
        Locked {
            storage: Box::new(storage),
            layout,
        }
    }

    /// # Errors
    /// If the tensor is in another memory.
    pub fn placed<M: Memory>(&self) -> Result<Placed<'_, M>> {
        let Some(storage) = M::of(&self.storage) else {
            candle_core::bail!("a tensor of the call is on another device than the others")
        };
        let layout = self.layout;
        Ok(Placed { storage, layout })
    }
}

/// A new tensor of a storage that it fills from its first element on.
pub(crate) fn tensor<M: Memory>(storage: M::Storage, shape: impl Into<Shape>) -> Tensor {
    Tensor::from_storage(M::wrap(storage), shape, BackpropOp::none(), false)
}

/// Addresses of a call's tensors, which are good until this is dropped: after the call.
pub(crate) struct Addresses<'a, M: Memory> {
    memory: &'a M,
    guards: Vec<M::Guard<'a>>,
}

impl<'a, M: Memory> Addresses<'a, M> {
    pub fn new(memory: &'a M) -> Self {
        let guards = Vec::new();
        Addresses { memory, guards }
    }

    /// A tensor to read.
    pub fn read<const R: usize>(&mut self, placed: &Placed<'a, M>) -> Result<RawTensor<R>> {
        let Placed { storage, layout } = placed;
        let (address, guard) = self.memory.read(storage)?;
        self.guards.push(guard);
        part(address, layout, storage.dtype())
    }

    /// A tensor to write, row-major from the storage's first element on.
    pub fn write<const R: usize>(
        &mut self,
        storage: &'a mut M::Storage,
        shape: [usize; R],
    ) -> Result<RawTensor<R>> {
        let (address, guard) = self.memory.write(storage)?;
        self.guards.push(guard);
        // Candle's strides are 0 before an axis of extent 0, as if all elements were at one place.
        Ok(RawTensor {
            address,
            ..RawTensor::row_major(shape)
        })
    }
}

/// A tensor of a layout in the storage at an address.
pub(crate) fn part<const R: usize>(
    address: u64,
    layout: &Layout,
    dtype: DType,
) -> Result<RawTensor<R>> {
    let (Ok(shape), Ok(strides)) = (layout.dims().try_into(), layout.stride().try_into()) else {
        candle_core::bail!(
            "a tensor has shape {:?}; it must have {R} axes",
            layout.dims()
        )
    };
    let strides: [usize; R] = strides;
    let offset = layout.start_offset() * dtype.size_in_bytes();
    Ok(RawTensor {
        address: address + offset as u64,
        shape,
        strides: strides.map(|stride| stride as isize),
    })
}

/// Calls with so many bytes of memory that live until the call's work is done.
pub(crate) fn in_workspace<M: Memory>(
    memory: &M,
    bytes: usize,
    call: impl FnOnce(RawWorkspace) -> ferroattn::Result<()>,
) -> Result<()> {
    if bytes == 0 {
        return call(RawWorkspace::default()).map_err(Error::wrap);
    }
    let mut room = memory.alloc(DType::U8, bytes)?;
    // Candle frees the room in the stream's order.
    let (address, _until_queued) = memory.write(&mut room)?;
    call(RawWorkspace { address, bytes }).map_err(Error::wrap)
}
