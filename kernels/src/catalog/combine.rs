//! Partial results of splits of the keys, added up.

use super::collectives::{Collectives, shfl};
use super::{Dtype, Spec};

/// A combine kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Combine {
    /// Element type of o.
    pub dtype: Dtype,
}

impl Combine {
    /// Warps of a block: each takes up to 128 columns of a row of o.
    pub const WARPS: u32 = 4;
}

impl Spec for Combine {
    fn name(&self) -> String {
        format!("combine_{}", self.dtype.name())
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
        let (element, warps) = (self.dtype, Self::WARPS);
        format!("(ForwardParams) = attention::combine::combine::<{element:?}, {warps}>")
    }

    /// Five rounds for the maximum, five for the sum, and the weights of eight splits.
    fn collectives(&self) -> Collectives {
        shfl(5 + 5 + 8)
    }
}
