//! After the loop over blocks of keys: a warp stores O and lse of its rows.

use super::produce::kv_head_index;
use super::softmax::Softmax;
use crate::abi::Fp8Params;
use crate::attention::forward::sm90::job::{Job, Part};
use crate::attention::forward::sm90::kernel::Kernel;
use crate::attention::forward::sm90::store::store_rows;
use crate::attention::options::score::Score;
use crate::attention::workload::heads::Heads;
use crate::attention::{self, Total};
use crate::ptx::{global, math, shuffle, special};
use crate::tile::Accumulator;
use crate::tile::registers::again;

/// Lines 12 to 15 for the warp's 16 rows: V has its scale and its mean again.
///
/// # Safety
/// The conditions of [`fp8`](super::fp8); every lane of the warp makes the same call, after its last product.
#[inline(always)]
pub unsafe fn store<K: Kernel, const OT: usize>(
    launch: &Fp8Params,
    job: Job,
    mut o: [Accumulator; OT],
    softmax: Softmax,
) {
    let params = &launch.forward;
    let part = again(|| Part::<K>::new(params, job, K::tile_row()));
    let lane = special::lane();
    let columns = 8 * u64::from(kv_head_index(launch, &part)) * u64::from(params.dim);
    // SAFETY: the caller's promise.
    unsafe {
        let totals = softmax
            .sum
            .map(|sum| shuffle::reduce::<4>(sum, |a, b| a + b));
        for dt in 0..OT {
            for half in 0..2 {
                let column = 16 * dt as u32 + 8 * half as u32 + 2 * (lane % 4);
                let mut two = [0.0; 4];
                if column < params.dim {
                    let address = launch.columns + columns + 8 * u64::from(column);
                    two = global::load_f32x4(address);
                }
                for i in 0..4 {
                    let (scale, mean) = (two[2 * (i % 2)], two[2 * (i % 2) + 1]);
                    let o = &mut o[dt].0[4 * half + i];
                    *o = math::fma(*o, scale, totals[i / 2] * mean);
                }
            }
        }
        let scale = K::Score::new(params, part.work.sequence.batch, part.work.heads.first());
        let mut sums = attention::Softmax::<1>::new(scale.scale());
        for r in 0..2 {
            let total = Total {
                max: softmax.reference[r],
                sum: softmax.sum[r],
            };
            sums.resume(0, r, total);
        }
        let place = [part.first, 0];
        store_rows::<K::Element, K::Score, _, OT>(params, &part.work, place, lane, o, &sums);
    }
}
