//! The host's memory.

use super::Memory;
use candle_core::{CpuStorage, DType, Result, Storage};
use ferroattn::device::RawStream;
use ferroattn::{bf16, f16};
use std::ptr::null_mut;

/// Memory of candle's CPU.
pub(crate) struct Host;

impl Memory for Host {
    type Storage = CpuStorage;
    /// Calls on the CPU are done when they return.
    type Guard<'a> = ();

    fn device(&self) -> Result<ferroattn::Device> {
        Ok(ferroattn::Device::cpu())
    }

    fn stream(&self) -> RawStream {
        null_mut()
    }

    fn alloc(&self, dtype: DType, len: usize) -> Result<CpuStorage> {
        Ok(match dtype {
            DType::F16 => CpuStorage::F16(vec![f16::ZERO; len]),
            DType::BF16 => CpuStorage::BF16(vec![bf16::ZERO; len]),
            DType::F32 => CpuStorage::F32(vec![0.0; len]),
            DType::U8 => CpuStorage::U8(vec![0; len]),
            DType::U32 => CpuStorage::U32(vec![0; len]),
            DType::I32 => CpuStorage::I32(vec![0; len]),
            _ => candle_core::bail!("attention has no tensor of {dtype:?}"),
        })
    }

    fn read<'a>(&'a self, storage: &'a CpuStorage) -> Result<(u64, ())> {
        let address = match storage {
            CpuStorage::F16(elements) => elements.as_ptr().expose_provenance(),
            CpuStorage::BF16(elements) => elements.as_ptr().expose_provenance(),
            CpuStorage::F32(elements) => elements.as_ptr().expose_provenance(),
            CpuStorage::U8(elements) => elements.as_ptr().expose_provenance(),
            CpuStorage::U32(elements) => elements.as_ptr().expose_provenance(),
            CpuStorage::I32(elements) => elements.as_ptr().expose_provenance(),
            CpuStorage::I64(elements) => elements.as_ptr().expose_provenance(),
            CpuStorage::F8E4M3(elements) => elements.as_ptr().expose_provenance(),
            _ => candle_core::bail!("attention reads no tensor of this type"),
        };
        Ok((address as u64, ()))
    }

    fn write<'a>(&'a self, storage: &'a mut CpuStorage) -> Result<(u64, ())> {
        let address = match storage {
            CpuStorage::F16(elements) => elements.as_mut_ptr().expose_provenance(),
            CpuStorage::BF16(elements) => elements.as_mut_ptr().expose_provenance(),
            CpuStorage::F32(elements) => elements.as_mut_ptr().expose_provenance(),
            CpuStorage::U8(elements) => elements.as_mut_ptr().expose_provenance(),
            CpuStorage::U32(elements) => elements.as_mut_ptr().expose_provenance(),
            CpuStorage::I32(elements) => elements.as_mut_ptr().expose_provenance(),
            CpuStorage::F8E4M3(elements) => elements.as_mut_ptr().expose_provenance(),
            _ => candle_core::bail!("attention writes no tensor of this type"),
        };
        Ok((address as u64, ()))
    }

    fn of(storage: &Storage) -> Option<&CpuStorage> {
        match storage {
            Storage::Cpu(storage) => Some(storage),
            _ => None,
        }
    }

    fn wrap(storage: CpuStorage) -> Storage {
        Storage::Cpu(storage)
    }
}
