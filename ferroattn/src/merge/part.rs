//! Partial results of attention: o and lse, as arguments.

use crate::error::{Error, Result};
use crate::tensor::{Layout, RawTensor, Storage, StorageMut, TensorBase, expect_shape};
use kernels::abi::PartRef;
use kernels::catalog::MAX_HEAD_DIM;

/// A partial result to read: o `[batch, heads, seqlen, dim_v]` of any strides with stride 1 in dim, and lse
/// `[batch, heads, seqlen]`, contiguous.
pub type Partial<'a, O, L> = (&'a TensorBase<O>, &'a TensorBase<L, 3>);

/// A partial result to write: as [`Partial`], with a place of its own for every element.
pub type PartialMut<'a, O, L> = (&'a mut TensorBase<O>, &'a mut TensorBase<L, 3>);

/// A partial result of attention by address, or its gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RawPart {
    /// Output, `[batch, heads, seqlen, dim_v]`, with stride 1 in dim.
    pub o: RawTensor,
    /// Row log-sum-exp, `f32[batch, heads, seqlen]`, contiguous.
    pub lse: RawTensor<3>,
}

/// The names of o and lse in messages.
pub(super) type Names = [&'static str; 2];

pub(super) const FIRST: Names = ["o1", "lse1"];
pub(super) const SECOND: Names = ["o2", "lse2"];
pub(super) const MERGED: Names = ["o", "lse"];
pub(super) const D_MERGED: Names = ["d_o", "d_lse"];
pub(super) const D_FIRST: Names = ["d_o1", "d_lse1"];
pub(super) const D_SECOND: Names = ["d_o2", "d_lse2"];

impl RawPart {
    /// Row-major tensors at address 0, for an o of this shape.
    pub(super) fn row_major(shape: [usize; 4]) -> Self {
        RawPart {
            o: RawTensor::row_major(shape),
            lse: RawTensor::row_major(rows_of(shape)),
        }
    }

    /// The tensors at their addresses, to read.
    pub(super) fn of((o, lse): Partial<impl Storage, impl Storage>) -> Self {
        RawPart {
            o: o.as_raw(),
            lse: lse.as_raw(),
        }
    }

    /// The tensors at their addresses, to write.
    pub(super) fn of_mut((o, lse): PartialMut<impl StorageMut, impl StorageMut>) -> Self {
        RawPart {
            o: o.as_raw_mut(),
            lse: lse.as_raw_mut(),
        }
    }

    /// Checks a part to read, of a valid shape.
    pub(super) fn expect(&self, [o, lse]: Names, shape: [usize; 4]) -> Result<()> {
        expect_o(o, &self.o, shape)?;
        expect_lse(lse, &self.lse, shape)
    }

    /// Checks a part to write, of a valid shape.
    pub(super) fn expect_output(&self, names: Names, shape: [usize; 4]) -> Result<()> {
        self.expect(names, shape)?;
        self.o.layout().expect_injective(names[0])
    }
}

/// Checks the shape of o, which all other tensors match.
pub(super) fn validate(shape: [usize; 4]) -> Result<()> {
    let [.., dim] = shape;
    if !(1..=MAX_HEAD_DIM as usize).contains(&dim) {
        return Err(Error::ValueDim(dim));
    }
    Layout::expect_countable_bytes("o1", shape)
}

/// The shape of lse beside an o of this shape.
pub(super) fn rows_of([batch, heads, seqlen, _]: [usize; 4]) -> [usize; 3] {
    [batch, heads, seqlen]
}

pub(super) fn expect_o(argument: &'static str, o: &RawTensor, shape: [usize; 4]) -> Result<()> {
    expect_shape(argument, &shape, &o.shape)?;
    o.expect_rows(argument, "dim")
}

pub(super) fn expect_lse(
    argument: &'static str,
    lse: &RawTensor<3>,
    shape: [usize; 4],
) -> Result<()> {
    expect_shape(argument, &rows_of(shape), &lse.shape)?;
    match lse.layout().is_contiguous() {
        true => Ok(()),
        false => Err(Error::NotContiguous(argument)),
    }
}

#[doc(hidden)]
impl From<RawPart> for PartRef {
    fn from(part: RawPart) -> Self {
        let [lse_batch, lse_head, _] = part.lse.used_strides().map(|stride| stride as i64);
        PartRef {
            o: part.o.into(),
            lse: part.lse.address,
            lse_batch,
            lse_head,
        }
    }
}
