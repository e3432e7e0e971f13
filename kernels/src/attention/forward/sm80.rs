//! FlashAttention-2 forward (Dao 2023, Algorithm 1), one query tile a block.
//!
//! A block holds Br query rows, split over its warps in 16-row tiles, and walks over the keys in
//! blocks of Bc, from the last visible one to the first: the masked blocks come first. K and V are
//! double-buffered, and behind one barrier a block. In a step of the main loop a warp
//!
//! 1. turns the scores of block `j` into probabilities,
//! 2. waits for V of block `j` and K of block `j - 1`, and starts the next copies,
//! 3. adds `P V` of block `j` to O and computes the scores of block `j - 1`: two products that the
//!    assembler can mix, so that tensor cores wait for neither's operands.
//!
//! Two blocks share a multiprocessor: while a warp of one is at 1, which uses no tensor core, one of
//! the other can be at 3.
//!
//! The rows of a tile are those of one query head or, packed, of all that share a key/value head: where
//! each has few of them, they fill tiles together, and read keys and values once.
//!
//! Shared memory holds the Q tile, later O, and then K and V of each stage.

use crate::abi::ForwardParams;
use crate::attention::mask::Mask;
use crate::attention::{Place, SoftmaxScale, Team, Warp, map_rows};
use crate::ptx::{shared, special};
use crate::tile::{Accumulator, Copier, CpAsync, Element, Pipeline, SharedTile};

/// Computes the block's tile of O and lse, on its split of the keys.
///
/// The block has `W` warps, each with `MT` tiles of 16 query rows; the head dim is at most
/// `16 * DT`, and a step takes `16 * NT` keys. `QT` of the `DT` slices of Q stay in registers. `PACKED` is
/// the mask's.
///
/// # Safety
/// Launched as [`ForwardParams`] and the kernel's row of the [table](crate::catalog) say: grid, block
/// size and shared memory, with tensors that are readable (q, k, v) and writable (o, lse) in full.
#[inline(always)]
pub unsafe fn forward<
    E: Element,
    M: Mask,
    const PACKED: bool,
    const W: usize,
    const MT: usize,
    const DT: usize,
    const NT: usize,
    const QT: usize,
>(
    p: &ForwardParams,
) {
    let (br, bc) = ((16 * MT * W) as u32, (16 * NT) as u32);
    let (threads, warp_rows) = (32 * W as u32, 16 * MT as u32);
    // SAFETY: the launch has this many threads a block.
    let thread = unsafe { special::thread(threads) };
    let warp_row = thread / 32 * warp_rows;
    let place = Place::<PACKED>::of_block(p, br);
    let (first, rows) = (place.first, Place::<PACKED>::row_count(p));
    let (first_key, keys) = place.keys(p);
    let q = Copier::new(place.q_rows(&p.q), thread, threads);
    let k = Copier::new(place.kv_rows(&p.k, first_key), thread, threads);
    let v = Copier::new(place.kv_rows(&p.v, first_key), thread, threads);

    let mask = M::new(p, first_key, keys);
    let last_of = |end: u32| end.min(rows) as i32 - 1;
    let trips = mask.trip_count(last_of(first + br), bc);
    // The warp's first row in the sequence, and the key blocks that it sees, in part or whole: none
    // if it lies past the last query.
    let row = first + warp_row;
    let warp_trips = if row < rows {
        mask.trip_count(last_of(row + warp_rows), bc)
    } else {
        0
    };
    let unmasked_trips = mask.unmasked_trip_count(row as i32, bc);

    let qo_tile = SharedTile::<DT>::new(shared::base());
    let k_tile = |j: u32| qo_tile.skip(br + j % 2 * 2 * bc);
    let v_tile = |j: u32| k_tile(j).skip(bc);
    // K of block j - 2 and V of block j - 1, if there are such: what the step of block j starts.
    // SAFETY: K of block j and V of block j + 1, which lay there, are done with.
    let load_ahead = |j: u32| unsafe {
        k.load_whole(k_tile(j), (j * bc).wrapping_sub(2 * bc), bc, j > 1);
        v.load_whole(v_tile(j + 1), (j * bc).wrapping_sub(bc), bc, j > 0);
    };
    let mut pipeline = CpAsync::<2>;

    // SAFETY: all warps pass the same number of barriers, one for each block of keys; not always the same
    // instruction, which PTX asks of the lanes of a warp alone (bar.sync; compute-sanitizer's synccheck
    // asks it of the block and reports such warps). Every other branch depends on the warp alone, so
    // all lanes reach every tensor-core instruction. The barrier of block j makes V of block j and K of
    // block j - 1 visible, and tells that all warps are done with V of block j + 1 and K of block j.
    unsafe {
        q.load(qo_tile, first, br, rows - first);
        // The last block may end beyond the last key.
        let last = trips.wrapping_sub(1);
        let exist = keys.wrapping_sub(last.wrapping_mul(bc));
        if trips > 0 {
            k.load(k_tile(last), last * bc, bc, exist);
        }
        pipeline.commit();
        if trips > 0 {
            v.load(v_tile(last), last * bc, bc, exist);
        }
        if trips > 1 {
            k.load(k_tile(last - 1), (last - 1) * bc, bc, bc);
        }
        pipeline.commit();
        pipeline.wait_first();
        let scale = SoftmaxScale::new(p.scale);
        let mut warp = Warp::<MT, DT, DT, QT>::new(qo_tile.skip(warp_row), scale, &Team::ALONE);

        // `j` blocks are left; those that the warp sees nothing of it only copies.
        let mut j = trips;
        while j > warp_trips {
            j -= 1;
            pipeline.wait();
            pipeline.release();
            pipeline.fill(|| load_ahead(j));
        }
        if j > 0 {
            let visible = |j: u32| {
                let first_key = (j * bc) as i32;
                map_rows(|i| mask.visible((row + i) as i32, first_key))
            };
            // The first block always sets the maxima, the others may.
            let unmasked_trips = unmasked_trips.min(j - 1).max(1);
            let mut s = warp.scores::<E, Accumulator, NT>(k_tile(j - 1));
            while j > unmasked_trips {
                j -= 1;
                let visible = visible(j);
                let probabilities = warp.softmax_masked::<E, NT, 1>(s, visible, &Team::ALONE);
                pipeline.wait();
                pipeline.fill(|| load_ahead(j));
                warp.accumulate_masked::<E, Accumulator, M, NT>(probabilities, v_tile(j), visible);
                s = warp.scores::<E, Accumulator, NT>(k_tile(j - 1));
                pipeline.release();
            }
            while j > 1 {
                j -= 1;
                let probabilities = warp.softmax::<E, NT>(s, k_tile(j));
                pipeline.wait();
                pipeline.fill(|| load_ahead(j));
                warp.accumulate::<E, Accumulator, NT>(probabilities, v_tile(j));
                s = warp.scores::<E, Accumulator, NT>(k_tile(j - 1));
                pipeline.release();
            }
            // Asked for again: over the loop these would hold registers.
            let place = Place::<PACKED>::of_block(p, br);
            let (first_key, keys) = place.keys(p);
            let mask = M::new(p, first_key, keys);
            let row = place.first + special::thread(threads) / 32 * warp_rows;
            let visible = map_rows(|i| mask.visible((row + i) as i32, 0));
            let probabilities = warp.softmax_masked::<E, NT, 1>(s, visible, &Team::ALONE);
            pipeline.wait();
            warp.accumulate_masked::<E, Accumulator, M, NT>(probabilities, v_tile(0), visible);
        }

        warp.store::<E, PACKED, 1>(p, threads, &Team::ALONE);
    }
}
