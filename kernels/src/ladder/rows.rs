//! `split-q`, `shared-kv` and `shared-qkv`: FlashAttention-2, a warp with query rows of its own.
//!
//! K of a block of keys, its V, K of the next, and so on are one stream of tiles through a ring of buffers,
//! and that is all that tells the three apart:
//!
//! - `split-q`: an even number of buffers, so that every other one is K's and the rest are V's;
//! - `shared-kv`: any number, each now K's, now V's: half the shared memory for as much ahead, or none
//!   ahead at all with one;
//! - `shared-qkv`: Q is read to registers before the loop, and the ring lies where it was.
//!
//! Shared memory holds the Q tile, later O, and the ring behind it or in its place.

use super::options::swizzles;
use super::ring::Ring;
use super::store::{Part, store};
use crate::abi::ForwardParams;
use crate::attention::SoftmaxScale;
use crate::attention::heads::OneHead;
use crate::attention::mask::{Either, Mask, seen_blocks, whole_blocks};
use crate::attention::score::Scaled;
use crate::attention::{Team, Warp, WorkTile};
use crate::layout::swizzle::Swizzle;
use crate::ptx::{barrier, cp_async, shared, special};
use crate::tile::registers;
use crate::tile::whole::{map_rows, map_shared};
use crate::tile::{Accumulate, Copier, Element, SharedTile};

/// Computes the block's tile of O and lse, on its split of the keys.
///
/// The block has `W` warps, each with `MT` tiles of 16 query rows; the head dim is at most `16 * DT`, and
/// a step takes `16 * NT` keys. Products are added up in `S`. `QT` is `DT` if Q stays in registers, else 0.
///
/// # Safety
/// As [`forward`](crate::attention::forward::forward).
#[inline(always)]
pub unsafe fn rows<
    E: Element,
    S: Accumulate<E>,
    const W: usize,
    const MT: usize,
    const DT: usize,
    const NT: usize,
    const QT: usize,
>(
    p: &ForwardParams,
) {
    let (br, bc) = ((16 * MT * W) as u32, (16 * NT) as u32);
    let threads = 32 * W as u32;
    // Asked for again where it is used: over the loop it would hold registers.
    // SAFETY: the launch has this many threads a block.
    let thread = || unsafe { special::thread(threads) };
    let warp_row = || thread() / 32 * 16 * MT as u32;
    let place = WorkTile::<OneHead>::of_block(p, br);
    let (first, split) = (place.first, place.keys(p));
    let [q_swizzle, k_swizzle, v_swizzle] = swizzles(&p.ladder, SharedTile::<DT>::CHUNKS);
    let (k, v) = (
        place.kv_rows(&p.k, split.first),
        place.kv_rows(&p.v, split.first),
    );
    let copier =
        |rows, swizzle| Copier::<DT, _, Swizzle>::arranged(rows, thread(), threads, swizzle);

    let mask = Either::new(p, place.sequence, split);
    let last = (first + br).min(p.seqlen_q) as i32 - 1;
    let ends = [first as i32, last].map(|row| mask.keys(row));
    let trips = seen_blocks(ends, bc).end;
    // The first block always sets the maxima, the others may.
    let unmasked_trips = whole_blocks(ends, bc).end.min(trips.saturating_sub(1));

    let tile = |base: u32, arrangement| SharedTile::<DT, Swizzle> { base, arrangement };
    let q_tile = tile(shared::base(), q_swizzle);
    let ring_base = match QT {
        0 => q_tile.skip(br).base,
        _ => q_tile.base,
    };
    let mut ring = Ring::new(
        ring_base,
        bc * k_swizzle.pitch(),
        p.ladder.buffers,
        u32::MAX,
    );
    // Loads the next tile of the stream, if there is one: V of block `left / 2` if `left` that follow are
    // even, else K.
    let mut left = 2 * trips;
    let mut load = |ring: &mut Ring| {
        let to = ring.to_load();
        if left > 0 {
            left -= 1;
            // Opaque: what differs between K and V would be told apart before the loop, and held over it.
            let (rows, swizzle) = match registers::opaque(left) % 2 {
                1 => (k, k_swizzle),
                _ => (v, v_swizzle),
            };
            let copier = copier(rows, swizzle);
            let j = left / 2;
            // SAFETY: the ring says when the buffer is free, and waits for what is loaded. The last
            // block may end beyond the last key.
            unsafe { copier.load(tile(to, swizzle), j * bc, bc, split.keys - j * bc) }
        }
    };

    // SAFETY: every branch depends on the block or the warp alone, and no warp misses a barrier.
    unsafe {
        copier(place.q_rows(&p.q), q_swizzle).load(q_tile, first, br, p.seqlen_q - first);
        cp_async::commit();
        cp_async::wait::<0>();
        barrier::block();
        let warp_q = q_tile.skip(warp_row());
        let mut scale = SoftmaxScale::new(p.scale);
        if S::HALF {
            map_shared::<MT, DT, Swizzle>(warp_q, |q| q.scale(scale.signed()));
            barrier::warp();
            scale = SoftmaxScale::ONE;
        }
        let mut warp =
            Warp::<MT, DT, DT, QT, Swizzle>::new(warp_q, first, Scaled(scale), &Team::ALONE);
        barrier::block();
        ring.start(&mut load);

        let mut j = trips;
        while j > unmasked_trips {
            j -= 1;
            let visible = || {
                // Asked for again, too.
                let place = WorkTile::<OneHead>::of_block(p, br);
                let mask = Either::new(p, place.sequence, place.keys(p));
                let row = place.first + warp_row();
                map_rows(|i| mask.keys_of_block((row + i) as i32, (j * bc) as i32))
            };
            ring.advance(&mut load);
            let s = warp.scores::<E, S, NT>(tile(ring.to_read(), k_swizzle), j * bc);
            let probabilities = warp.softmax_masked::<E, NT, 1>(s, visible(), &Team::ALONE);
            ring.advance(&mut load);
            let v_tile = tile(ring.to_read(), v_swizzle);
            warp.accumulate_masked_by_slices::<E, S, _, NT>(probabilities, v_tile, visible);
        }
        while j > 0 {
            j -= 1;
            ring.advance(&mut load);
            let k_tile = tile(ring.to_read(), k_swizzle);
            let s = warp.scores::<E, S, NT>(k_tile, j * bc);
            let probabilities = if S::HALF {
                // Lest sums of products overflow.
                warp.softmax_exact::<E, NT, 1>(s, &Team::ALONE)
            } else {
                warp.softmax::<E, NT>(s, k_tile, j * bc)
            };
            ring.advance(&mut load);
            warp.accumulate::<E, S, NT>(probabilities, tile(ring.to_read(), v_swizzle));
        }
        let part = Part {
            rows: br,
            width: (16 * DT as u32).next_multiple_of(64),
            warp_row: warp_row(),
            stores_lse: true,
            column: |dt| dt as u32,
        };
        let totals = warp.softmax.totals();
        store::<E, MT, DT>(p, threads, part, warp.o, totals);
    }
}
