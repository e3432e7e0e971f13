//! Tensors by address.

use crate::status::Failure;
use ferroattn::{Dtype, RawTensor};

/// Types of elements.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FerroattnDtype {
    /// IEEE half precision.
    F16 = 1,
    /// The upper half of an `F32`.
    Bf16 = 2,
    /// IEEE single precision, on the CPU alone, or of o of inputs that are e4m3.
    F32 = 3,
}

/// A tensor in the device's memory. Tensors of fewer than four axes use the first entries of `shape` and `strides`.
///
/// This struct has no size field, and never changes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FerroattnTensor {
    /// Address of the first element, a multiple of its size. A plan takes 0, for a tensor that does not exist yet.
    pub address: u64,
    /// Extent of each axis.
    pub shape: [i64; 4],
    /// Elements from one index to the next, for each axis; zero and negative ones are fine.
    pub strides: [i64; 4],
}

/// How a call uses tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Their memory need not exist.
    Plan,
    /// Their memory is read or written.
    Run,
}

impl Use {
    /// The tensor as the library takes it, with elements of so many bytes.
    pub fn tensor<const R: usize>(
        self,
        name: &str,
        tensor: &FerroattnTensor,
        bytes: u64,
    ) -> Result<RawTensor<R>, Failure> {
        let FerroattnTensor {
            address,
            shape: extents,
            strides: steps,
        } = tensor;
        let (mut shape, mut strides) = ([0; R], [0; R]);
        for axis in 0..R {
            let refused = |what, found| {
                Failure::argument(format!("{what} {axis} of {name} is {found}, out of range"))
            };
            let (extent, step) = (extents[axis], steps[axis]);
            shape[axis] = usize::try_from(extent).map_err(|_| refused("extent", extent))?;
            strides[axis] = isize::try_from(step).map_err(|_| refused("stride", step))?;
        }
        if self == Use::Run && !shape.contains(&0) {
            if *address == 0 {
                return Err(Failure::argument(format!("the address of {name} is 0")));
            }
            if !address.is_multiple_of(bytes) {
                return Err(Failure::argument(format!(
                    "the address of {name} is {address:#x}; it must be a multiple of {bytes}"
                )));
            }
        }
        Ok(RawTensor {
            address: *address,
            shape,
            strides,
        })
    }
}

/// The library's element type of a number of [`FerroattnDtype`].
pub(crate) fn dtype(number: u32, name: &str) -> Result<Dtype, Failure> {
    const ALL: [(FerroattnDtype, Dtype); 3] = [
        (FerroattnDtype::F16, Dtype::F16),
        (FerroattnDtype::Bf16, Dtype::Bf16),
        (FerroattnDtype::F32, Dtype::F32),
    ];
    let found = ALL.into_iter().find(|&(known, _)| known as u32 == number);
    found
        .map(|(_, dtype)| dtype)
        .ok_or_else(|| Failure::argument(format!("{name} is {number}, which is no FerroattnDtype")))
}
