//! Kernels around the others: sums of partial results, and copies.

use super::{Dtype, Spec, Target};
use crate::abi::BULK_BYTES;

/// A kernel of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Auxiliary {
    /// Partial results of splits of the keys, added up to an o of this type.
    Combine(Dtype),
    /// Results on two parts of the keys, merged.
    Merge(Dtype),
    /// Gradients of such results.
    MergeBackward(Dtype),
    /// Copies of inputs whose rows are not [aligned](crate::abi::TensorRef::is_aligned).
    Pack,
    /// Outputs whose rows are no whole pieces of 16 bytes, from copies.
    Unpack,
    /// The ranges that queries and keys see where a batch consists of sequences.
    Ranges,
    /// The blocks of keys that a boolean mask shows to query tiles.
    Blocks,
    /// A copy by the copy engine of `sm_90a`: it shows that kernels for it compile, are checked, and run.
    BulkCopy,
}

impl Auxiliary {
    /// Warps of a block that combines, each up to 128 columns of a row of o, merges, or packs.
    pub const WARPS: u32 = 4;
    /// Rows that a block merges, a quarter of a warp each.
    pub const MERGED_ROWS: u32 = 8 * Self::WARPS;
    /// Warps of a block that looks for the blocks of keys that a mask shows.
    pub const BLOCKS_WARPS: u32 = 16;
    /// Rows of a head that a block packs or unpacks.
    pub const PACK_ROWS: u32 = 64;
    const BULK_STAGES: u32 = 2;
}

impl Spec for Auxiliary {
    fn name(&self) -> String {
        match self {
            Auxiliary::Combine(dtype) => format!("combine_{}", dtype.name()),
            Auxiliary::Merge(dtype) => format!("merge_{}", dtype.name()),
            Auxiliary::MergeBackward(dtype) => format!("merge_backward_{}", dtype.name()),
            Auxiliary::Pack => "pack".into(),
            Auxiliary::Unpack => "unpack".into(),
            Auxiliary::Ranges => "ranges".into(),
            Auxiliary::Blocks => "blocks".into(),
            Auxiliary::BulkCopy => "bulk_copy".into(),
        }
    }

    fn target(&self) -> Target {
        match self {
            Auxiliary::BulkCopy => Target::Sm90a,
            _ => Target::Sm80,
        }
    }

    fn threads(&self) -> u32 {
        match self {
            Auxiliary::Blocks => 32 * Self::BLOCKS_WARPS,
            Auxiliary::BulkCopy => 64,
            _ => 32 * Self::WARPS,
        }
    }

    fn blocks_per_sm(&self) -> u32 {
        match self {
            Auxiliary::Blocks | Auxiliary::BulkCopy => 1,
            _ => 8,
        }
    }

    /// The pieces of 16 bytes a lane that warps pack at a time. A word for each warp that looks for blocks. The bulk copy's ring,
    /// and two barriers of 8 bytes a stage.
    fn shared_bytes(&self) -> u32 {
        match self {
            Auxiliary::Pack => 16 * self.threads(),
            Auxiliary::Blocks => 4 * Self::BLOCKS_WARPS,
            Auxiliary::BulkCopy => Self::BULK_STAGES * (BULK_BYTES + 16),
            _ => 0,
        }
    }

    fn instance(&self) -> String {
        let (warps, rows, stages) = (Self::WARPS, Self::PACK_ROWS, Self::BULK_STAGES);
        match self {
            Auxiliary::Combine(element) => {
                format!("(ForwardParams) = attention::combine::combine::<{element:?}, {warps}>")
            }
            Auxiliary::Merge(element) => {
                format!("(MergeParams) = attention::merge::merge::<{element:?}, {warps}>")
            }
            Auxiliary::MergeBackward(element) => {
                let kernel = "attention::merge::merge_backward";
                format!("(MergeBackwardParams) = {kernel}::<{element:?}, {warps}>")
            }
            Auxiliary::Pack => format!("(PackParams) = attention::pack::pack::<{warps}, {rows}>"),
            Auxiliary::Unpack => {
                format!("(PackParams) = attention::pack::unpack::<{warps}, {rows}>")
            }
            Auxiliary::Ranges => {
                format!("(RangesParams) = attention::find_ranges::find_ranges::<{warps}>")
            }
            Auxiliary::Blocks => {
                let warps = Self::BLOCKS_WARPS;
                format!("(BlockMapParams) = attention::find_blocks::find_blocks::<{warps}>")
            }
            Auxiliary::BulkCopy => format!("(BulkCopyParams) = bulk_copy::bulk_copy::<{stages}>"),
        }
    }
}
