//! What the main loops begin with: which blocks of keys rows see, and the state of their warp.

use crate::abi::ForwardParams;
use crate::attention::options::mask::{Interval, Mask, seen_blocks, whole_blocks};
use crate::attention::options::score::{Corner, Score};
use crate::attention::workload::heads::Heads;
use crate::attention::workload::sequence::Split;
use crate::attention::workload::walk::Runs;
use crate::attention::{Softmax, Team, Warp, WorkTile};
use crate::tile::whole::map_rows;
use crate::tile::{Fixed, SharedTile};
use core::ops::Range;

/// The keys that the first and the last of `count` rows from `first` on see, which may end beyond the last row.
///
/// No `map`, which would leave an array in memory.
#[inline(always)]
pub fn ends<M: Mask, H: Heads>(
    work: &WorkTile<H>,
    mask: &M,
    first: u32,
    count: u32,
) -> [M::Keys; 2] {
    let last = (first + count).min(work.row_count_of::<M>()) - 1;
    [mask.keys(work.query(first)), mask.keys(work.query(last))]
}

/// The blocks of `bc` keys that a tile of `br` rows sees, and their runs, which all its warps share.
#[inline(always)]
pub fn runs<M: Mask, H: Heads>(
    work: &WorkTile<H>,
    mask: &M,
    br: u32,
    bc: u32,
) -> (Range<u32>, Runs<M::Keys>) {
    let ends = ends(work, mask, work.first, br);
    let mut blocks = seen_blocks(ends, bc);
    if !M::Keys::HAS_START {
        blocks.start = 0;
    }
    let runs = Runs::new(blocks.start, blocks.end, whole_blocks(ends, bc));
    (blocks, runs)
}

/// The scores of a tile.
#[inline(always)]
pub fn score<H: Heads, C: Score>(params: &ForwardParams, work: &WorkTile<H>) -> C {
    C::new(params, work.sequence.batch, work.heads.first())
}

/// Line 5, of the warp whose team has the rows from `row` on: they are in `q_tile`.
///
/// # Safety
/// The conditions of [`Warp::new`].
#[inline(always)]
pub unsafe fn warp<
    H: Heads,
    C: Score,
    const MT: usize,
    const DT: usize,
    const OT: usize,
    const QT: usize,
    const T: usize,
>(
    params: &ForwardParams,
    work: &WorkTile<H>,
    split: Split,
    row: u32,
    q_tile: SharedTile<DT>,
    team: &Team<T>,
) -> Warp<MT, DT, OT, QT, Fixed, C> {
    // SAFETY: the caller's promise.
    unsafe { warp_with(score(params, work), params, work, split, row, q_tile, team) }
}

/// [`warp`] with these scores.
///
/// # Safety
/// The conditions of [`Warp::new`].
#[inline(always)]
pub unsafe fn warp_with<
    H: Heads,
    C: Score,
    const MT: usize,
    const DT: usize,
    const OT: usize,
    const QT: usize,
    const T: usize,
>(
    score: C,
    params: &ForwardParams,
    work: &WorkTile<H>,
    split: Split,
    row: u32,
    q_tile: SharedTile<DT>,
    team: &Team<T>,
) -> Warp<MT, DT, OT, QT, Fixed, C> {
    let corner = Corner::new(row as i32, 0, work.sequence, split);
    // SAFETY: the caller's promise.
    let mut warp = unsafe { Warp::new(q_tile, corner, score, team) };
    // A sink counts once in each row.
    let first = team.side == 0;
    take_sinks::<H, C, MT>(&mut warp.softmax, params, work, split, row as i32, first);
    warp
}

/// The sinks of a warp's rows from `row` on, which may lie before row 0, in their sums. Of a team the `first` warp counts them.
#[inline(always)]
pub fn take_sinks<H: Heads, C: Score, const MT: usize>(
    softmax: &mut Softmax<MT>,
    params: &ForwardParams,
    work: &WorkTile<H>,
    split: Split,
    row: i32,
    first: bool,
) {
    let sink = |head| C::sink(params, split, head);
    match H::are_strided() {
        true => softmax.take_sink(sink(work.heads.first()), first),
        false => {
            let head = |i| work.heads.query_and_head((row + i as i32).max(0) as u32).1;
            softmax.take_sinks(map_rows(|i| sink(head(i))), first);
        }
    }
}
