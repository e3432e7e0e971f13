//! Kernels around the others: sums of partial results, and copies.

use super::{Dtype, Family, Instance, Kernel, Launch, Spec, Target};
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
    /// The moments of the columns of v of e4m3.
    MomentsE4m3,
    /// v of e4m3, scaled by powers of two and transposed.
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
    /// Rows of a head that a block packs or unpacks.
    pub const PACK_ROWS: u32 = 64;
    /// Rows of a head that a block spreads or gathers, a quarter of a warp each.
    pub const SPREAD_ROWS: u32 = 4 * Self::WARPS;
}

/// A kernel's name without the element type, its parameter block, what it calls in `attention::auxiliary`, target, and launch.
#[derive(Clone, Copy)]
struct Row(&'static str, &'static str, &'static str, Target, Launch);

type Of = fn(Dtype) -> Auxiliary;

/// All kernels but the bulk copy.
#[rustfmt::skip]
pub(super) fn all() -> impl Iterator<Item = Kernel> {
    use Auxiliary::*;
    let [sm80, sm90a] = [Target::SM80, Target::SM90A];
    let plain = Launch::new(Auxiliary::WARPS, 8, 0);
    // With 7 blocks on a multiprocessor the partial results that it loads ahead spill.
    let combine = Launch::new(Auxiliary::WARPS, 6, 0);
    // A piece of 16 bytes a lane, which warps pack at a time.
    let pack = Launch::new(Auxiliary::WARPS, 8, 16 * 32 * Auxiliary::WARPS);
    // A word a warp.
    let round_rows = Launch::new(16, 2, 4 * 16);
    let scale_rows = Launch::new(32, 1, 4 * 32);
    let blocks = Launch::new(16, 1, 4 * 16);
    // Four words of 8 columns a thread.
    let moments = Launch::new(8, 2, 4 * 8 * 4 * 32 * 8);
    // Mean and scale of 256 columns, a tile of 128 keys, and a word a warp.
    let round_values = Launch::new(8, 4, 256 * (8 + 4 * 32) + 4 * 8);
    let of_types: [(Of, Row); 8] = [
        (Combine, Row("combine", "ForwardParams", "combine::combine", sm80, combine)),
        (Merge, Row("merge", "MergeParams", "merge::merge", sm80, plain)),
        (MergeBackward, Row("merge_backward", "MergeBackwardParams", "merge::merge_backward", sm80, plain)),
        (Append, Row("append", "AppendParams", "append::append", sm80, plain)),
        (AppendE4m3, Row("append_e4m3", "AppendE4m3Params", "append::append_e4m3", sm90a, plain)),
        (RoundRows, Row("round_rows", "RoundRowsParams", "round_rows::round_rows", sm90a, round_rows)),
        (Moments, Row("moments", "RoundValuesParams", "round_values::moments", sm90a, moments)),
        (RoundValues, Row("round_values", "RoundValuesParams", "round_values::round_values", sm90a, round_values)),
    ];
    let of_all = [
        (Csr, Row("csr", "CsrParams", "csr::csr", sm80, plain)),
        (Pack, Row("pack", "PackParams", "pack::pack", sm80, pack)),
        (Unpack, Row("unpack", "PackParams", "pack::unpack", sm80, plain)),
        (Spread, Row("spread", "SpreadParams", "spread::spread", sm80, plain)),
        (Gather, Row("gather", "SpreadParams", "spread::gather", sm80, plain)),
        (ScaleRows, Row("scale_rows", "RoundRowsParams", "round_rows::round_rows", sm90a, scale_rows)),
        (MomentsE4m3, Row("moments_e4m3", "RoundValuesParams", "round_values::moments", sm90a, moments)),
        (TransposeValues, Row("transpose_values", "RoundValuesParams", "round_values::round_values", sm90a, round_values)),
        (Ranges, Row("ranges", "RangesParams", "find_ranges::find_ranges", sm80, plain)),
        (Blocks, Row("blocks", "BlockMapParams", "find_blocks::find_blocks", sm80, blocks)),
    ];
    let of_types = of_types.map(|(of, row)| Dtype::ALL.map(|dtype| row.kernel(of(dtype), Some(dtype))));
    of_types.into_iter().flatten().chain(of_all.map(|(of, row)| row.kernel(of, None)))
}

impl Row {
    fn kernel(self, of: Auxiliary, element: Option<Dtype>) -> Kernel {
        let Row(name, params, path, target, launch) = self;
        let name = match element {
            Some(dtype) => format!("{name}_{}", dtype.name()),
            None => name.to_owned(),
        };
        let (module, kernel) = path.split_once("::").expect("a module's kernel");
        let module = format!("attention::auxiliary::{module}");
        let mut numbers = vec![("W", (launch.threads / 32).to_string())];
        let mut types = vec![];
        match of {
            Auxiliary::Csr => numbers.push(("PAGES", Auxiliary::CSR_PAGES.to_string())),
            Auxiliary::Pack | Auxiliary::Unpack => {
                numbers.push(("BR", Auxiliary::PACK_ROWS.to_string()))
            }
            Auxiliary::ScaleRows | Auxiliary::MomentsE4m3 | Auxiliary::TransposeValues => {
                types.push("E4m3");
            }
            _ => {}
        }
        let instance = Instance::new((params, &module), element, &types, (kernel, numbers));
        let spec = Spec::new(name, target, launch, instance);
        let family = Family::Auxiliary(of);
        Kernel { family, spec }
    }
}

/// The bulk copy. Shared memory: its ring, and two barriers of 8 bytes a stage.
pub(super) fn bulk_copy() -> Kernel {
    const STAGES: u32 = 2;
    let launch = Launch::new(2, 1, STAGES * (BULK_BYTES + 16));
    let generic = generic! { bulk_copy: STAGES = STAGES };
    let instance = Instance::new(("BulkCopyParams", "bulk_copy"), None, &[], generic);
    let spec = Spec::new("bulk_copy".into(), Target::SM90A, launch, instance);
    let family = Family::Auxiliary(Auxiliary::BulkCopy);
    Kernel { family, spec }
}
