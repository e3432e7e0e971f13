//! `fa1`: FlashAttention-1 (Dao et al. 2022, Algorithm 1).
//!
//! The outer loop is over keys: a block of K and V stays in shared memory while all queries pass. So O, m and l
//! of a query cannot stay in registers: for every block of keys they come from global memory, are rescaled, and
//! go back. FlashAttention-2 swaps the two loops.
//!
//! One block computes a head. O in global memory is not divided by l; a combine kernel does that at the end, as
//! for a single split of the keys.

use crate::params::LadderParams;
use crate::slices;
use kernels::abi::ForwardParams;
use kernels::attention::options::mask::{Either, Mask};
use kernels::attention::options::score::{Corner, Scaled};
use kernels::attention::workload::heads::OneHead;
use kernels::attention::{SoftmaxScale, Total};
use kernels::attention::{Team, Warp, WorkTile, store_partial};
use kernels::ptx::{barrier, cp_async, global, shared, special};
use kernels::tile::whole::map_rows;
use kernels::tile::{Accumulator, Copier, Element, SharedTile};

/// Computes O, m and l of the block's head.
///
/// The block has `W` warps with 16 query rows each; the head dim is at most `16 * DT`, and a step of the
/// outer loop takes `16 * NT` keys.
///
/// # Safety
/// Launched as [`LadderParams`] and the kernel's [specification](crate::catalog) say, with one query
/// tile for each head.
#[inline(always)]
pub unsafe fn fa1<E: Element, const W: usize, const DT: usize, const NT: usize>(
    params: &LadderParams,
) {
    let p = &params.forward;
    let (br, bc) = (16 * W as u32, (16 * NT) as u32);
    let threads = 32 * W as u32;
    // SAFETY: the launch has this many threads a block.
    let thread = unsafe { special::thread(threads) };
    let warp_row = thread / 32 * 16;
    let place = WorkTile::<OneHead>::of_block::<Scaled>(p, br);
    let q = Copier::<DT, _>::new(place.q_rows(&p.q), thread, threads);
    let k = Copier::<DT, _>::new(place.kv_rows(&p.k, 0), thread, threads);
    let v = Copier::<DT, _>::new(place.kv_rows(&p.v, 0), thread, threads);
    let q_tile = SharedTile::<DT>::new(shared::base());
    let k_tile = q_tile.skip(br);
    let v_tile = k_tile.skip(bc);
    let mask = Either::new(p, place.sequence, place.sequence.whole());

    let mut first_key = 0;
    while first_key < p.seqlen_kv {
        let keys = p.seqlen_kv - first_key;
        // SAFETY: all warps are done with the tiles; the barrier below makes them visible. Branches with
        // collective instructions depend on the launch alone.
        unsafe {
            k.load(k_tile, first_key, bc, keys);
            v.load(v_tile, first_key, bc, keys);
        }
        let mut first = 0;
        while first < p.seqlen_q {
            let row = first + warp_row;
            let exist = p.seqlen_q.saturating_sub(row);
            let sees = mask.keys((first + br).min(p.seqlen_q) as i32 - 1).end as u32 > first_key;
            // SAFETY: as above. The first block of keys sets O, m and l of all rows.
            unsafe {
                if sees || first_key == 0 {
                    q.load(q_tile, first, br, p.seqlen_q - first);
                    cp_async::commit();
                    cp_async::wait::<0>();
                    barrier::block();
                    let warp_q = q_tile.skip(warp_row);
                    let corner = Corner {
                        query: row as i32,
                        key: 0,
                        diagonal: 0,
                    };
                    let mut warp = Warp::<1, DT, DT, 0>::new(
                        warp_q,
                        corner,
                        Scaled(SoftmaxScale::new(p.scale)),
                        &Team::ALONE,
                    );
                    if first_key > 0 {
                        load_partial(p, &place, (row, exist), &mut warp);
                    }
                    let visible =
                        || map_rows(|i| mask.keys_of_block((row + i) as i32, first_key as i32));
                    let s = warp.scores::<E, Accumulator, NT, DT>(k_tile, first_key);
                    let p_tiles = warp.softmax_masked::<E, NT, 1>(s, visible(), &Team::ALONE);
                    slices::accumulate_masked::<E, Accumulator, _, _, _, _, _, _, _, _>(
                        &mut warp, p_tiles, v_tile, visible,
                    );
                    let totals = Some(warp.softmax.totals());
                    store_partial::<E, _, Scaled, _, _>(
                        p,
                        &place,
                        (row, exist),
                        warp.o,
                        totals,
                        |dt| dt as u32,
                    );
                    barrier::block();
                }
            }
            first += br;
        }
        first_key += bc;
    }
}

/// Loads O, m and l that [`store_partial`] stored, in the same lanes.
#[inline(always)]
unsafe fn load_partial<const DT: usize>(
    p: &ForwardParams,
    place: &WorkTile<OneHead>,
    (first, exist): (u32, u32),
    warp: &mut Warp<1, DT, DT, 0>,
) {
    let lane = special::lane();
    for r in 0..2 {
        let row = 8 * r as u32 + lane / 4;
        if row >= exist {
            continue;
        }
        let index = place.partial(p, first + row);
        let address = p.partial_o + 4 * index * u64::from(p.dim) + 8 * u64::from(lane % 4);
        // SAFETY: the row and these columns exist, and an earlier step stored them.
        unsafe {
            for dt in 0..DT {
                let mut elements = [[0.0; 2]; 2];
                for half in 0..2 {
                    let column = (16 * dt + 8 * half) as u32;
                    if column < p.dim {
                        elements[half] = global::load_f32x2(address + 4 * u64::from(column));
                    }
                }
                let [[a, b], [c, d]] = elements;
                warp.o[0][dt].set_row(r, [a, b, c, d]);
            }
            // The sum of a row is the sum over its four lanes.
            let [max, sum] = global::load_f32x2(p.partial_softmax + 8 * index);
            let sum = if lane % 4 == 0 { sum } else { 0.0 };
            warp.softmax.resume(0, r, Total { max, sum });
        }
    }
}
