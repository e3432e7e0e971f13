//! Far rows, and their sums.

use super::heads::Heads;
use super::tiles::TILE;
use super::{ROWS, far_rows, has_far_rows, mark_of};
use crate::abi::BackwardParams;
use crate::attention::Total;
use crate::attention::options::mask::Mask;
use crate::attention::options::score::Score;
use crate::ptx::{barrier, global, math, shuffle, special};
use crate::tile::Element;

/// Finds the sums of far rows, and marks where there are any: blocks take marks in turns.
///
/// # Safety
/// Launched as [`BackwardParams`] and the kernel's row of the [catalog](crate::catalog) say, with written statistics, readable
/// inputs, and writable sums and marks.
#[inline(always)]
pub unsafe fn far_sums<E: Element, M: Mask, C: Score>(params: &BackwardParams) {
    let marks = params.padded_rows / ROWS;
    // SAFETY: the caller's promise.
    unsafe {
        if !has_far_rows(params) {
            return;
        }
        let mut job = special::block();
        while job < params.forward.batch_heads * marks {
            sums_of::<E, M, C>(params, job / marks, job % marks);
            job += special::blocks();
        }
    }
}

/// Finds the sums of the far rows under a mark.
///
/// # Safety
/// The conditions of [`far_sums`].
#[inline(always)]
unsafe fn sums_of<E: Element, M: Mask, C: Score>(
    params: &BackwardParams,
    head_index: u32,
    mark: u32,
) {
    let (forward, lane) = (&params.forward, special::lane());
    let first = ROWS * mark;
    // SAFETY: the caller's promise; all branches depend on the block alone, or reach no collective instruction.
    unsafe {
        let pair = Heads::<M, C>::new(
            forward,
            head_index / forward.heads,
            head_index % forward.heads,
        );
        let rows = far_rows(params, head_index, first + 4 * lane);
        let mut is_any_far = 0;
        for i in 0..4 {
            let is_far = pair.is_far(params, first + 4 * lane + i);
            global::store_f32(rows.max + 4 * u64::from(i), 0.0);
            global::store_f32(rows.inverse + 4 * u64::from(i), 0.0);
            is_any_far |= u32::from(is_far);
        }
        let is_any_far = shuffle::or(is_any_far);
        if lane == 0 {
            global::store_u32(mark_of(params, head_index, mark), is_any_far);
        }
        if is_any_far == 0 {
            return;
        }
        // The zeros come before the sums.
        barrier::warp();
        let mut row = first;
        while row < (first + ROWS).min(pair.sequence.queries) {
            let is_far = pair.is_far(params, row + lane % TILE);
            if shuffle::or(u32::from(is_far)) != 0 {
                let totals = pair.totals::<E>(forward, row);
                for r in 0..2 {
                    let row = row + lane / 4 + 8 * r as u32;
                    let Total { max, sum } = totals[r];
                    if lane % 4 == 0 && pair.is_far(params, row) && sum > 0.0 {
                        let rows = far_rows(params, head_index, row);
                        global::store_f32(rows.max, max);
                        global::store_f32(rows.inverse, math::reciprocal(sum));
                    }
                }
            }
            row += TILE;
        }
    }
}
