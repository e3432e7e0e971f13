//! The memory of a CUDA device.

use super::Memory;
use candle_core::cuda_backend::CudaDType;
use candle_core::cuda_backend::CudaStorageSlice;
use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::cuda_backend::cudarc::driver::{
    CudaSlice, CudaStream, DevicePtr, DevicePtrMut, SyncOnDrop,
};
use candle_core::{CudaDevice, CudaStorage, DType, Error, Result, Storage};
use ferroattn::device::RawStream;
use ferroattn::{bf16, f16};
use std::sync::{Arc, Mutex, PoisonError};

/// Memory of one of candle's CUDA devices, from candle's allocator and in the order of candle's stream.
pub(crate) struct Cuda {
    device: CudaDevice,
    stream: Arc<CudaStream>,
}

impl Cuda {
    pub fn new(device: &CudaDevice) -> Self {
        Cuda {
            device: device.clone(),
            stream: device.cuda_stream(),
        }
    }

    fn room<T: CudaDType + DeviceRepr>(&self, len: usize) -> Result<CudaStorage> {
        // The driver allocates no empty memory.
        // SAFETY: the call writes every element before anything reads one.
        let slice = unsafe { self.device.alloc::<T>(len.max(1))? };
        Ok(CudaStorage::wrap_cuda_slice(slice, self.device.clone()))
    }

    fn address<'a, T>(&'a self, slice: &'a CudaSlice<T>) -> (u64, SyncOnDrop<'a>) {
        slice.device_ptr(&self.stream)
    }

    fn address_mut<'a, T>(&'a self, slice: &'a mut CudaSlice<T>) -> (u64, SyncOnDrop<'a>) {
        slice.device_ptr_mut(&self.stream)
    }
}

impl Memory for Cuda {
    type Storage = CudaStorage;
    /// Guards that order other streams' work behind the call, if candle tracks events.
    type Guard<'a> = SyncOnDrop<'a>;

    fn device(&self) -> Result<ferroattn::Device> {
        opened(self.stream.context().ordinal())
    }

    fn stream(&self) -> RawStream {
        self.stream.cu_stream().cast()
    }

    fn alloc(&self, dtype: DType, len: usize) -> Result<CudaStorage> {
        match dtype {
            DType::F16 => self.room::<f16>(len),
            DType::BF16 => self.room::<bf16>(len),
            DType::F32 => self.room::<f32>(len),
            DType::U8 => self.room::<u8>(len),
            DType::U32 => self.room::<u32>(len),
            DType::I32 => self.room::<i32>(len),
            _ => candle_core::bail!("attention has no tensor of {dtype:?}"),
        }
    }

    fn read<'a>(&'a self, storage: &'a CudaStorage) -> Result<(u64, SyncOnDrop<'a>)> {
        Ok(match &storage.slice {
            CudaStorageSlice::F16(slice) => self.address(slice),
            CudaStorageSlice::BF16(slice) => self.address(slice),
            CudaStorageSlice::F32(slice) => self.address(slice),
            CudaStorageSlice::U8(slice) => self.address(slice),
            CudaStorageSlice::U32(slice) => self.address(slice),
            CudaStorageSlice::I32(slice) => self.address(slice),
            CudaStorageSlice::I64(slice) => self.address(slice),
            CudaStorageSlice::F8E4M3(slice) => self.address(slice),
            _ => candle_core::bail!("attention reads no tensor of this type"),
        })
    }

    fn write<'a>(&'a self, storage: &'a mut CudaStorage) -> Result<(u64, SyncOnDrop<'a>)> {
        Ok(match &mut storage.slice {
            CudaStorageSlice::F16(slice) => self.address_mut(slice),
            CudaStorageSlice::BF16(slice) => self.address_mut(slice),
            CudaStorageSlice::F32(slice) => self.address_mut(slice),
            CudaStorageSlice::U8(slice) => self.address_mut(slice),
            CudaStorageSlice::U32(slice) => self.address_mut(slice),
            CudaStorageSlice::I32(slice) => self.address_mut(slice),
            CudaStorageSlice::F8E4M3(slice) => self.address_mut(slice),
            _ => candle_core::bail!("attention writes no tensor of this type"),
        })
    }

    fn of(storage: &Storage) -> Option<&CudaStorage> {
        match storage {
            Storage::Cuda(storage) => Some(storage),
            _ => None,
        }
    }

    fn wrap(storage: CudaStorage) -> Storage {
        Storage::Cuda(storage)
    }
}

/// The library's device of this index, opened by the first call that wants it: kernels and plans are kept with it.
fn opened(ordinal: usize) -> Result<ferroattn::Device> {
    static DEVICES: Mutex<Vec<(usize, ferroattn::Device)>> = Mutex::new(Vec::new());
    let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, device)) = devices.iter().find(|(index, _)| *index == ordinal) {
        return Ok(device.clone());
    }
    let device = ferroattn::Device::cuda(ordinal).map_err(Error::wrap)?;
    devices.push((ordinal, device.clone()));
    Ok(device)
}
