//! dq, from f32 sums to 16 bits.

use crate::abi::BackwardParams;
use crate::attention::workload::sequence::Sequence;
use crate::layout::{element, rows::Rows, sum};
use crate::ptx::{global, special};
use crate::tile::whole::row_chunk;
use crate::tile::{Accumulator, Element};

/// Multiplies sums of dq by the scale and stores them: 16 rows and 32 columns a warp, with `W` warps a block.
///
/// # Safety
/// Launched as [`BackwardParams`] and the kernel's row of the [catalog](crate::catalog) say, with written sums,
/// readable lse and a writable dq.
#[inline(always)]
pub unsafe fn convert<E: Element, const W: u32>(params: &BackwardParams) {
    let forward = &params.forward;
    // SAFETY: the launch has this many threads a block.
    let thread = unsafe { special::thread(32 * W) };
    let lane = thread % 32;
    let warp = special::block() * W + thread / 32;
    let (slabs, head_tiles) = (params.sum_columns / 32, params.padded_rows / sum::TILE);
    let (tile, slab) = (warp / slabs, warp % slabs);
    let (head_index, first) = (tile / head_tiles, tile % head_tiles * sum::TILE);
    let sequence = Sequence::new(forward, head_index / forward.heads);
    // Warps past the last tile, and warps that have padding alone.
    if head_index >= forward.batch_heads || first >= sequence.queries {
        return;
    }
    let number = sum::tile(u64::from(tile), 2 * slab, params.sum_columns);
    let sums = params.dq_sum + 4 * 256 * number;
    let mut tiles = [Accumulator::ZERO; 2];
    for t in 0..2 {
        for i in 0..8 {
            let place = 256 * t as u32 + sum::place(lane, i as u32);
            // SAFETY: the sums are written.
            let sum = unsafe { global::load_f32(sums + 4 * u64::from(place)) };
            tiles[t].0[i] = sum * forward.scale;
        }
    }
    let head = head_index % forward.heads;
    let dq = sequence.head_rows(&params.dq, head, forward.dim);
    let column = 32 * slab + 8 * (lane % 4);
    for r in 0..2 {
        // SAFETY: every lane of the warp reaches this call.
        let chunk = unsafe { row_chunk::<E>(tiles, r as usize, lane) };
        let row = first + lane / 4 + 8 * r;
        if row < sequence.queries && column < forward.dim {
            let lse = forward.lse + 4 * params.lse_index(u64::from(head_index), row);
            // SAFETY: the row exists.
            let sees_none = unsafe { global::load_f32(lse) } == f32::NEG_INFINITY;
            // Its sum is NaN where a key is infinite: 0 times infinity.
            let chunk = if sees_none { [0; 4] } else { chunk };
            let address = element::at(dq.at(row), column);
            // SAFETY: only this lane stores these elements, and the row has as many.
            unsafe {
                if params.dq_aligned != 0 {
                    global::store_u32x4(address, chunk);
                } else {
                    global::store_elements(address, chunk, forward.dim - column);
                }
            }
        }
    }
}
