//! Every kernel of the catalog at its own head dim and at the smallest one that it serves, aligned and not.

use attention::emulator::Options;
use attention::{Device, Error, RawOptions, kernel};
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
                    | Family::Auxiliary(Auxiliary::BulkCopy)
            )
        })
        .map(|kernel| {
            Test::kernels(kernel.name, move |device| {
                let emulated;
                let device = if device.is_emulator() {
                    emulated = Device::emulator_of(kernel.class(), Options::default())?;
                    &emulated
                } else {
                    device
                };
                // A bf16 kernel is its f16 twin's text with other types: fewer cases show that the types are right.
                let is_twin = kernel.dtype() == Some(Dtype::Bf16);
                let every = if is_twin && device.is_emulator() {
                    3
                } else {
                    1
                };
                for case in cases(kernel).step_by(every) {
                    let fits = kernel::check(
                        device,
                        kernel.name,
                        case.dtype,
                        &case.problem()?,
                        &RawOptions::default(),
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

/// Cases of a kernel: of a combine kernel the cases of a kernel that splits, of the pack kernel unaligned ones.
fn cases(kernel: &'static Kernel) -> impl Iterator<Item = Case> {
    let dtype = kernel.dtype().unwrap_or(Dtype::F16);
    let forward = kernel.forward();
    let (dims, [rows, keys]) = match forward {
        Some(Forward { dim, tile, .. }) => {
            let below = HEAD_DIMS.iter().chain(WIDE_DIMS).rev();
            let below = below.copied().find(|below| below < dim).unwrap_or(0);
            // Products of wide heads take the emulator long.
            let key_blocks = if *dim > 256 { 2 } else { 5 };
            let sizes = [2 * tile.q_rows, key_blocks * tile.keys.max(64)];
            ([below + 8, *dim], sizes)
        }
        // They serve every head dim.
        None => ([8, MAX_HEAD_DIM], [128, 320]),
    };
    let masks = [false, true].into_iter();
    let masks =
        masks.filter(move |&causal| forward.is_none_or(|forward| forward.kind.serves(causal)));
    let variants = masks.flat_map(move |causal| dims.map(|dim| (causal, dim)));
    variants.flat_map(move |(causal, dim)| {
        [(Layout::Bnhd, 1), (Layout::OddRows, 3)].map(|(layout, splits)| Case {
            dtype: dtype.into(),
            batch: 2,
            heads: 4,
            kv_heads: 2,
            // Whole tiles and a ragged one, of queries and of keys.
            seqlen_q: rows as usize + 37,
            seqlen_kv: keys as usize + 21,
            dim: dim as usize,
            causal,
            kernel: forward.map(|_| kernel.name.to_owned()),
            splits: if forward.is_some() { splits } else { 4 },
            q: layout,
            k: layout,
            v: layout,
            o: layout,
            ..Case::default()
        })
    })
}
