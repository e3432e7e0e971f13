//! Gradients of rows whose lse is [far](crate::abi::FAR_LSE) from 0.
//!
//! A far lse has no digits in f32 for the logarithm of the row's sum: where a bias of the lowest number lies on all of `n` keys,
//! `exp(s - lse)` is 1 for each, not `1 / n`. The main kernels leave far rows out, by a lse of infinity in the statistics. Then
//! two kernels find their sums, in two parts, and their gradients: dq is stored, dk and dv are added to what is there.
//!
//! Far rows are rare, so these kernels are simple and slow: a warp, and tiles of 16 queries by 16 keys. Where no row is far, they
//! look at one number.
//!
//! | module | what it holds |
//! |---|---|
//! | `sums` | the kernel that finds far rows and their sums |
//! | `queries` | dq of far rows, and what they give to the gradient of a bias |
//! | `keys` | what far rows give to dk and dv |
//! | `heads` | scores, P and dS of a tile of a head |
//! | `tiles` | tiles in shared memory and in registers |

mod heads;
mod keys;
mod queries;
mod sums;
mod tiles;

use crate::abi::BackwardParams;
use crate::attention::options::mask::Mask;
use crate::attention::options::score::Score;
use crate::ptx::{global, shuffle, special};
use crate::tile::Element;
pub use sums::far_sums;
use tiles::TILE;

/// Queries of a block that looks for far rows: they share a mark.
const ROWS: u32 = 128;

/// Slices of 16 columns of a block that computes gradients.
const PART: usize = 4;

/// Stores dq of far rows, and adds what far rows give to dk and dv: a job for each mark, then one for each 16 keys of each key/value
/// head, both once for each 64 columns. Blocks take jobs in turns.
///
/// # Safety
/// The conditions of [`far_sums`], which ran before, as did the kernels that write dq, dk and dv of other rows.
#[inline(always)]
pub unsafe fn far_gradients<E: Element, M: Mask, C: Score>(params: &BackwardParams) {
    let forward = &params.forward;
    let parts = forward
        .dim
        .max(C::value_dim(forward))
        .div_ceil(16 * PART as u32);
    let marks = params.padded_rows / ROWS;
    let of_queries = forward.batch_heads * marks;
    let kv_heads = forward.batch_heads / forward.group.value;
    let jobs = of_queries + kv_heads * forward.seqlen_kv.div_ceil(TILE);
    // SAFETY: the caller's promise.
    unsafe {
        if !has_far_rows(params) {
            return;
        }
        let mut job = special::block();
        while job < jobs * parts {
            let (job_of_part, part) = (job / parts, job % parts);
            if job_of_part >= of_queries {
                keys::gradients::<E, M, C>(params, job_of_part - of_queries, part);
            } else if global::load_u32(params.far_marks + 4 * u64::from(job_of_part)) != 0 {
                let (head_index, mark) = (job_of_part / marks, job_of_part % marks);
                queries::gradients::<E, M, C>(params, head_index, mark, part);
            }
            job += special::blocks();
        }
    }
}

/// Whether there are far rows.
///
/// # Safety
/// The kernel that prepares the rows has run.
#[inline(always)]
pub unsafe fn has_far_rows(params: &BackwardParams) -> bool {
    // SAFETY: the caller's promise.
    params.far_count != 0 && unsafe { global::load_u32(params.far_count) } != 0
}

/// Addresses of what far rows have beside the statistics, from one row on.
struct FarRows {
    /// The largest score, in base 2.
    max: u64,
    /// 1 over the sum of the exponentials; 0 where the row is not far.
    inverse: u64,
}

#[inline(always)]
fn far_rows(params: &BackwardParams, head_index: u32, row: u32) -> FarRows {
    let max = params.far + (params.statistics(u64::from(head_index), row) - params.rows);
    FarRows {
        max,
        inverse: max + 4 * u64::from(params.padded_rows),
    }
}

/// Address of the mark of rows of a head: not 0 if one of them is far.
#[inline(always)]
fn mark_of(params: &BackwardParams, head_index: u32, mark: u32) -> u64 {
    let marks = u64::from(params.padded_rows / ROWS);
    params.far_marks + 4 * (u64::from(head_index) * marks + u64::from(mark))
}

/// 1 over the sum of a far row, 0 of others.
///
/// # Safety
/// [`far_sums`] has run, and the row is one of the padded head.
#[inline(always)]
unsafe fn inverse_of(params: &BackwardParams, head_index: u32, row: u32) -> f32 {
    // SAFETY: the caller's promise.
    unsafe { global::load_f32(far_rows(params, head_index, row).inverse) }
}

/// Whether one of 16 rows is far.
///
/// # Safety
/// The conditions of [`inverse_of`], for all rows. Every lane of the warp makes the same call.
#[inline(always)]
unsafe fn is_any_far(params: &BackwardParams, head_index: u32, row: u32) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        let inverse = inverse_of(params, head_index, row + special::lane() % TILE);
        shuffle::or(inverse.to_bits()) != 0
    }
}
