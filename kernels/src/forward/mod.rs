//! FlashAttention-2 forward (Dao 2023, Algorithm 1), one query tile a block.
//!
//! A block holds Br query rows, split over its warps in 16-row tiles, and walks over the keys in
//! blocks of Bc, from the last visible one to the first: the masked blocks come first. With two
//! stages K and V are double-buffered: the copies of the next block run beside both products of this
//! one, behind one barrier a block. With one stage, which leaves room for a larger block, V arrives
//! during the first product and the next K during the second.
//!
//! Shared memory holds the Q tile, later O, and then K and V of each stage.

mod decode;
mod epilogue;
mod non_finite;
mod place;
mod warp;

use crate::mask::Mask;
use crate::params::ForwardParams;
use crate::ptx::{barrier, cp_async, shared, special};
use crate::tile::{Copier, Element, SharedTile, SoftmaxScale};
pub use decode::decode;
use place::Place;
use warp::Warp;

/// Computes the block's tile of O and lse, on its split of the keys.
///
/// The block has `W` warps, each with `MT` tiles of 16 query rows; the head dim is at most
/// `16 * DT`, a step takes `16 * NT` keys, and K and V have `S` buffers.
///
/// # Safety
/// Launched as [`ForwardParams`] and the kernel's row of the [table](crate::table) say: grid, block
/// size and shared memory, with tensors that are readable (q, k, v) and writable (o, lse) in full.
#[inline(always)]
pub unsafe fn forward<
    E: Element,
    M: Mask,
    const W: usize,
    const MT: usize,
    const DT: usize,
    const NT: usize,
    const Q_IN_REGISTERS: bool,
    const S: usize,
>(
    p: &ForwardParams,
) {
    let (br, bc) = ((16 * MT * W) as u32, (16 * NT) as u32);
    let threads = 32 * W as u32;
    // SAFETY: the launch has this many threads a block.
    let thread = unsafe { special::thread(threads) };
    let (lane, warp) = (thread % 32, thread / 32);
    let place = Place::<false>::of_block(p, br);
    let first = place.first;
    let (first_key, keys) = place.keys(p);
    let q = Copier::new(place.q_rows(&p.q), thread, threads);
    let k = Copier::new(place.kv_rows(&p.k, first_key), thread, threads);
    let v = Copier::new(place.kv_rows(&p.v, first_key), thread, threads);

    let mask = M::new(p, first_key, keys);
    let trips = mask.trip_count((first + br).min(p.seqlen_q) as i32 - 1, bc);
    let unmasked_trips = mask.unmasked_trip_count(first as i32, bc);

    let qo_tile = SharedTile::<DT> {
        base: shared::base(),
    };
    let k_tile = |j: u32| qo_tile.skip(br + j % S as u32 * 2 * bc);
    let v_tile = |j: u32| k_tile(j).skip(bc);
    // SAFETY: called when no thread reads the tile any more; readers wait for the copies.
    let load_k = |j: u32, exist: u32| unsafe { k.load(k_tile(j), j * bc, bc, exist) };
    // SAFETY: as above.
    let load_v = |j: u32, exist: u32| unsafe { v.load(v_tile(j), j * bc, bc, exist) };
    // The last block may end beyond the last key.
    let exist = |j: u32| keys - j * bc;

    // SAFETY: every branch here depends on the block alone, so all threads reach every barrier and
    // all lanes every tensor-core instruction. The barrier at the top of a step makes block j (with
    // one stage, its K) visible and tells that all warps are done with block j + 1, whose tiles are
    // loaded next (with one stage, its V); the one between the products does the same for V and K.
    unsafe {
        q.load(qo_tile, first, br, p.seqlen_q - first);
        if trips > 0 {
            load_k(trips - 1, exist(trips - 1));
            if S == 2 {
                load_v(trips - 1, exist(trips - 1));
            }
        }
        cp_async::commit();
        cp_async::wait_all();
        barrier::block();

        // The warp's first row in the tile and in the sequence.
        let (warp_row, row) = (warp * 16 * MT as u32, first + warp * 16 * MT as u32);
        let warp_tile = qo_tile.skip(warp_row);
        let mut warp =
            Warp::<MT, DT, Q_IN_REGISTERS>::new(lane, warp_tile, SoftmaxScale::new(p.scale));
        // Before Q K^T of block j, of whose rows of V `exist` exist.
        let before_scores = |j: u32, exist: u32| {
            cp_async::wait_all();
            barrier::block();
            if S == 1 {
                load_v(j, exist);
            } else if j > 0 {
                load_k(j - 1, bc);
                load_v(j - 1, bc);
            }
            cp_async::commit();
        };
        // Between the products of block j.
        let after_scores = |j: u32| {
            if S == 1 {
                cp_async::wait_all();
                barrier::block();
                if j > 0 {
                    load_k(j - 1, bc);
                }
                cp_async::commit();
            }
        };
        let mut j = trips;
        while j > unmasked_trips {
            j -= 1;
            before_scores(j, exist(j));
            let s = warp.scores::<E, NT>(k_tile(j));
            after_scores(j);
            let visible = |i| mask.limit((row + i) as i32) - (j * bc) as i32;
            let visible = warp.map_rows(visible);
            warp.accumulate::<E, M, NT, true>(s, v_tile(j), visible);
        }
        while j > 0 {
            j -= 1;
            before_scores(j, bc);
            let s = warp.scores::<E, NT>(k_tile(j));
            after_scores(j);
            warp.accumulate::<E, M, NT, false>(s, v_tile(j), [[bc as i32; 2]; MT]);
        }

        warp.store::<E, false>(p, threads);
    }
}
