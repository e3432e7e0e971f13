//! Three ways to store O: from registers, through shared memory, or collected by shuffles.
//!
//! A lane holds pairs of neighbours, 4 bytes; four lanes fill half a 32-byte sector. Through shared memory every
//! lane gets 16 bytes of a row. So it does by four shuffles: a lane's four pairs of a 16x16 tile belong to four
//! pieces of 16 bytes, and the same four lanes hold these pieces.

use crate::options::OStore;
use crate::params::LadderParams;
use kernels::abi::ForwardParams;
use kernels::attention::Total;
use kernels::attention::options::score::Scaled;
use kernels::attention::workload::heads::OneHead;
use kernels::attention::{WorkTile, store_partial};
use kernels::layout::rows::Rows;
use kernels::layout::{fragment, swizzle::Swizzle};
use kernels::ptx::{barrier, global, shared, shuffle, special};
use kernels::tile::{Accumulator, Copier, Element, SharedTile};

/// The rows and columns that this warp stores: the rows from `warp_row` on, and the slices `column(0..OT)` of 16
/// columns.
pub struct Part<F: Fn(usize) -> u32> {
    /// Rows of the block.
    pub rows: u32,
    /// Columns of the block, a multiple of 64.
    pub width: u32,
    /// First row of the warp.
    pub warp_row: u32,
    /// Whether the warp stores the lse, or maximum and sum, of its rows.
    pub stores_lse: bool,
    /// The slice of 16 columns of the block that a slice of the warp is.
    pub column: F,
}

/// Stores O and lse or, if the keys are split, partial results for a combine kernel.
///
/// # Safety
/// All threads of the block make the same call, with the launch that [`LadderParams`] describes; after the next
/// barrier nobody uses shared memory for other things.
#[inline(always)]
pub unsafe fn store<E: Element, const MT: usize, const OT: usize>(
    params: &LadderParams,
    threads: u32,
    part: Part<impl Fn(usize) -> u32>,
    mut o: [[Accumulator; OT]; MT],
    totals: [[Total; 2]; MT],
) {
    let p = &params.forward;
    // Made again: over the loop these would hold registers.
    let place = WorkTile::<OneHead>::of_block::<Scaled>(p, part.rows);
    let first = place.first + part.warp_row;
    let exist = p.seqlen_q.saturating_sub(first);
    let lane = special::lane();
    if p.splits > 1 {
        let totals = part.stores_lse.then_some(totals);
        // SAFETY: the caller's promise.
        unsafe {
            store_partial::<E, _, Scaled, _, _>(p, &place, (first, exist), o, totals, part.column)
        }
        return;
    }
    for mt in 0..MT {
        let finished = totals[mt].map(Total::finish);
        for ot in 0..OT {
            o[mt][ot].scale_rows(finished.map(|(factor, _)| factor));
        }
        for r in 0..2 {
            let row = (16 * mt + 8 * r) as u32 + lane / 4;
            if part.stores_lse && lane % 4 == 0 && row < exist {
                // SAFETY: the row exists and is this lane's.
                unsafe { global::store_f32(place.lse(p, first + row), finished[r].1) }
            }
        }
    }
    // Unaligned rows are stored by elements, and only this way can.
    if params.options.o_store == OStore::Shared as u32 || p.o_aligned == 0 {
        // SAFETY: the caller's promise; the branch depends on the launch alone.
        unsafe { by_shared_memory::<E, MT, OT>(p, &place, threads, part, o) }
        return;
    }
    let rows = place.q_rows(&p.o);
    for mt in 0..MT {
        let row = |row: u32| 16 * mt as u32 + row;
        let address = |right: u32, row: u32| rows.at(first + row) + 2 * u64::from(right);
        if params.options.o_store == OStore::Shuffle as u32 {
            let (row, right) = (row(lane / 4 + 8 * (lane % 2)), 8 * (lane % 4 / 2));
            let to = address(right, row);
            for ot in 0..OT {
                let column = 16 * (part.column)(ot);
                // SAFETY: the rows and columns are this lane's; every lane reaches the shuffles.
                unsafe {
                    let piece = shuffle::transpose::<1, 2>(o[mt][ot].to_operand::<E>().0, lane);
                    if row < exist && column + right < p.dim {
                        global::store_u32x4(to + 2 * u64::from(column), piece);
                    }
                }
            }
        } else {
            for r in 0..4 {
                let (in_tile, right) = fragment::operand_a(lane, r as u32);
                let to = address(right, row(in_tile));
                for ot in 0..OT {
                    let column = 16 * (part.column)(ot);
                    if row(in_tile) < exist && column + right < p.dim {
                        let pair = o[mt][ot].to_operand::<E>().0[r];
                        // SAFETY: the row and column exist and are this lane's.
                        unsafe { global::store_u32(to + 2 * u64::from(column), pair) }
                    }
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn by_shared_memory<E: Element, const MT: usize, const OT: usize>(
    p: &ForwardParams,
    place: &WorkTile<OneHead>,
    threads: u32,
    part: Part<impl Fn(usize) -> u32>,
    o: [[Accumulator; OT]; MT],
) {
    let arrangement = Swizzle::new(part.width / 8);
    let tile = SharedTile::<4, Swizzle> {
        base: shared::base(),
        arrangement,
    };
    let warp_tile = tile.skip(part.warp_row);
    let lane = special::lane();
    // SAFETY: the caller's promise. Rows and columns are a warp's own until the second barrier.
    unsafe {
        let thread = special::thread(threads);
        barrier::block();
        for mt in 0..MT {
            for ot in 0..OT {
                let operand = o[mt][ot].to_operand::<E>();
                warp_tile.set(lane, mt, (part.column)(ot) as usize, operand);
            }
        }
        barrier::block();
        let rows = place.q_rows(&p.o);
        let copier = Copier::<4, _, Swizzle>::arranged(rows, thread, threads, arrangement);
        let exist = p.seqlen_q - place.first;
        let mut column = 0;
        while column < p.dim {
            let from = tile.skip_columns(column);
            let copier = copier.skip_columns(column);
            copier.store(from, place.first, part.rows, exist, p.o_aligned != 0);
            column += 64;
        }
    }
}
