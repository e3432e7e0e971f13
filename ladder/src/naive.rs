//! `naive`: S = scale Q K^T, P = softmax(S) and O = P V in three launches, with S in global memory.
//!
//! No tensor cores, no shared memory: a thread computes elements of S, then a row of P, then elements of O, by the
//! definition. It writes `seqlen_q * seqlen_kv` scores three times and reads them four times.

use crate::half;
use crate::options::{NAIVE_ROWS, NaivePass};
use crate::params::LadderParams;
use kernels::abi::ForwardParams;
use kernels::attention::WorkTile;
use kernels::attention::options::mask::{Either, Mask};
use kernels::attention::options::score::Scaled;
use kernels::attention::workload::heads::OneHead;
use kernels::attention::{SoftmaxScale, Total};
use kernels::layout::rows::{Rows, Strided};
use kernels::ptx::{global, math, special};
use kernels::tile::Element;

/// Computes a pass over the block's rows.
///
/// # Safety
/// Launched for each pass in turn as [`LadderParams`] and the kernel's
/// [specification](crate::catalog) say, with room for all scores.
#[inline(always)]
pub unsafe fn naive<E: Element>(params: &LadderParams) {
    let p = &params.forward;
    let place = WorkTile::<OneHead>::of_block::<Scaled>(p, NAIVE_ROWS);
    // SAFETY: the launch has a thread for each row.
    let thread = unsafe { special::thread(NAIVE_ROWS) };
    let last = (place.first + NAIVE_ROWS).min(p.seqlen_q);
    let mask = Either::new(p, place.sequence, place.sequence.whole());
    let (q, o) = (place.q_rows(&p.q), place.q_rows(&p.o));
    let (k, v) = (place.kv_rows(&p.k, 0), place.kv_rows(&p.v, 0));
    let element = |rows: &Strided, row: u32, d: u32| rows.at(row) + 2 * u64::from(d);
    let score = |row: u32, key: u32| {
        let scores = place.partial(p, row) * u64::from(p.seqlen_kv) + u64::from(key);
        p.partial_o + 4 * scores
    };
    let pass = params.options.pass;
    // SAFETY: the caller's promise: rows, keys and columns exist, and each result is one thread's.
    unsafe {
        let read = |rows, row, d| E::widen(global::load_u16(element(rows, row, d)));
        if pass == NaivePass::Softmax as u32 {
            if place.first + thread < last {
                let row = place.first + thread;
                softmax_row(p, &place, row, mask.keys(row as i32).end as u32, |key| {
                    score(row, key)
                });
            }
            return;
        }
        let scale = half::signed(SoftmaxScale::new(p.scale));
        for row in place.first..last {
            let keys = mask.keys(row as i32).end as u32;
            let columns = if pass == NaivePass::Scores as u32 {
                keys
            } else {
                p.dim
            };
            // Neighbouring threads take neighbouring columns.
            let mut column = thread;
            while column < columns {
                let mut sum = 0.0;
                if pass == NaivePass::Scores as u32 {
                    for d in 0..p.dim {
                        sum = math::fma(read(&q, row, d), read(&k, column, d), sum);
                    }
                    global::store_f32(score(row, column), scale * sum);
                } else {
                    for key in 0..keys {
                        let probability = global::load_f32(score(row, key));
                        sum = math::fma(probability, read(&v, key, column), sum);
                    }
                    global::store_u16(element(&o, row, column), E::pack(sum, 0.0) as u16);
                }
                column += NAIVE_ROWS;
            }
        }
    }
}

/// Turns a row of scores, in base 2, into probabilities, and stores its lse.
#[inline(always)]
unsafe fn softmax_row(
    p: &ForwardParams,
    place: &WorkTile<OneHead>,
    row: u32,
    keys: u32,
    score: impl Fn(u32) -> u64,
) {
    // SAFETY: the caller's promise, as for [`naive`].
    unsafe {
        let mut max = f32::NEG_INFINITY;
        for key in 0..keys {
            max = max.max(global::load_f32(score(key)));
        }
        // If all scores are -inf, so is the maximum: subtracting 0 instead gives 2^-inf = 0, not NaN.
        let reference = if max == f32::NEG_INFINITY { 0.0 } else { max };
        let mut sum = 0.0;
        for key in 0..keys {
            let exponential = math::exp2(global::load_f32(score(key)) - reference);
            sum += exponential;
            global::store_f32(score(key), exponential);
        }
        let (factor, lse) = Total { max, sum }.finish();
        for key in 0..keys {
            global::store_f32(score(key), global::load_f32(score(key)) * factor);
        }
        global::store_f32(place.lse(p, row), lse);
    }
}
