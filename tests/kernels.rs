//! Every kernel of the catalog at its own head dim and at the smallest one that it serves, aligned and not.

use attention::emulator::Options;
use attention::{Class, Device, Error, kernel};
use kernels::catalog::wide::WIDE_DIMS;
use kernels::catalog::{Family, HEAD_DIMS, KERNELS, Kernel};
use libtest_mimic::Completion;
use tests::{Case, Layout, PASSED, Test};

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    KERNELS
        .iter()
        .filter(|kernel| !kernel.family.is_gemm())
        .map(|kernel| {
            Test::new(kernel.name, move |device| {
                let emulated;
                let device = if device.is_emulator() {
                    emulated = emulated_for(kernel)?;
                    &emulated
                } else {
                    device
                };
                for case in cases(kernel) {
                    let fits = kernel::check(device, kernel.name, kernel.dtype, &case.problem()?);
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

/// An emulated GPU of a class that the kernel is for: others may lack the shared memory.
fn emulated_for(kernel: &Kernel) -> Result<Device, Error> {
    let class = Class::ALL.iter().find(|class| kernel.is_for(**class));
    Device::emulator_of(*class.expect("of some class"), Options::default())
}

fn cases(kernel: &'static Kernel) -> impl Iterator<Item = Case> {
    let mut dims = HEAD_DIMS.iter().chain(WIDE_DIMS).rev();
    let below = dims.find(|&&dim| dim < kernel.head_dim);
    let below = match kernel.family {
        // These kernels serve every head dim.
        Family::Combine | Family::Pack => 0,
        _ => *below.unwrap_or(&0),
    };
    let dims = [below + 8, kernel.head_dim];
    let masks = [false, true].into_iter();
    let masks = masks.filter(|&causal| match kernel.family {
        Family::Combine | Family::Pack => true,
        family => family.serves(causal),
    });
    let variants = masks.flat_map(move |causal| dims.map(|dim| (causal, dim)));
    variants.flat_map(move |(causal, dim)| {
        [(Layout::Bnhd, 1), (Layout::OddRows, 3)].map(|(layout, splits)| {
            let computes = !matches!(kernel.family, Family::Combine | Family::Pack);
            // Products of wide heads take the emulator long.
            let key_blocks = if kernel.family == Family::Wide { 2 } else { 5 };
            Case {
                dtype: kernel.dtype,
                batch: 2,
                heads: 4,
                kv_heads: 2,
                // Two whole query tiles and a ragged one; five whole key blocks and a ragged one.
                seqlen_q: 2 * kernel.tile.q_rows as usize + 37,
                seqlen_kv: key_blocks * kernel.tile.keys.max(64) as usize + 21,
                dim: dim as usize,
                causal,
                // The combine kernel runs after one that splits, the pack kernel before any.
                kernel: computes.then(|| kernel.name.to_owned()),
                splits: if computes { splits } else { 4 },
                q: layout,
                k: layout,
                v: layout,
                o: layout,
                ..Case::default()
            }
        })
    })
}
