//! The backward pass: the specifications of its kernels, and their list.

use super::collectives::{Collectives, shfl};
use super::{Dtype, Spec};

/// A kernel of the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backward {
    /// Statistics of the rows.
    Prepare(Dtype),
    /// dq, from sums to 16 bits.
    Convert(Dtype),
}

impl Backward {
    /// Warps of a block that prepares or converts.
    pub const WARPS: u32 = 4;
    /// Rows of a head that a block prepares.
    pub const PREPARED_ROWS: u32 = 8 * Self::WARPS;

    /// Element type.
    pub fn dtype(&self) -> Dtype {
        match self {
            Backward::Prepare(dtype) | Backward::Convert(dtype) => *dtype,
        }
    }
}

/// All kernels.
pub(super) fn all() -> impl Iterator<Item = Backward> {
    let of = |dtype| [Backward::Prepare(dtype), Backward::Convert(dtype)];
    Dtype::ALL.into_iter().flat_map(of)
}

impl Spec for Backward {
    fn name(&self) -> String {
        let step = match self {
            Backward::Prepare(_) => "prepare",
            Backward::Convert(_) => "convert",
        };
        format!("{}_{step}", self.module())
    }

    fn module(&self) -> String {
        format!("backward_{}", self.dtype().name())
    }

    fn threads(&self) -> u32 {
        32 * Self::WARPS
    }

    fn blocks_per_sm(&self) -> u32 {
        8
    }

    fn shared_bytes(&self) -> u32 {
        0
    }

    fn instance(&self) -> String {
        let (element, warps) = (self.dtype(), Self::WARPS);
        let step = match self {
            Backward::Prepare(_) => "prepare",
            Backward::Convert(_) => "convert",
        };
        format!("(BackwardParams) = attention::backward::{step}::<{element:?}, {warps}>")
    }

    fn collectives(&self) -> Collectives {
        match self {
            // Two rounds of a sum over a row's lanes.
            Backward::Prepare(_) => shfl(2),
            // Two transpositions of 4x4 pairs.
            Backward::Convert(_) => shfl(2 * 4),
        }
    }
}
