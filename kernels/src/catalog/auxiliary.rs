//! Kernels around the others: sums of partial results, and copies.

use super::{Dtype, Feature, Instance, Launch, Spec};
use crate::abi::BULK_BYTES;
use crate::numbers;

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

    /// Element type; kernels that serve all types have none.
    pub fn dtype(self) -> Option<Dtype> {
        match self {
            Auxiliary::Combine(dtype)
            | Auxiliary::Merge(dtype)
            | Auxiliary::MergeBackward(dtype) => Some(dtype),
            _ => None,
        }
    }
}

/// All kernels but the bulk copy.
pub(super) fn all() -> impl Iterator<Item = Auxiliary> {
    use Auxiliary::{Blocks, Combine, Merge, MergeBackward, Pack, Ranges, Unpack};
    let of_types = [Combine, Merge, MergeBackward].into_iter();
    let of_types = of_types.flat_map(|of: fn(Dtype) -> Auxiliary| Dtype::ALL.map(of));
    of_types.chain([Pack, Unpack, Ranges, Blocks])
}

impl Spec for Auxiliary {
    fn name(&self) -> String {
        let dtype = self.dtype().map_or("", Dtype::name);
        match self {
            Auxiliary::Combine(_) => format!("combine_{dtype}"),
            Auxiliary::Merge(_) => format!("merge_{dtype}"),
            Auxiliary::MergeBackward(_) => format!("merge_backward_{dtype}"),
            Auxiliary::Pack => "pack".into(),
            Auxiliary::Unpack => "unpack".into(),
            Auxiliary::Ranges => "ranges".into(),
            Auxiliary::Blocks => "blocks".into(),
            Auxiliary::BulkCopy => "bulk_copy".into(),
        }
    }

    fn features(&self) -> &'static [Feature] {
        match self {
            Auxiliary::BulkCopy => &[Feature::BulkCopies],
            _ => &[],
        }
    }

    /// Shared memory: the pieces of 16 bytes a lane that warps pack at a time; a word for each warp that looks for blocks; the
    /// bulk copy's ring, and two barriers of 8 bytes a stage.
    fn launch(&self) -> Launch {
        let (warps, blocks_per_sm, shared_bytes) = match self {
            Auxiliary::Pack => (Self::WARPS, 8, 16 * 32 * Self::WARPS),
            Auxiliary::Blocks => (Self::BLOCKS_WARPS, 1, 4 * Self::BLOCKS_WARPS),
            Auxiliary::BulkCopy => (2, 1, Self::BULK_STAGES * (BULK_BYTES + 16)),
            _ => (Self::WARPS, 8, 0),
        };
        Launch {
            threads: 32 * warps,
            blocks_per_sm,
            shared_bytes,
        }
    }

    fn instance(&self) -> Instance {
        let (params, kernel) = match self {
            Auxiliary::Combine(_) => ("ForwardParams", "attention::combine::combine"),
            Auxiliary::Merge(_) => ("MergeParams", "attention::merge::merge"),
            Auxiliary::MergeBackward(_) => {
                ("MergeBackwardParams", "attention::merge::merge_backward")
            }
            Auxiliary::Pack => ("PackParams", "attention::pack::pack"),
            Auxiliary::Unpack => ("PackParams", "attention::pack::unpack"),
            Auxiliary::Ranges => ("RangesParams", "attention::find_ranges::find_ranges"),
            Auxiliary::Blocks => ("BlockMapParams", "attention::find_blocks::find_blocks"),
            Auxiliary::BulkCopy => ("BulkCopyParams", "bulk_copy::bulk_copy"),
        };
        let warps = self.threads() / 32;
        let numbers = match self {
            Auxiliary::Pack | Auxiliary::Unpack => numbers! { W = warps, BR = Self::PACK_ROWS },
            Auxiliary::BulkCopy => numbers! { STAGES = Self::BULK_STAGES },
            _ => numbers! { W = warps },
        };
        let element = self.dtype().map(|dtype| format!("{dtype:?}"));
        Instance::new(params, kernel, element.as_deref().as_slice(), numbers)
    }
}
