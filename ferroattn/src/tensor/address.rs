//! Addresses of tensors, and what lies at an address.

use super::{RawTensor, Storage, StorageMut, TensorBase};
use crate::device::Device;
use crate::error::Result;
use bytemuck::Pod;

impl<S: Storage, const R: usize> TensorBase<S, R> {
    /// Address of the first element in the device's memory, to read.
    ///
    /// It is valid as long as the buffer lives, and only for work that the device orders after the
    /// work which writes the tensor: this library's own is on the null stream.
    pub fn address(&self) -> u64 {
        self.storage.borrow().address() + self.offset_bytes()
    }

    /// Address of the first element in the device's memory, to write.
    ///
    /// Valid as [`address`](Self::address) is, until the tensor is next used.
    pub fn address_mut(&mut self) -> u64
    where
        S: StorageMut,
    {
        self.storage.borrow_mut().address_mut() + self.offset_bytes()
    }

    fn offset_bytes(&self) -> u64 {
        (self.offset * size_of::<S::Item>()) as u64
    }

    /// The tensor at its [address](Self::address), to read.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Attention, Device, Dtype, RawForward, RawOptions, RawTensor, Tensor, f16};
    ///
    /// let device = Device::cpu();
    /// let qkv = Tensor::new(&device, [1, 3, 2, 5, 16], &[f16::ONE; 480])?;
    /// let [q, k, v] = [0, 1, 2].map(|part| qkv.view().select(1, part));
    /// let mut o = [f16::ZERO; 160]; // memory of another owner
    /// let mut lse = Tensor::<f32, 3>::zeros(&device, [1, 2, 5])?;
    /// let raw = RawForward {
    ///     q: q?.as_raw(),
    ///     k: k?.as_raw(),
    ///     v: v?.as_raw(),
    ///     o: RawTensor {
    ///         address: o.as_mut_ptr().expose_provenance() as u64,
    ///         shape: [1, 2, 5, 16],
    ///         strides: [160, 80, 16, 1],
    ///     },
    ///     lse: lse.as_raw_mut(),
    ///     options: RawOptions::default(),
    /// };
    /// // SAFETY: `qkv`, `o` and `lse` live on, hold elements of these types, and do not overlap.
    /// unsafe { Attention::new().forward_raw(&device, Dtype::F16, &raw, std::ptr::null_mut())? };
    /// assert_eq!(o, [f16::ONE; 160]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn as_raw(&self) -> RawTensor<R> {
        self.at(self.address())
    }

    /// The tensor at its [address](Self::address_mut), to write.
    pub fn as_raw_mut(&mut self) -> RawTensor<R>
    where
        S: StorageMut,
    {
        let address = self.address_mut();
        self.at(address)
    }

    fn at(&self, address: u64) -> RawTensor<R> {
        RawTensor {
            address,
            shape: self.shape(),
            strides: self.strides(),
        }
    }
}

impl RawTensor<1> {
    /// All elements, side by side in the device's memory.
    ///
    /// # Safety
    /// They are, in live memory, aligned to their type, and nothing writes them.
    pub(crate) unsafe fn load<T: Pod>(&self, device: &Device) -> Result<Vec<T>> {
        let mut numbers = vec![T::zeroed(); self.shape[0]];
        let bytes = bytemuck::cast_slice_mut(&mut numbers);
        match device.gpu() {
            _ if bytes.is_empty() => {}
            // SAFETY: the caller's word.
            Some(gpu) => unsafe { gpu.driver().download(self.address, bytes)? },
            None => {
                let from = std::ptr::with_exposed_provenance::<u8>(self.address as usize);
                // SAFETY: the caller's word; the vector is not the tensor's memory.
                unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
            }
        }
        Ok(numbers)
    }
}
