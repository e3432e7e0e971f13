//! `split-q`, `shared-kv` and `shared-qkv`: FlashAttention-2, a warp with query rows of its own.
//!
//! K of a block of keys, its V, K of the next block and so on are one stream of tiles through a ring of buffers.
//! The three differ in the ring alone:
//!
//! - `split-q`: an even number of buffers, so that every other one is K's and the rest are V's;
//! - `shared-kv`: any number of buffers, each now for K, now for V: half the shared memory for as much ahead;
//!   with one buffer nothing loads ahead;
//! - `shared-qkv`: registers hold Q, and the ring takes its place.
//!
//! Shared memory holds the Q tile, later O, and the ring behind it or in its place.

use crate::half;
use crate::options::swizzles;
use crate::params::LadderParams;
use crate::ring::Ring;
use crate::slices;
use crate::store::{Part, store};
use crate::work::{Work, tile_and_keys};
use kernels::attention::options::mask::Mask;
use kernels::attention::options::score::{Corner, Scaled};
use kernels::attention::{SoftmaxScale, Team, Warp};
use kernels::layout::rows::Strided;
use kernels::layout::swizzle::Swizzle;
use kernels::ptx::{barrier, cp_async, shared, special};
use kernels::tile::registers::{again, opaque};
use kernels::tile::whole::{map_rows, map_shared};
use kernels::tile::{Accumulate, Copier, Element, SharedTile};

/// Computes the block's tile of O and lse, on its split of the keys.
///
/// The block has `W` warps, each with `MT` tiles of 16 query rows; the head dim is at most `16 * DT`, and
/// a step takes `16 * NT` keys. Products are summed in `S`. `QT` is `DT` if Q stays in registers, else 0.
///
/// # Safety
/// The conditions of [`forward`](kernels::attention::forward::forward).
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
    params: &LadderParams,
) {
    let (p, options) = (&params.forward, &params.options);
    let (br, bc, threads) = ((16 * MT * W) as u32, (16 * NT) as u32, 32 * W as u32);
    // Read again where it is used: over the loop it would hold registers.
    // SAFETY: the launch has this many threads a block.
    let thread = || unsafe { special::thread(threads) };
    let warp_row = || thread() / 32 * 16 * MT as u32;
    // Not `Work::of_block`: what it asserts costs registers here.
    let (place, split) = tile_and_keys(p, br);
    // Before the mask: the other order spills more on sm_120.
    let [k, v] = [&p.k, &p.v].map(|tensor| place.kv_rows(tensor, split.first));
    let work = Work::new(p, place, split, [br, bc]);
    let blocks = work.blocks;
    // The first block always sets the maxima; later blocks may.
    let whole = work.whole.min(blocks.saturating_sub(1));

    let [q_swizzle, k_swizzle, v_swizzle] = swizzles(options, SharedTile::<DT>::CHUNKS);
    let q_tile = tile::<DT>(shared::base(), q_swizzle);
    let ring_base = match QT {
        0 => q_tile.skip(br).base,
        _ => q_tile.base,
    };
    let mut ring = Ring::new(ring_base, bc * k_swizzle.pitch(), options.buffers, u32::MAX);
    let kv = [(k, k_swizzle), (v, v_swizzle)];
    let mut loads = Loads::<DT>::new(kv, [work.split.keys, bc], blocks, threads);

    // SAFETY: every branch depends on the block or the warp alone, and no warp misses a barrier.
    unsafe {
        let (first, rows) = (work.place.first, work.place.q_rows(&p.q));
        let copier = Copier::arranged(rows, thread(), threads, q_swizzle);
        copier.load(q_tile, first, br, p.seqlen_q - first);
        cp_async::commit();
        cp_async::wait::<0>();
        barrier::block();
        let warp_q = q_tile.skip(warp_row());
        let mut scale = SoftmaxScale::new(p.scale);
        if S::HALF {
            map_shared::<MT, DT, Swizzle>(warp_q, |q| half::scaled(q, scale));
            barrier::warp();
            scale = half::SCALED;
        }
        let corner = Corner {
            query: first as i32,
            key: 0,
            diagonal: 0,
        };
        let mut warp =
            Warp::<MT, DT, DT, QT, Swizzle>::new(warp_q, corner, Scaled(scale), &Team::ALONE);
        barrier::block();
        ring.start(|ring| loads.load(ring));

        let mut j = blocks;
        while j > whole {
            j -= 1;
            // The keys of block j that the lane's rows see.
            let visible = || {
                let (place, split) = again(|| tile_and_keys(p, br));
                let Work { place, mask, .. } = Work::new(p, place, split, [br, bc]);
                let row = place.first + warp_row();
                map_rows(|i| mask.keys_of_block((row + i) as i32, (j * bc) as i32))
            };
            ring.advance(|ring| loads.load(ring));
            let s = warp.scores::<E, S, NT, DT>(tile(ring.to_read(), k_swizzle), j * bc);
            let probabilities = warp.softmax_masked::<E, NT, 1>(s, visible(), &Team::ALONE);
            ring.advance(|ring| loads.load(ring));
            let v_tile = tile(ring.to_read(), v_swizzle);
            slices::accumulate_masked::<E, S, _, _, _, _, _, _, _, _>(
                &mut warp,
                probabilities,
                v_tile,
                visible,
            );
        }
        while j > 0 {
            j -= 1;
            ring.advance(|ring| loads.load(ring));
            let k_tile = tile(ring.to_read(), k_swizzle);
            let s = warp.scores::<E, S, NT, DT>(k_tile, j * bc);
            let probabilities = if S::HALF {
                // Probabilities above 1 could make the sums overflow.
                warp.softmax_exact::<E, NT, 1>(s, &Team::ALONE)
            } else {
                warp.softmax::<E, NT, DT>(s, k_tile, j * bc)
            };
            ring.advance(|ring| loads.load(ring));
            let v_tile = tile(ring.to_read(), v_swizzle);
            half::accumulate::<E, S, _, _, _, _, _, _, _>(&mut warp, probabilities, v_tile);
        }
        let part = Part {
            rows: br,
            width: (16 * DT as u32).next_multiple_of(64),
            warp_row: warp_row(),
            stores_lse: true,
            column: |dt| dt as u32,
        };
        let totals = warp.softmax.totals();
        store::<E, MT, DT>(params, threads, part, warp.o, totals);
    }
}

/// A tile at a shared address.
#[inline(always)]
fn tile<const DT: usize>(base: u32, arrangement: Swizzle) -> SharedTile<DT, Swizzle> {
    SharedTile { base, arrangement }
}

/// The loads of a thread: K of the last block of keys, its V, K of the block before, and so on.
struct Loads<const DT: usize> {
    k: (Strided, Swizzle),
    v: (Strided, Swizzle),
    /// Keys of the split, and of a block.
    keys: [u32; 2],
    threads: u32,
    /// Tiles not yet loaded: the next one is K of block `left / 2 - 1` if `left` is even, else V of block `left / 2`.
    left: u32,
}

impl<const DT: usize> Loads<DT> {
    /// All loads of the first `blocks` blocks.
    #[inline(always)]
    fn new([k, v]: [(Strided, Swizzle); 2], keys: [u32; 2], blocks: u32, threads: u32) -> Self {
        Loads {
            k,
            v,
            keys,
            threads,
            left: 2 * blocks,
        }
    }

    /// Starts to load the next tile, if there is one, to the ring.
    ///
    /// # Safety
    /// All threads of the block, `threads`, make the same call, where the ring asks for a tile.
    #[inline(always)]
    unsafe fn load(&mut self, ring: &mut Ring) {
        let to = ring.to_load();
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        // Opaque: else registers would hold what differs between K and V over the loop. By reference: else the compiler
        // branches where it can select.
        let &(rows, swizzle) = match opaque(self.left) % 2 {
            1 => &self.k,
            _ => &self.v,
        };
        let ([keys, bc], j) = (self.keys, self.left / 2);
        // SAFETY: the caller's promise. The ring says when the buffer is free, and waits for what is loaded. The last block
        // may end beyond the last key.
        unsafe {
            let thread = special::thread(self.threads);
            let copier = Copier::arranged(rows, thread, self.threads, swizzle);
            copier.load(tile::<DT>(to, swizzle), j * bc, bc, keys - j * bc)
        }
    }
}
