//! Addresses and strides of tensors, for the raw entries.

use super::{Layout, Storage, StorageMut, TensorBase};
use crate::error::{Error, Result};
use kernels::abi::{MatrixRef, TensorRef};

impl<S: Storage, const R: usize> TensorBase<S, R> {
    /// Address of the first element in the device's memory, to read.
    ///
    /// It is valid as long as the buffer lives, and only for work that the device orders after the
    /// work which writes the tensor: this library's own is on the null stream.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.storage.buffer().address() + self.offset_bytes()
    }

    /// Address of the first element in the device's memory, to write.
    ///
    /// Valid as [`address`](Self::address) is, until the tensor is next used.
    #[must_use]
    pub fn address_mut(&mut self) -> u64
    where
        S: StorageMut,
    {
        self.storage.buffer_mut().address_mut() + self.offset_bytes()
    }

    fn offset_bytes(&self) -> u64 {
        (self.offset * size_of::<S::Item>()) as u64
    }
}

impl<S: Storage> TensorBase<S, 4> {
    /// Address and strides of a tensor to read, for
    /// [`Attention::forward_raw`](crate::Attention::forward_raw).
    ///
    /// ```
    /// # fn main() -> attention::Result<()> {
    /// use attention::{Attention, Device, Dtype, RawForward, Tensor, f16};
    ///
    /// let device = Device::cpu();
    /// let qkv = Tensor::new(&device, [1, 3, 2, 5, 16], &[f16::ONE; 480])?;
    /// let [q, k, v] = [0, 1, 2].map(|part| qkv.view().select(1, part)?.as_raw());
    /// let mut o = [f16::ZERO; 160]; // memory of another owner
    /// let mut lse = Tensor::<f32, 3>::zeros(&device, [1, 2, 5])?;
    /// let raw = RawForward {
    ///     q: q?,
    ///     k: k?,
    ///     v: v?,
    ///     o: attention::TensorRef {
    ///         address: o.as_mut_ptr().expose_provenance() as u64,
    ///         batch_stride: 160,
    ///         head_stride: 80,
    ///         row_stride: 16,
    ///     },
    ///     lse: lse.address_mut(),
    ///     batch: 1,
    ///     heads: 2,
    ///     kv_heads: 2,
    ///     seqlen_q: 5,
    ///     seqlen_kv: 5,
    ///     dim: 16,
    /// };
    /// // SAFETY: `qkv`, `o` and `lse` live on, hold elements of these types, and do not overlap.
    /// unsafe { Attention::new().forward_raw(&device, Dtype::F16, &raw, std::ptr::null_mut())? };
    /// assert_eq!(o, [f16::ONE; 160]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the stride in dim is not 1.
    pub fn as_raw(&self) -> Result<TensorRef> {
        self.raw("tensor", self.address())
    }

    /// Address and strides of a tensor to write. As [`as_raw`](Self::as_raw).
    ///
    /// # Errors
    /// If the stride in dim is not 1.
    pub fn as_raw_mut(&mut self) -> Result<TensorRef>
    where
        S: StorageMut,
    {
        let address = self.address_mut();
        self.raw("tensor", address)
    }

    /// The tensor at its address, under the name that errors call it by.
    pub(crate) fn raw(&self, argument: &'static str, address: u64) -> Result<TensorRef> {
        let [batch_stride, head_stride, row_stride, stride] =
            self.strides().map(|stride| stride as i64);
        if stride != 1 {
            let stride = stride as isize;
            return Err(Error::DimStride { argument, stride });
        }
        Ok(TensorRef {
            address,
            batch_stride,
            head_stride,
            row_stride,
        })
    }
}

impl<S: Storage> TensorBase<S, 2> {
    /// Address and row stride of a matrix to read, for
    /// [`Gemm::forward_raw`](crate::Gemm::forward_raw).
    ///
    /// # Errors
    /// If the stride along the rows is not 1.
    pub fn as_raw(&self) -> Result<MatrixRef> {
        self.raw("matrix", self.address())
    }

    /// Address and row stride of a matrix to write. As [`as_raw`](Self::as_raw).
    ///
    /// # Errors
    /// If the stride along the rows is not 1.
    pub fn as_raw_mut(&mut self) -> Result<MatrixRef>
    where
        S: StorageMut,
    {
        let address = self.address_mut();
        self.raw("matrix", address)
    }

    /// The matrix at its address, under the name that errors call it by.
    pub(crate) fn raw(&self, argument: &'static str, address: u64) -> Result<MatrixRef> {
        let ([_, columns], [row_stride, stride]) = (self.shape(), self.strides());
        if stride != 1 && columns > 1 {
            return Err(Error::RowElements { argument, stride });
        }
        Ok(MatrixRef {
            address,
            row_stride: row_stride as i64,
        })
    }
}

impl Layout<4> {
    /// The layout of a tensor at an address.
    pub fn of_tensor(tensor: TensorRef, shape: [usize; 4]) -> Self {
        let strides = [
            tensor.batch_stride,
            tensor.head_stride,
            tensor.row_stride,
            1,
        ];
        Layout {
            shape,
            strides: strides.map(|stride| stride as isize),
        }
    }
}

impl Layout<2> {
    /// The layout of a matrix at an address.
    pub fn of_matrix(matrix: MatrixRef, shape: [usize; 2]) -> Self {
        Layout {
            shape,
            strides: [matrix.row_stride as isize, 1],
        }
    }
}
