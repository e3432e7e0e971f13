//! Flash-decoding: few queries on many keys, which takes as long as the memory takes to deliver the keys.
//!
//! All query heads that share a key/value head lie in one query tile, so that the block reads keys and values
//! once. K and V pass through a pipeline of `S` buffers: while one block of keys is worked on, the
//! next `S - 1` load, enough to keep the memory busy.
//!
//! A cache may hold numbers of e4m3, half as many bytes: they become elements of 16 bits between shared memory and the
//! tensor cores.
//!
//! With more rows than a tile holds, the products take longer than the keys: such launches are for the
//! packed kernels of the [`sm80`](super::sm80) loop, with two 16-row tiles a warp.

use super::begin;
use crate::abi::{E4m3Params, ForwardParams};
use crate::attention::auxiliary::combine::combine_in_cluster;
use crate::attention::options::cache_score::CacheScore;
use crate::attention::options::mask::Mask;
use crate::attention::options::score::Score;
use crate::attention::workload::descales::Descales;
use crate::attention::workload::heads::Heads;
use crate::attention::workload::key_rows::KeyRows;
use crate::attention::workload::sequence::Split;
use crate::attention::{Team, WorkTile};
use crate::ptx::{shared, special, switch};
use crate::tile::whole::{map_rows, scale_rows};
use crate::tile::{Accumulator, Copier, CpAsync, E4m3, Element, Numbers, Pipeline, SharedTile};

/// Computes the block's tile of O and lse, on its split of the keys.
///
/// The block has `W` warps, each with 16 rows; the head dim is at most `16 * DT`, and a step takes
/// `16 * NT` keys. `QT` of the `DT` slices of Q stay in registers.
///
/// # Safety
/// The conditions of [`sm80`](super::sm80).
#[inline(always)]
pub unsafe fn decode<
    E: Element,
    M: Mask,
    H: Heads,
    C: Score,
    const W: usize,
    const DT: usize,
    const NT: usize,
    const QT: usize,
    const S: usize,
>(
    params: &ForwardParams,
) {
    let score = |work: &WorkTile<H>, _| begin::score(params, work);
    // SAFETY: the caller's promise.
    unsafe { decode_numbers::<E, M, H, C, W, DT, DT, NT, QT, S>(params, score, |_, _| None) }
}

/// [`decode`], of K and V of e4m3, whose rows are `KT` slices of 32 bytes.
///
/// # Safety
/// The conditions of [`decode`].
#[inline(always)]
pub unsafe fn decode_e4m3<
    E: Element,
    M: Mask,
    H: Heads,
    const W: usize,
    const DT: usize,
    const KT: usize,
    const NT: usize,
    const QT: usize,
    const S: usize,
>(
    params: &E4m3Params,
) {
    let E4m3Params { forward, k, v } = params;
    let place = |work: &WorkTile<H>| [work.of_keys().batch, work.heads.kv_head()];
    let score = |work: &WorkTile<H>, split: Split| {
        let descales = Descales::new(forward, k, place(work), split.first);
        CacheScore::with(forward, work.sequence.batch, work.heads.first(), descales)
    };
    let values = |work: &WorkTile<H>, split: Split| {
        Some(Descales::new(forward, v, place(work), split.first))
    };
    // SAFETY: the caller's promise.
    unsafe {
        decode_numbers::<E4m3<E>, M, H, CacheScore, W, DT, KT, NT, QT, S>(forward, score, values);
    }
}

/// [`decode`], of any numbers of K and V: with these scores, and these descales of the values.
///
/// # Safety
/// The conditions of [`decode`].
#[inline(always)]
unsafe fn decode_numbers<
    B: Numbers,
    M: Mask,
    H: Heads,
    C: Score,
    const W: usize,
    const DT: usize,
    const KT: usize,
    const NT: usize,
    const QT: usize,
    const S: usize,
>(
    params: &ForwardParams,
    score: impl Fn(&WorkTile<H>, Split) -> C,
    descales: impl Fn(&WorkTile<H>, Split) -> Option<Descales>,
) {
    let (br, bc, threads) = (16 * W as u32, (16 * NT) as u32, 32 * W as u32);
    // SAFETY: the launch has this many threads a block.
    let thread = unsafe { special::thread(threads) };
    let warp_row = thread / 32 * 16;
    let mut work = WorkTile::<H>::of_split::<C>(params, br);
    // SAFETY: all threads of the block are here.
    let Some(split) = (unsafe { work.take_keys::<C>(params, thread) }) else {
        return;
    };
    let (first, rows) = (work.first, work.row_count::<C>());
    let q = Copier::new(work.q_rows(&params.q), thread, threads);
    let keys =
        |tensor| work.key_rows::<<C::Keys as KeyRows>::Cached, B>(params, tensor, split.first);
    let k = Copier::new(keys(&params.k), thread, threads);
    let v = Copier::new(keys(&params.v), thread, threads);
    let mask = M::new(params, work.sequence, split);
    let (blocks, mut runs) = begin::runs(&work, &mask, br, bc);

    let qo_tile = SharedTile::<DT>::new(shared::base());
    let kv_tiles = SharedTile::<KT>::new(qo_tile.skip(br).base);
    let k_tile = |j: u32| kv_tiles.skip(j % S as u32 * 2 * bc);
    let v_tile = |j: u32| k_tile(j).skip(bc);
    // SAFETY: called between the acquire and the commit of block j's buffer.
    let load = |j: u32, exist: u32| unsafe {
        k.load(k_tile(j), j * bc, bc, exist);
        v.load(v_tile(j), j * bc, bc, exist);
    };
    // The block that takes the buffer of block j + 1, if the tile has it.
    let load_next = |j: u32| {
        if j >= blocks.start + S as u32 - 1 {
            load(j - (S as u32 - 1), bc);
        }
    };
    let mut pipeline = CpAsync::<S>;

    // SAFETY: every branch here depends on the block or the warp alone, so all threads reach every barrier and all lanes every tensor-core
    // instruction. Every step fills a buffer, perhaps with nothing, so that the pipeline counts the same groups in each.
    unsafe {
        q.load(qo_tile, first, br, rows - first);
        for ahead in 1..S as u32 {
            pipeline.fill(|| {
                if blocks.start + ahead <= blocks.end {
                    // The last block may end beyond the last key.
                    let j = blocks.end - ahead;
                    load(j, if ahead == 1 { split.keys - j * bc } else { bc });
                }
            });
        }
        pipeline.peek();

        // A warp past the last row only copies.
        let (row, q_tile) = (first + warp_row, qo_tile.skip(warp_row));
        let has_rows = row < rows;
        if has_rows {
            B::arrange(q_tile);
        }
        let (score, team) = (score(&work, split), &Team::ALONE);
        let mut warp = begin::warp_with::<H, C, 1, DT, DT, QT, 1>(
            score, params, &work, split, row, q_tile, team,
        );
        let descales = descales(&work, split);
        let of_pages = descales.filter(|descales| descales.of_pages());
        let of_slices = |j: u32| of_pages.map(|descales| descales.of_slices(j * bc));
        let mut j = blocks.end;
        loop {
            while j > runs.edge() {
                j -= 1;
                pipeline.wait();
                pipeline.fill(|| load_next(j));
                if has_rows {
                    let s = warp.scores::<B, Accumulator, NT, KT>(k_tile(j), j * bc);
                    let keys =
                        map_rows(|i| mask.keys_of_block(work.query(row + i), (j * bc) as i32));
                    let p = warp.softmax_masked::<B, NT, 1>(s, keys, team);
                    let (keys, descales) = (Some(keys), of_slices(j));
                    warp.accumulate_values::<B, M, _, NT, KT>(p, v_tile(j), keys, descales);
                }
                pipeline.release();
            }
            while j > runs.whole() {
                j -= 1;
                pipeline.wait();
                pipeline.fill(|| load_next(j));
                if has_rows {
                    let s = warp.scores::<B, Accumulator, NT, KT>(k_tile(j), j * bc);
                    let p = warp.softmax::<B, NT, KT>(s, k_tile(j), j * bc);
                    let descales = of_slices(j);
                    warp.accumulate_values::<B, M, M::Keys, NT, KT>(p, v_tile(j), None, descales);
                }
                pipeline.release();
            }
            if !runs.has_other_edge(j) {
                break;
            }
        }
        if let Some(descales) = descales {
            scale_rows(&mut warp.o[0], [descales.of_head(); 2]);
        }
        warp.store::<B, H, 1>(params, threads, team, WorkTile::of_split::<C>);
        if switch::cluster() {
            combine_in_cluster::<B::Element, H, C, W>(params, br);
        }
    }
}
