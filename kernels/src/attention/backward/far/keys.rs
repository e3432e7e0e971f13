//! dk and dv of far rows.

use super::heads::Heads;
use super::tiles::{D_O, Q, TILE, for_each_element, slice, tile};
use super::{PART, ROWS, is_any_far, mark_of};
use crate::abi::{BackwardParams, TensorRef};
use crate::attention::guard::multiply_guarded;
use crate::attention::options::mask::{Interval, Mask};
use crate::attention::options::score::Score;
use crate::attention::workload::sequence::Sequence;
use crate::layout::{element, rows::Rows};
use crate::ptx::{global, math, shuffle, special};
use crate::tile::whole::map_rows;
use crate::tile::{Accumulator, Element};

/// Adds what far rows give to dk and dv of 16 keys of a key/value head, in one part of the columns.
///
/// # Safety
/// The conditions of [`far_gradients`](super::far_gradients).
#[inline(always)]
pub unsafe fn gradients<E: Element, M: Mask, C: Score>(
    params: &BackwardParams,
    place: u32,
    part: u32,
) {
    let (forward, lane) = (&params.forward, special::lane());
    let (marks, group) = (params.padded_rows / ROWS, forward.group.value);
    let key_tiles = forward.seqlen_kv.div_ceil(TILE);
    let (kv_head_index, key) = (place / key_tiles, place % key_tiles * TILE);
    let mut dk = [[Accumulator::ZERO; PART]];
    let mut dv = dk;
    let mut is_any = false;
    // SAFETY: the caller's promise; all branches depend on the block alone, or reach no collective instruction.
    unsafe {
        let mut head_index = kv_head_index * group;
        while head_index < (kv_head_index + 1) * group {
            let mut first_mark = 0;
            while first_mark < marks {
                let mark = first_mark + lane;
                let is_marked = match mark < marks {
                    true => global::load_u32(mark_of(params, head_index, mark)),
                    false => 0,
                };
                // Rows under 32 marks.
                let end = match shuffle::or(is_marked) {
                    0 => 0,
                    _ => (ROWS * (first_mark + 32)).min(forward.seqlen_q),
                };
                let mut row = ROWS * first_mark;
                while row < end {
                    let is_marked = global::load_u32(mark_of(params, head_index, row / ROWS)) != 0;
                    if is_marked && is_any_far(params, head_index, row) {
                        is_any = true;
                        let (batch, head) =
                            (head_index / forward.heads, head_index % forward.heads);
                        let heads = Heads::<M, C>::new(forward, batch, head);
                        heads.load_queries(params, row);
                        heads.load_keys(forward, key);
                        let found = heads.probabilities::<E>(params, head_index, row, key);
                        let seen =
                            map_rows::<_, 1>(|i| heads.queries(key + i).counted_from(row as i32));
                        multiply_guarded::<E, 1, 1, PART>(
                            &mut dv,
                            |_| [found.p.to_operand::<E>()],
                            |_, nt| tile(D_O).b_trans(lane, 0, slice(part, nt)),
                            seen,
                        );
                        multiply_guarded::<E, 1, 1, PART>(
                            &mut dk,
                            |_| [found.by_products().to_operand::<E>()],
                            |_, nt| tile(Q).b_trans(lane, 0, slice(part, nt)),
                            seen,
                        );
                    }
                    row += TILE;
                }
                first_mark += 32;
            }
            head_index += 1;
        }
        if !is_any {
            return;
        }
        let (batch, kv_head) = (
            kv_head_index / forward.tile_heads.value,
            kv_head_index % forward.tile_heads.value,
        );
        let sequence = Sequence::new(forward, batch);
        // Called twice: a loop would put the gradients into memory.
        let add = |tensor: &TensorRef, dim: u32, gradients, factor: f32| {
            let rows = sequence.head_rows(tensor, kv_head, dim);
            for_each_element(gradients, part, dim, |i, column, gradient| {
                if key + i < sequence.keys {
                    let to = element::at(rows.at(key + i), column);
                    let sum = math::fma(gradient, factor, E::widen(global::load_u16(to)));
                    global::store_u16(to, E::pack(sum, 0.0) as u16);
                }
            });
        };
        add(&params.dk, forward.dim, dk, forward.scale);
        add(&params.dv, C::value_dim(forward), dv, 1.0);
    }
}
