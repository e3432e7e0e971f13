//! After the loop over blocks of keys: a warp stores O and lse of its rows, or partial results of a split.

use super::ROWS;
use super::consumer::Consumer;
use super::exchange::Exchange;
use super::job::{Job, Part};
use super::kernel::Kernel;
use super::step::Rows;
use crate::abi::{ForwardParams, Sm90Params};
use crate::attention::options::score::Score;
use crate::attention::workload::heads::Heads;
use crate::attention::workload::sequence::Sequence;
use crate::attention::{Softmax, Total, WorkTile};
use crate::layout::descriptor::Panels;
use crate::layout::rows::Rows as _;
use crate::layout::sm90::Sm90Memory;
use crate::layout::{element, fragment};
use crate::ptx::{barrier, bulk, global, shuffle, stmatrix, tensor, vote};
use crate::tile::registers::{again, opaque};
use crate::tile::{Accumulator, Element};
use core::mem::offset_of;

/// Lines 12 to 15 for the warpgroup's rows of a tile. Of two sides the first one adds up, in the memory `behind` both, and
/// stores.
///
/// # Safety
/// The conditions of [`sm90`](super::sm90); every lane of the warpgroup makes the same call, on all sides, after its last product.
#[inline(always)]
pub unsafe fn store_tile<K: Kernel, const OT: usize, const NT: usize, const S: u32>(
    launch: &Sm90Params,
    maps: u64,
    consumer: &Consumer<K, OT, NT, S>,
    behind: Sm90Memory,
    side: u32,
    job: Job,
    mut rows: Rows<OT, NT>,
) {
    let params = &launch.forward;
    // SAFETY: the caller's promise.
    unsafe {
        if K::SIDES > 1 {
            let exchange = Exchange::new::<OT>(behind, consumer.warpgroup, K::thread() % 128);
            let number = 1 + K::SIDES * K::WARPGROUPS + consumer.warpgroup;
            if side > 0 {
                exchange.give(&rows.o, &rows.softmax);
            }
            barrier::some(number, 128 * K::SIDES);
            if side == 0 {
                exchange.take(&mut rows.o, &mut rows.softmax);
            }
            barrier::some(number, 128 * K::SIDES);
        }
        let exists = || {
            let part = Part::<K>::new(params, job, K::tile_row() / ROWS * ROWS);
            part.first >= part.work.first_row::<K::Score>()
        };
        // No box may begin before the first row. The vote makes the branch uniform.
        if K::O_BY_MAP && (launch.o_by_map != 0) & vote::any(exists()) {
            // The products of all warps have read Q.
            barrier::some(1 + K::consumer(), 128);
            let to = consumer.memory.q(consumer.slot);
            let map = maps + offset_of!(Sm90Params, o) as u64;
            store_by_map::<K, OT>(params, map, to, job, rows.o, &rows.softmax);
        } else if K::SIDES == 1 || side == 0 {
            store::<K, OT>(params, job, rows.o, &rows.softmax);
        }
    }
}

/// Lines 12 to 15: stores the results of the warp's 16 rows. Four lanes of a row exchange pairs, so that each has 16 bytes
/// to store.
///
/// # Safety
/// The conditions of [`sm90`](super::sm90); every lane of the warp makes the same call.
#[inline(always)]
unsafe fn store<K: Kernel, const OT: usize>(
    params: &ForwardParams,
    job: Job,
    o: [Accumulator; OT],
    softmax: &Softmax<1>,
) {
    // Held over the tile, it spills 8 bytes at D = 64, 64 with a bias.
    let (part, _, lane) = again(|| warp_part::<K>(params, job));
    // SAFETY: the caller's promise.
    unsafe {
        let first_column = 16 * OT as u32 * part.work.heads.slice();
        let place = [part.first, first_column as i32];
        store_rows::<K::Element, K::Score, _, OT>(params, &part.work, place, lane, o, softmax)
    }
}

/// The warp's 16 rows of the job, the number of the first one in the tile, and the lane.
#[inline(always)]
fn warp_part<K: Kernel>(params: &ForwardParams, job: Job) -> (Part<K>, u32, u32) {
    let thread = K::thread();
    let row = thread / 32 * 16;
    (Part::new(params, job, row), row, thread % 32)
}

/// [`store`] by the copy engine: through the 64 rows of the warpgroup at `to`, of which the warp uses its 16. They are in
/// use until every lane's [`wait_read`](bulk::wait_read). `map` is the address of the map of o.
///
/// # Safety
/// The conditions of [`store`], without splits. The warp's first row is not before row 0, and no product reads the rows at
/// `to` any more.
#[inline(always)]
unsafe fn store_by_map<K: Kernel, const OT: usize>(
    params: &ForwardParams,
    map: u64,
    to: Panels,
    job: Job,
    o: [Accumulator; OT],
    softmax: &Softmax<1>,
) {
    // Held over the tile, it spills 16 bytes with a bias and a mask.
    let (part, row, lane) = again(|| warp_part::<K>(params, job));
    let warp_row = row % ROWS;
    // SAFETY: the caller's promise.
    unsafe {
        let [totals] = softmax.totals();
        let finished = totals.map(Total::finish);
        let (row, chunk) = fragment::ldmatrix_rows_first(lane);
        let first = to.chunk(warp_row + row, element::CHUNK * chunk);
        let in_panel = to.width as usize / 16;
        for dt in 0..OT {
            let tile = o[dt].0;
            let pair = |r: usize, half: usize| {
                let i = 4 * half + 2 * r;
                K::Element::pack(tile[i] * finished[r].0, tile[i + 1] * finished[r].0)
            };
            // The chunk's bits of an address change without a carry.
            let in_first_panel = first ^ (dt % in_panel * 16) as u32 * K::Element::BYTES;
            let address = in_first_panel + (dt / in_panel) as u32 * to.panel_bytes();
            stmatrix::x4(address, [pair(0, 0), pair(1, 0), pair(0, 1), pair(1, 1)]);
        }
        bulk::fence();
        barrier::warp();
        let (head, batch) = (part.work.heads.first(), part.work.sequence.batch);
        for panel in 0..16 * OT as u32 / to.width {
            let from = to.skip_panels(panel).skip_rows(warp_row).base;
            let column = (panel * to.width) as i32;
            tensor::store_once(map, column, part.first, head as i32, batch as i32, from);
        }
        bulk::commit();
        let rows = part.work.row_count::<K::Score>() as i32;
        for r in 0..2 {
            let row = part.first + (lane / 4 + 8 * r as u32) as i32;
            if row < rows && lane % 4 == 0 {
                global::store_f32(part.work.lse(params, row as u32), finished[r].1);
            }
        }
    }
}

/// [`store`] for the rows from `first` on of `work`'s heads, of which those before row 0 do not exist, and the columns from
/// another first one on.
///
/// # Safety
/// The conditions of [`store`], in lane `lane`.
#[inline(always)]
pub unsafe fn store_rows<E: Element, C: Score, H: Heads, const OT: usize>(
    params: &ForwardParams,
    work: &WorkTile<H>,
    [first, first_column]: [i32; 2],
    lane: u32,
    o: [Accumulator; OT],
    softmax: &Softmax<1>,
) {
    let (first_row, rows) = (work.first_row::<C>(), work.row_count::<C>() as i32);
    // SAFETY: the caller's promise. Only this warp stores these rows; no branch on a row holds an instruction of a
    // warp.
    unsafe {
        let [totals] = softmax.totals();
        if Sequence::split_count(params) > 1 {
            // Opaque: what is known of columns would be held over the tile, 32 bytes of spills at D = 96, 8 where heads share
            // rows; at D = 64 it is little, and held for less.
            let dim = match H::STRIDED && OT <= 4 {
                true => params.dim,
                false => opaque(params.dim),
            };
            for r in 0..2 {
                let row = first + (lane / 4 + 8 * r as u32) as i32;
                if row >= first_row && row < rows {
                    let place = [row as u32, first_column as u32, dim];
                    store_partial_row::<C, _, _>(params, work, place, lane, &o, r, totals[r]);
                }
            }
        } else {
            let place = [first, first_column];
            store_whole_rows::<E, C, H, _, OT>(params, work, place, lane, &o, totals);
        }
    }
}

/// Tiles of O as they are stored. No closure: these are not always inlined.
pub trait Tiles {
    /// Whether two tiles are, in each lane, eight neighbours of a row, those of lane `t` of four from `8 t` on: else they are as accumulators are.
    const ARE_CHUNKS: bool;

    /// The tile of columns from `16 * dt` on, whose rows are multiplied by the inverses of their sums.
    fn tile(&self, dt: usize, inverses: [f32; 2]) -> Accumulator;
}

impl<const OT: usize> Tiles for [Accumulator; OT] {
    const ARE_CHUNKS: bool = false;

    #[inline(always)]
    fn tile(&self, dt: usize, inverses: [f32; 2]) -> Accumulator {
        let mut tile = self[dt];
        tile.scale_rows(inverses);
        tile
    }
}

/// [`store_rows`] of a call without splits.
///
/// # Safety
/// The conditions of [`store_rows`].
#[inline(always)]
pub unsafe fn store_whole_rows<E: Element, C: Score, H: Heads, T: Tiles, const OT: usize>(
    params: &ForwardParams,
    work: &WorkTile<H>,
    [first, first_column]: [i32; 2],
    lane: u32,
    o: &T,
    totals: [Total; 2],
) {
    let (first_row, rows) = (work.first_row::<C>(), work.row_count::<C>() as i32);
    // SAFETY: the caller's promise. Only this warp stores these rows; no branch on a row holds an instruction of a
    // warp.
    unsafe {
        let finished = totals.map(Total::finish);
        let inverses = finished.map(|(inverse, _)| inverse);
        let mut chunks = [[[0; 4]; 2]; OT];
        for pair in 0..OT / 2 {
            let tiles = [2 * pair, 2 * pair + 1].map(|dt| o.tile(dt, inverses));
            for r in 0..2 {
                let mut pairs = [0; 4];
                for i in 0..4 {
                    let tile = tiles[i / 2].0;
                    pairs[i] = E::pack(tile[4 * (i % 2) + 2 * r], tile[4 * (i % 2) + 2 * r + 1]);
                }
                chunks[pair][r] = match T::ARE_CHUNKS {
                    true => pairs,
                    false => shuffle::transpose::<1, 2>(pairs, lane),
                };
            }
        }
        let to = work.q_rows(&params.o);
        let first_column = first_column as u32;
        for r in 0..2 {
            let row = first + (lane / 4 + 8 * r as u32) as i32;
            if row < first_row || row >= rows {
                continue;
            }
            let address = to.at(row as u32);
            for pair in 0..OT / 2 {
                let column = first_column + 32 * pair as u32 + 8 * (lane % 4);
                if column < to.elements() {
                    let address = element::at(address, column);
                    if params.o_aligned != 0 {
                        global::store_u32x4(address, chunks[pair][r]);
                    } else {
                        global::store_elements(address, chunks[pair][r], 8);
                    }
                }
            }
            if lane % 4 == 0 && first_column == 0 {
                global::store_f32(work.lse(params, row as u32), finished[r].1);
            }
        }
    }
}

/// Stores the partial results of a row: its part of O that the lane holds, from a first column on, of `dim`, not divided by l; and m
/// and l.
///
/// [`store_partial`](crate::attention::store_partial) does so for the rows of `sm80`'s warps, all from row 0 on. A function
/// of one row for both leaves O of some `sm80` kernels in local memory.
///
/// # Safety
/// The conditions of [`store`]; the row exists.
#[inline(always)]
unsafe fn store_partial_row<C: Score, H: Heads, const OT: usize>(
    params: &ForwardParams,
    work: &WorkTile<H>,
    [row, first_column, dim]: [u32; 3],
    lane: u32,
    o: &[Accumulator; OT],
    r: usize,
    total: Total,
) {
    let index = work.partial_of_unit::<C>(params, row);
    let address = params.partial_o + 4 * index * u64::from(params.dim) + 8 * u64::from(lane % 4);
    for dt in 0..OT {
        let [a, b, c, d] = o[dt].row(r);
        let column = first_column + 16 * dt as u32;
        // SAFETY: the caller's promise.
        unsafe {
            if column < dim {
                global::store_f32x2(address + 4 * u64::from(column), [a, b]);
            }
            if column + 8 < dim {
                global::store_f32x2(address + 4 * u64::from(column) + 32, [c, d]);
            }
        }
    }
    if lane % 4 == 0 && first_column == 0 {
        // SAFETY: the caller's promise.
        unsafe {
            global::store_f32x2(params.partial_softmax + 8 * index, [total.max, total.sum]);
        }
    }
}
