//! After the loop over blocks of keys: a warp stores O and lse of its rows.

use super::outer::Outer;
use super::produce::kv_head_index;
use super::softmax::Softmax;
use crate::abi::Fp8Params;
use crate::attention::forward::sm90::job::{Job, Part};
use crate::attention::forward::sm90::kernel::Kernel;
use crate::attention::forward::sm90::store::store_rows;
use crate::attention::options::mask::{Interval, Mask};
use crate::attention::options::score::Score;
use crate::attention::workload::heads::Heads;
use crate::attention::{self, Total};
use crate::layout::fragment;
use crate::ptx::{global, math, shuffle, special, vote};
use crate::tile::Accumulator;
use crate::tile::registers::{again, fence};
use crate::tile::whole::map_rows;
use core::hint::cold_path;

/// Lines 12 to 15 for the warp's 16 rows: V has its scale and its mean again, and rows that see a key which is not finite have NaN.
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
    let part = again(|| Part::<K>::new(params, job, K::tile_row()));
    let lane = special::lane();
    let head = u64::from(kv_head_index(launch, &part));
    let columns = head * u64::from(params.dim);
    // SAFETY: the caller's promise.
    unsafe {
        if vote::any(global::load_u32(launch.has_wrong + 4 * head) != 0) {
            cold_path();
            spoil(launch.wrong_keys + 4 * columns, params.dim, &part, &mut o);
        }
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

/// Puts NaN into those of so many columns of O where a row sees a key that is not finite; `wrong_keys` has the first
/// one of each column, counted down.
///
/// # Safety
/// The numbers are readable, and every lane of the warp makes the same call.
#[inline(always)]
unsafe fn spoil<K: Kernel, const OT: usize>(
    wrong_keys: u64,
    columns: u32,
    part: &Part<K>,
    o: &mut [Accumulator; OT],
) {
    let [ends] = map_rows::<_, 1>(|row| {
        let row = (part.first + row as i32).max(0) as u32;
        part.mask.keys(part.work.query(row)).end()
    });
    let lane = special::lane();
    for dt in 0..OT {
        // SAFETY: the caller's promise. Else the assembler reads all columns ahead.
        unsafe { fence() }
        for i in 0..8 {
            let column = 16 * dt as u32 + fragment::accumulator(lane, i as u32).1;
            if column < columns {
                // SAFETY: the caller's promise.
                let wrong = unsafe { global::load_u32(wrong_keys + 4 * u64::from(column)) };
                if ((Fp8Params::NO_KEY - wrong) as i32) < ends[i / 2 % 2] {
                    o[dt].0[i] = f32::NAN;
                }
            }
        }
    }
}
