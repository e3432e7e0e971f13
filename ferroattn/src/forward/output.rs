//! The type of o, where it is not that of q, k and v: of calls in FP8, whose kernels store f32, too.

use super::RawForward;
use crate::error::Result;
use crate::options::RawOptions;
use crate::tensor::{Dtype, RawTensor};
use kernels::catalog;

impl RawOptions {
    /// Whether o of a call of this type is f32, and its inputs are not.
    pub(crate) fn widens_o(&self, dtype: Dtype) -> bool {
        let is_wide = self.f32_o || dtype == Dtype::F32;
        is_wide && (dtype != Dtype::F32 || self.e4m3.is_some())
    }

    /// The type that the kernel of a call of this type is for: of inputs of e4m3 and o in f32, whose kernels differ in nothing, f16.
    ///
    /// # Errors
    /// If no kernel computes in it.
    pub(crate) fn type_of_kernel(&self, dtype: Dtype) -> Result<catalog::Dtype> {
        match dtype {
            Dtype::F32 if self.e4m3.is_some() => Ok(catalog::Dtype::F16),
            _ => dtype.of_kernels(),
        }
    }
}

/// The call of a type as kernels have it: two elements of 16 bits stand for one of an o in f32.
pub(super) fn in_halves(dtype: Dtype, args: &RawForward) -> RawForward {
    if !args.options.widens_o(dtype) {
        return *args;
    }
    let [batch, heads, rows, dim_v] = args.o.shape;
    let [batch_stride, head_stride, row_stride, _] =
        args.o.used_strides().map(|stride| stride.wrapping_mul(2));
    let options = RawOptions {
        f32_o: true,
        ..args.options
    };
    let o = RawTensor {
        address: args.o.address,
        shape: [batch, heads, rows, 2 * dim_v],
        strides: [batch_stride, head_stride, row_stride, 1],
    };
    RawForward {
        o,
        options,
        ..*args
    }
}
