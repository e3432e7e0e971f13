//! Kernels around the others: sums of partial results, and copies.

use super::{Dtype, Feature, Generic, Instance, Launch, Spec};
use crate::abi::BULK_BYTES;
use crate::generic;

/// A kernel of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Auxiliary {
    /// Partial results of splits of the keys, added up to an o of this type.
    Combine(Dtype),
    /// Results on two parts of the keys, merged.
    Merge(Dtype),
    /// Gradients of such results.
    MergeBackward(Dtype),
    /// New keys and values of this type, copied to a cache.
    Append(Dtype),
    /// Those rounded to e4m3, to a cache of it.
    AppendE4m3(Dtype),
    /// Pages in the CSR form, copied to a table.
    Csr,
    /// Copies of inputs whose rows are not [aligned](crate::abi::TensorRef::is_aligned).
    Pack,
    /// Outputs whose rows are no whole pieces of 16 bytes, from copies.
    Unpack,
    /// Copies of packed sequences that each begin at a multiple of a step.
    Spread,
    /// Packed sequences from such copies.
    Gather,
    /// Rows of q or k of this type, rounded to e4m3.
    RoundRows(Dtype),
    /// The moments of the columns of v of this type.
    Moments(Dtype),
    /// v of this type, less the means of its columns, rounded to e4m3 and transposed.
    RoundValues(Dtype),
    /// Rows of q or k of e4m3, scaled by powers of two.
    ScaleRows,
    /// v of e4m3, transposed.
    TransposeValues,
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
    /// Page numbers of the CSR form that a warp copies.
    pub const CSR_PAGES: u32 = 128;
    /// Warps of a block that looks for the blocks of keys that a mask shows.
    pub const BLOCKS_WARPS: u32 = 16;
    /// Rows of a head that a block packs or unpacks.
    pub const PACK_ROWS: u32 = 64;
    /// Rows of a head that a block spreads or gathers, a quarter of a warp each.
    pub const SPREAD_ROWS: u32 = 4 * Self::WARPS;
    /// Warps of a block that rounds v to e4m3, or finds moments.
    pub const ROUND_WARPS: u32 = 8;
    /// Warps of a block that rounds rows of q or k.
    pub const ROW_WARPS: u32 = 16;
    const BULK_STAGES: u32 = 2;

    /// Element type; kernels that serve all types have none.
    pub fn dtype(self) -> Option<Dtype> {
        match self {
            Auxiliary::Combine(dtype)
            | Auxiliary::Merge(dtype)
            | Auxiliary::MergeBackward(dtype)
            | Auxiliary::Append(dtype)
            | Auxiliary::AppendE4m3(dtype)
            | Auxiliary::RoundRows(dtype)
            | Auxiliary::Moments(dtype)
            | Auxiliary::RoundValues(dtype) => Some(dtype),
            _ => None,
        }
    }

    /// Whether it rounds rows of q or k, of whatever type.
    fn rounds_rows(self) -> bool {
        matches!(self, Auxiliary::RoundRows(_) | Auxiliary::ScaleRows)
    }

    /// Whether it rounds v, of whatever type.
    fn rounds_values(self) -> bool {
        matches!(self, Auxiliary::RoundValues(_) | Auxiliary::TransposeValues)
    }

    /// Its name, without the element type; its parameter block, the module of what it calls, and that.
    #[rustfmt::skip]
    fn facts(self) -> (&'static str, &'static str, &'static str, Generic) {
        let w = self.threads() / 32;
        match self {
            Auxiliary::Combine(_) => ("combine", "ForwardParams", "attention::auxiliary::combine", generic! { combine: W = w }),
            Auxiliary::Merge(_) => ("merge", "MergeParams", "attention::auxiliary::merge", generic! { merge: W = w }),
            Auxiliary::MergeBackward(_) => {
                ("merge_backward", "MergeBackwardParams", "attention::auxiliary::merge", generic! { merge_backward: W = w })
            }
            Auxiliary::Append(_) => ("append", "AppendParams", "attention::auxiliary::append", generic! { append: W = w }),
            Auxiliary::AppendE4m3(_) => {
                ("append_e4m3", "AppendE4m3Params", "attention::auxiliary::append", generic! { append_e4m3: W = w })
            }
            Auxiliary::Csr => ("csr", "CsrParams", "attention::auxiliary::csr", generic! { csr: W = w, PAGES = Self::CSR_PAGES }),
            Auxiliary::Pack => ("pack", "PackParams", "attention::auxiliary::pack", generic! { pack: W = w, BR = Self::PACK_ROWS }),
            Auxiliary::Unpack => {
                ("unpack", "PackParams", "attention::auxiliary::pack", generic! { unpack: W = w, BR = Self::PACK_ROWS })
            }
            Auxiliary::Spread => ("spread", "SpreadParams", "attention::auxiliary::spread", generic! { spread: W = w }),
            Auxiliary::Gather => ("gather", "SpreadParams", "attention::auxiliary::spread", generic! { gather: W = w }),
            Auxiliary::RoundRows(_) => {
                ("round_rows", "RoundRowsParams", "attention::auxiliary::round_rows", generic! { round_rows: W = w })
            }
            Auxiliary::Moments(_) => {
                ("moments", "RoundValuesParams", "attention::auxiliary::round_values", generic! { moments: W = w })
            }
            Auxiliary::RoundValues(_) => {
                ("round_values", "RoundValuesParams", "attention::auxiliary::round_values", generic! { round_values: W = w })
            }
            Auxiliary::ScaleRows => {
                ("scale_rows", "RoundRowsParams", "attention::auxiliary::round_rows", generic! { round_rows: W = w })
            }
            Auxiliary::TransposeValues => {
                ("transpose_values", "RoundValuesParams", "attention::auxiliary::round_values", generic! { round_values: W = w })
            }
            Auxiliary::Ranges => ("ranges", "RangesParams", "attention::auxiliary::find_ranges", generic! { find_ranges: W = w }),
            Auxiliary::Blocks => ("blocks", "BlockMapParams", "attention::auxiliary::find_blocks", generic! { find_blocks: W = w }),
            Auxiliary::BulkCopy => {
                ("bulk_copy", "BulkCopyParams", "bulk_copy", generic! { bulk_copy: STAGES = Self::BULK_STAGES })
            }
        }
    }
}

/// All kernels but the bulk copy.
pub(super) fn all() -> impl Iterator<Item = Auxiliary> {
    use Auxiliary::{
        Append, AppendE4m3, Blocks, Combine, Csr, Gather, Merge, MergeBackward, Moments, Pack,
        Ranges, RoundRows, RoundValues, ScaleRows, Spread, TransposeValues, Unpack,
    };
    let of_types = [
        Combine,
        Merge,
        MergeBackward,
        Append,
        AppendE4m3,
        RoundRows,
        Moments,
        RoundValues,
    ]
    .into_iter();
    let of_types = of_types.flat_map(|of: fn(Dtype) -> Auxiliary| Dtype::ALL.map(of));
    of_types.chain([
        Csr,
        Pack,
        Unpack,
        Spread,
        Gather,
        ScaleRows,
        TransposeValues,
        Ranges,
        Blocks,
    ])
}

impl Spec for Auxiliary {
    fn name(&self) -> String {
        let (name, ..) = self.facts();
        match self.dtype() {
            Some(dtype) => format!("{name}_{}", dtype.name()),
            None => name.to_owned(),
        }
    }

    fn features(&self) -> &'static [Feature] {
        match self {
            Auxiliary::BulkCopy => &[Feature::BulkCopies],
            Auxiliary::AppendE4m3(_) | Auxiliary::Moments(_) => &[Feature::Fp8],
            _ if self.rounds_rows() || self.rounds_values() => &[Feature::Fp8],
            _ => &[],
        }
    }

    /// Shared memory: the pieces of 16 bytes a lane that warps pack at a time; a word for each warp that looks for blocks; the
    /// bulk copy's ring, and two barriers of 8 bytes a stage.
    fn launch(&self) -> Launch {
        match self {
            // With 8 blocks on a multiprocessor the partial results that it loads ahead spill.
            Auxiliary::Combine(_) => Launch::new(Self::WARPS, 7, 0),
            Auxiliary::Pack => Launch::new(Self::WARPS, 8, 16 * 32 * Self::WARPS),
            _ if self.rounds_rows() => Launch::new(Self::ROW_WARPS, 2, 4 * Self::ROW_WARPS),
            // Four words of 8 columns a thread.
            Auxiliary::Moments(_) => {
                Launch::new(Self::ROUND_WARPS, 2, 4 * 8 * 4 * 32 * Self::ROUND_WARPS)
            }
            // Mean and scale of 256 columns, a tile of 128 keys, and a word a warp.
            _ if self.rounds_values() => Launch::new(
                Self::ROUND_WARPS,
                4,
                256 * (8 + 4 * 32) + 4 * Self::ROUND_WARPS,
            ),
            Auxiliary::Blocks => Launch::new(Self::BLOCKS_WARPS, 1, 4 * Self::BLOCKS_WARPS),
            Auxiliary::BulkCopy => Launch::new(2, 1, Self::BULK_STAGES * (BULK_BYTES + 16)),
            _ => Launch::new(Self::WARPS, 8, 0),
        }
    }

    fn instance(&self) -> Instance {
        let (_, params, module, generic) = self.facts();
        let types: &[_] = match self {
            Auxiliary::ScaleRows | Auxiliary::TransposeValues => &["E4m3"],
            _ => &[],
        };
        Instance::new((params, module), self.dtype(), types, generic)
    }
}
