//! Flash-decoding: few queries on many keys, which takes as long as reading the keys does.
//!
//! All query heads that share a key/value head lie in one query tile, so that keys and values are
//! read once. K and V pass through a ring of `S` buffers: while one block is worked on, the next
//! `S - 1` are on their way, enough of them to keep the memory busy.
//!
//! With more rows than a tile holds, the products take longer than reading the keys does: that is for the
//! packed kernels of the [main loop](super::sm80), with two m16 tiles a warp.

use crate::abi::ForwardParams;
use crate::attention::mask::{Mask, Packed};
use crate::attention::{Place, SoftmaxScale, Team, Warp, map_rows};
use crate::ptx::{shared, special};
use crate::tile::{Accumulator, Copier, CpAsync, Element, Pipeline, SharedTile};

/// Computes the block's tile of O and lse, on its split of the keys.
///
/// The block has `W` warps, each with 16 rows; the head dim is at most `16 * DT`, and a step takes
/// `16 * NT` keys.
///
/// # Safety
/// As [`forward`](super::sm80).
#[inline(always)]
pub unsafe fn decode<
    E: Element,
    const W: usize,
    const DT: usize,
    const NT: usize,
    const QT: usize,
    const S: usize,
>(
    p: &ForwardParams,
) {
    let (br, bc) = (16 * W as u32, (16 * NT) as u32);
    let threads = 32 * W as u32;
    // SAFETY: the launch has this many threads a block.
    let thread = unsafe { special::thread(threads) };
    let warp_row = thread / 32 * 16;
    let place = Place::<true>::of_block(p, br);
    let (first, rows) = (place.first, Place::<true>::row_count(p));
    let (first_key, keys) = place.keys(p);
    let q = Copier::new(place.q_rows(&p.q), thread, threads);
    let k = Copier::new(place.kv_rows(&p.k, first_key), thread, threads);
    let v = Copier::new(place.kv_rows(&p.v, first_key), thread, threads);

    let mask = Packed::new(p, first_key, keys);
    let trips = mask.trip_count((first + br).min(rows) as i32 - 1, bc);
    let unmasked_trips = mask.unmasked_trip_count(first as i32, bc);

    let qo_tile = SharedTile::<DT>::new(shared::base());
    let k_tile = |j: u32| qo_tile.skip(br + j % S as u32 * 2 * bc);
    let v_tile = |j: u32| k_tile(j).skip(bc);
    // SAFETY: called when no thread reads the tiles any more; readers wait for the copies.
    let load = |j: u32, exist: u32| unsafe {
        k.load(k_tile(j), j * bc, bc, exist);
        v.load(v_tile(j), j * bc, bc, exist);
    };

    let mut pipeline = CpAsync::<S>;
    // SAFETY: every branch here depends on the block or the warp alone, so all threads reach every
    // barrier and all lanes every tensor-core instruction. The barrier at the top of a step makes
    // block j visible, of all threads' copies, and tells that all warps are done with block j + 1,
    // whose tiles are loaded next. Every step closes a group, if of no copies, so that the groups
    // that may be pending are the same in each.
    unsafe {
        q.load(qo_tile, first, br, rows - first);
        for ahead in 1..S as u32 {
            if ahead <= trips {
                // The last block may end beyond the last key.
                let j = trips - ahead;
                load(j, if ahead == 1 { keys - j * bc } else { bc });
            }
            pipeline.commit();
        }
        pipeline.wait();

        let mut warp = Warp::<1, DT, DT, QT>::new(
            qo_tile.skip(warp_row),
            SoftmaxScale::new(p.scale),
            &Team::ALONE,
        );
        // A warp past the last row only copies.
        let row = first + warp_row;
        let has_rows = row < rows;
        let load_ahead = |j: u32| {
            if j >= S as u32 - 1 {
                load(j - (S as u32 - 1), bc);
            }
        };
        // The first block always sets the maxima, the others may.
        let unmasked_trips = unmasked_trips.min(trips.saturating_sub(1));
        let mut j = trips;
        while j > unmasked_trips {
            j -= 1;
            pipeline.wait();
            pipeline.fill(|| load_ahead(j));
            if has_rows {
                let s = warp.scores::<E, Accumulator, NT>(k_tile(j));
                let visible = map_rows(|i| mask.visible((row + i) as i32, (j * bc) as i32));
                let probabilities = warp.softmax_masked::<E, NT, 1>(s, visible, &Team::ALONE);
                warp.accumulate_masked::<E, Accumulator, Packed, NT>(
                    probabilities,
                    v_tile(j),
                    visible,
                );
            }
            pipeline.release();
        }
        while j > 0 {
            j -= 1;
            pipeline.wait();
            pipeline.fill(|| load_ahead(j));
            if has_rows {
                let s = warp.scores::<E, Accumulator, NT>(k_tile(j));
                let probabilities = warp.softmax::<E, NT>(s, k_tile(j));
                warp.accumulate::<E, Accumulator, NT>(probabilities, v_tile(j));
            }
            pipeline.release();
        }
        warp.store::<E, true, 1>(p, threads, &Team::ALONE);
    }
}
