//! dq of far rows, and what they give to the gradient of a bias.

use super::heads::Heads;
use super::tiles::{K, TILE, ds_tile, for_each_element, slice, tile};
use super::{PART, ROWS, inverse_of, is_any_far};
use crate::abi::BackwardParams;
use crate::attention::guard::multiply_guarded;
use crate::attention::options::mask::{Interval, Mask};
use crate::attention::options::score::Score;
use crate::layout::{element, rows::Rows};
use crate::ptx::{barrier, global, special};
use crate::tile::whole::map_rows;
use crate::tile::{Accumulator, Element};

/// Stores dq of the far rows under a mark, in one part of its columns, and adds to the gradient of the bias.
///
/// # Safety
/// The conditions of [`far_gradients`](super::far_gradients).
#[inline(always)]
pub unsafe fn gradients<E: Element, M: Mask, C: Score>(
    params: &BackwardParams,
    head_index: u32,
    mark: u32,
    part: u32,
) {
    let (forward, lane) = (&params.forward, special::lane());
    let heads = Heads::<M, C>::new(
        forward,
        head_index / forward.heads,
        head_index % forward.heads,
    );
    let mut row = ROWS * mark;
    // SAFETY: the caller's promise; all branches depend on the block alone.
    unsafe {
        while row < (ROWS * (mark + 1)).min(heads.sequence.queries) {
            if is_any_far(params, head_index, row) {
                let mut dq = [[Accumulator::ZERO; PART]];
                let keys = heads.keys_of(row);
                let mut key = keys[0];
                heads.load_queries(params, row);
                while key < keys[1] {
                    heads.load_keys(forward, key);
                    let found = heads.probabilities::<E>(params, head_index, row, key);
                    if part == 0 {
                        let head = [heads.sequence.batch, heads.head];
                        let corner = heads.corner(row, key);
                        C::add_gradients::<1, 1, false>(params, head, &[[found.ds]], corner);
                    }
                    let ds = found.by_products().to_operand::<E>();
                    ds_tile().set(lane, 0, 0, ds);
                    barrier::warp();
                    let seen = map_rows::<_, 1>(|i| heads.keys(row + i).counted_from(key as i32));
                    multiply_guarded::<E, 1, 1, PART>(
                        &mut dq,
                        |_| [ds_tile().a_trans(lane, 0, 0, 0)],
                        |_, nt| tile(K).b_trans(lane, 0, slice(part, nt)),
                        seen,
                    );
                    key += TILE;
                }
                let rows = heads.rows(&params.dq, heads.head, forward.dim);
                for_each_element(dq, part, forward.dim, |i, column, gradient| {
                    let row = row + i;
                    if row < heads.sequence.queries && inverse_of(params, head_index, row) > 0.0 {
                        let to = element::at(rows.at(row), column);
                        global::store_u16(to, E::pack(gradient * forward.scale, 0.0) as u16);
                    }
                });
            }
            row += TILE;
        }
    }
}
