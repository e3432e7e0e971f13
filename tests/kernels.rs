//! Every kernel of the catalog at its own head dim and at the smallest one that it serves, aligned and not.

use ferroattn::emulator::Options;
use ferroattn::{Device, Error, RawOptions, kernel};
use kernels::catalog::{
    Auxiliary, Dtype, Family, Forward, HEAD_DIMS, KERNELS, Kernel, MAX_HEAD_DIM, WIDE_DIMS,
};
use libtest_mimic::Completion;
use tests::{Case, Layout, PASSED, Test};

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    KERNELS
        .iter()
        .filter(|kernel| {
            !matches!(
                kernel.family,
                Family::Backward(_)
                    | Family::HopperBackward(_)
                    | Family::Gemm(_)
                    | Family::Auxiliary(
                        Auxiliary::BulkCopy | Auxiliary::Merge(_) | Auxiliary::MergeBackward(_)
                    )
            )
        })
        .map(|kernel| {
            Test::kernels(kernel.name, move |device| {
                let emulated;
                let device = if device.is_emulator() {
                    emulated = Device::emulator_of(kernel.class().into(), Options::default())?;
                    &emulated
                } else {
                    device
                };
                let cases = cases(kernel, device.is_emulator());
                // A bf16 kernel is its f16 twin's text with other types: one case, unaligned and split, shows that they are
                // right.
                let is_twin = kernel.dtype() == Some(Dtype::Bf16) && device.is_emulator();
                let cases = match is_twin {
                    true => cases.skip(3).take(1).collect::<Vec<_>>(),
                    false => cases.collect(),
                };
                for case in cases {
                    let mut options = RawOptions::default();
                    options.values_in_keys = case.values_in_keys;
                    let fits = kernel::check(
                        device.facts(),
                        kernel.name,
                        case.dtype,
                        &case.problem()?,
                        &options,
                    );
                    // This GPU may lack what the kernel needs.
                    if let Err(error @ Error::SharedMemory { .. }) = fits {
                        return Ok(Completion::ignored_with(error));
                    }
                    case.check(device)?;
                }
                PASSED
            })
        })
        .collect()
}

/// The computation of a case, whatever its layout.
struct Size {
    dim: u32,
    /// Batch entries, query heads and key/value heads.
    heads: [usize; 3],
    /// Whole tiles of queries, beside a ragged one.
    tiles: u32,
    /// Whole blocks of keys, beside a ragged one.
    blocks: u32,
}

impl Size {
    /// The smallest head dim that a kernel serves, then its own. On GPUs both have several heads of several tiles. On the
    /// emulator one has heads enough for all offsets, the other tiles and blocks enough for all steps of the main loop.
    fn both([smallest, own]: [u32; 2], is_emulated: bool) -> [Size; 2] {
        let several = [2, 4, 2];
        // Products of wide heads take the emulator long.
        let many_blocks = if own > 256 { 2 } else { 5 };
        let size = |dim, heads, tiles, blocks| Size {
            dim,
            heads,
            tiles,
            blocks,
        };
        match is_emulated {
            true => [
                size(smallest, several, 0, 1),
                size(own, [1, 2, 1], 1, many_blocks),
            ],
            false => [smallest, own].map(|dim| size(dim, several, 2, many_blocks)),
        }
    }
}

/// Cases of a kernel: of a combine kernel the cases of a kernel that splits, of the pack kernel unaligned ones.
fn cases(kernel: &'static Kernel, is_emulated: bool) -> impl Iterator<Item = Case> {
    let dtype = kernel.dtype().unwrap_or(Dtype::F16);
    let forward = kernel.forward();
    let (dims, [tile, block]) = match forward {
        Some(Forward { dim, tile, .. }) => {
            let below = HEAD_DIMS.iter().chain(WIDE_DIMS).rev();
            let below = below.copied().find(|below| below < dim).unwrap_or(0);
            ([below + 8, *dim], [tile.q_rows, tile.keys.max(64)])
        }
        // They serve every head dim.
        None => ([8, MAX_HEAD_DIM], [64, 64]),
    };
    let masks = [false, true].into_iter();
    let masks =
        masks.filter(move |&causal| forward.is_none_or(|forward| forward.kind.mask.serves(causal)));
    let sizes = move |causal| Size::both(dims, is_emulated).map(|size| (causal, size));
    masks.flat_map(sizes).flat_map(move |(causal, size)| {
        let [batch, heads, kv_heads] = size.heads;
        [(Layout::Bnhd, 1), (Layout::OddRows, 3)]
            .map(|(layout, splits)| Case {
                dtype: dtype.into(),
                batch,
                heads,
                kv_heads,
                seqlen_q: (size.tiles * tile) as usize + 37,
                seqlen_kv: (size.blocks * block) as usize + 21,
                dim: size.dim as usize,
                causal,
                kernel: forward.map(|_| kernel.name.to_owned()),
                splits: if forward.is_some() { splits } else { 4 },
                q: layout,
                k: layout,
                v: layout,
                o: layout,
                ..Case::default()
            })
            .map(Case::as_served)
    })
}
