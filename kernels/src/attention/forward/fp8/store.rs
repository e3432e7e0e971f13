//! After the loop over blocks of keys: a warp stores O and lse of its rows.

use super::outer::Outer;
use super::produce::kv_head_index;
use super::softmax::Softmax;
use super::spoil::spoil;
use crate::abi::Fp8Params;
use crate::attention::forward::sm90::job::{Job, Part};
use crate::attention::forward::sm90::kernel::Kernel;
use crate::attention::forward::sm90::store::store_rows;
use crate::attention::options::score::Score;
use crate::attention::workload::heads::Heads;
use crate::attention::{self, SoftmaxScale, Total};
use crate::ptx::{global, math, shuffle, special};
use crate::tile::Accumulator;
use crate::tile::registers::again;
use crate::tile::whole::scale_rows;

/// Lines 12 to 15 for the warp's 16 rows. V has its scale and its mean again, and sums take in the sink. Rows that see a value which is not
/// finite have NaN.
///
/// # Safety
/// The conditions of [`fp8`](super::fp8); every lane of the warp makes the same call, after its last product.
#[inline(always)]
pub unsafe fn store<K: Kernel, U: Outer, const OT: usize>(
    launch: &Fp8Params,
    job: Job,
    mut o: [Accumulator; OT],
    outer: U,
    softmax: Softmax,
) {
    let params = &launch.forward;
    // Held over the loop, it spills 16 to 112 bytes.
    let part = again(|| Part::<K>::new(params, job, K::tile_row()));
    let lane = special::lane();
    let kv_head = kv_head_index(launch, &part);
    let columns = u64::from(kv_head) * u64::from(params.dim);
    // SAFETY: the caller's promise.
    unsafe {
        spoil(launch, &part, kv_head, &mut o);
        let totals = softmax
            .sum
            .map(|sum| shuffle::reduce::<4>(sum, |a, b| a + b));
        for dt in 0..OT {
            outer.add_to(&mut o[dt], dt);
            for half in 0..2 {
                let column = 16 * dt as u32 + 8 * half as u32 + 2 * (lane % 4);
                let mut two = [0.0; 4];
                if column < params.dim {
                    let column = columns + u64::from(column);
                    two = global::load_f32x4(launch.columns + 8 * column);
                }
                for i in 0..4 {
                    let (scale, mean) = (two[2 * (i % 2)], two[2 * (i % 2) + 1]);
                    let o = &mut o[dt].0[4 * half + i];
                    *o = math::fma(*o, scale, totals[i / 2] * mean);
                }
            }
        }
        let mut sums = attention::Softmax::<1>::new(SoftmaxScale::new(params.scale));
        let split = part.work.keys(params);
        let sink = K::Score::sink(params, split, part.work.heads.first());
        let mut changes = [1.0; 2];
        for r in 0..2 {
            let total = Total {
                max: softmax.reference[r],
                sum: softmax.sum[r],
            };
            let (total, change) = with_sink(total, sink);
            changes[r] = change;
            sums.resume(0, r, total);
        }
        if !K::Score::SCALED {
            scale_rows(&mut o, changes);
        }
        let place = [part.first, 0];
        store_rows::<K::Element, K::Score, _, OT>(params, &part.work, place, lane, o, &sums);
    }
}

/// The lane's part of a row's sum with a sink, and the factor of the row of O. No branch: the assembler takes it for one of lanes.
#[inline(always)]
fn with_sink(total: Total, sink: f32) -> (Total, f32) {
    let is_larger = total.max < sink;
    let max = if is_larger { sink } else { total.max };
    let power = |score: f32| {
        let power = math::exp2(score - max);
        // Equal infinities have no difference.
        if score == max { 1.0 } else { power }
    };
    let (change, of_sink) = (power(total.max), power(sink));
    let counts = special::lane().is_multiple_of(4) & (sink != f32::NEG_INFINITY);
    let of_lane = if counts { of_sink } else { 0.0 };
    let sum = math::fma(total.sum, change, of_lane);
    (Total { max, sum }, change)
}
