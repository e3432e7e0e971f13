//! What a warp does with its rows after the main loop: it stores o and lse or, if the keys are
//! split, what a combine kernel makes them from.

use super::place::Place;
use super::team::Team;
use super::warp::Warp;
use crate::abi::ForwardParams;
use crate::attention::Total;
use crate::ptx::{global, shared, special};
use crate::tile::registers;
use crate::tile::{Accumulator, Copier, Element, SharedTile};

impl<const MT: usize, const DT: usize, const OT: usize, const QT: usize> Warp<MT, DT, OT, QT> {
    /// Stores the results of the warp's rows, in a block of `threads` threads.
    ///
    /// # Safety
    /// As [`Warp::new`].
    #[inline(always)]
    pub unsafe fn store<E: Element, const PACKED: bool, const T: usize>(
        self,
        p: &ForwardParams,
        threads: u32,
        team: &Team<T>,
    ) {
        let team_rows = 16 * MT as u32;
        // Asked for again: over the loop these would hold registers.
        let place = Place::<PACKED>::of_block(p, team_rows * (threads / 32 / T as u32));
        // SAFETY: the block has this many threads.
        let thread = unsafe { special::thread(threads) };
        let (lane, team_row) = (thread % 32, thread / 32 / T as u32 * team_rows);
        let (row, rows) = (place.first + team_row, Place::<PACKED>::row_count(p));
        // A team past the ragged end of the rows has nothing to store.
        if row >= rows {
            return;
        }
        let exist = rows - row;
        // SAFETY: the caller's promise; the branches depend on the launch and the warp alone.
        unsafe {
            let totals = team.totals(&self.softmax);
            if p.splits > 1 {
                let totals = (team.side == 0).then_some(totals);
                store_partial(p, &place, (row, exist), self.o, totals, |ot| {
                    team.side * OT as u32 + ot as u32
                });
            } else {
                let o_tile = SharedTile::<DT>::new(shared::base());
                let o_tile = o_tile.skip(team_row);
                self.store_final::<E, PACKED, T>(p, &place, lane, team, o_tile, row, exist, totals);
            }
        }
    }

    /// Normalizes O and stores it, by way of the team's rows of the Q tile, from where it can leave
    /// in 16-byte pieces; stores lse. Of the team's rows the first `exist` exist.
    #[inline(always)]
    unsafe fn store_final<E: Element, const PACKED: bool, const T: usize>(
        mut self,
        p: &ForwardParams,
        place: &Place<PACKED>,
        lane: u32,
        team: &Team<T>,
        o_tile: SharedTile<DT>,
        first: u32,
        exist: u32,
        totals: [[Total; 2]; MT],
    ) {
        // SAFETY: the caller's promise. The other lanes may still be reading Q from these rows.
        unsafe { team.sync() }
        let columns = o_tile.skip_columns(team.side * 16 * OT as u32);
        for mt in 0..MT {
            let (factor, lse) = totals[mt][0].finish();
            let (factor8, lse8) = totals[mt][1].finish();
            let lse = [lse, lse8];
            // SAFETY: the caller's promise; nobody but this warp uses its part of the tile, and one lane
            // of the team stores the lse of a row.
            unsafe {
                for dt in 0..OT {
                    self.o[mt][dt].scale_rows([factor, factor8]);
                    columns.set(lane, mt, dt, self.o[mt][dt].to_operand::<E>());
                }
                for r in 0..2 {
                    let row = (16 * mt + 8 * r) as u32 + lane / 4;
                    if lane % 4 == 0 && team.side == 0 && row < exist {
                        global::store_f32(place.lse(p, first + row), lse[r]);
                    }
                }
            }
        }
        // SAFETY: the caller's promise.
        unsafe {
            team.sync();
            let o = Copier::new(place.q_rows(&p.o), lane, 32);
            let rows = (16 * MT / T) as u32;
            let skip = team.side * rows;
            let exist = exist.saturating_sub(skip);
            o.store(
                o_tile.skip(skip),
                first + skip,
                rows,
                exist,
                p.o_aligned != 0,
            );
        }
    }
}

/// Stores O as it is and, if `totals` are given, the maximum and sum of each row: of the rows from `first`
/// on, of which `exist` exist, the slices of 16 columns `column(0..OT)`. Four lanes fill a 32-byte
/// sector.
///
/// # Safety
/// As [`Warp::new`]; the rows and columns are this warp's alone.
#[inline(always)]
pub unsafe fn store_partial<const PACKED: bool, const MT: usize, const OT: usize>(
    p: &ForwardParams,
    place: &Place<PACKED>,
    (first, exist): (u32, u32),
    o: [[Accumulator; OT]; MT],
    totals: Option<[[Total; 2]; MT]>,
    column: impl Fn(usize) -> u32,
) {
    let lane = special::lane();
    let dim = registers::opaque(p.dim);
    for mt in 0..MT {
        for r in 0..2 {
            let row = (16 * mt + 8 * r) as u32 + lane / 4;
            if row >= exist {
                continue;
            }
            let index = place.partial(p, first + row);
            let address = p.partial_o + 4 * index * u64::from(dim) + 8 * u64::from(lane % 4);
            // SAFETY: the row exists and is this warp's; its elements are its four lanes', and
            // the first of these stores maximum and sum.
            unsafe {
                for ot in 0..OT {
                    let [a, b, c, d] = o[mt][ot].row(r);
                    let column = 16 * column(ot);
                    if column < dim {
                        global::store_f32x2(address + 4 * u64::from(column), [a, b]);
                    }
                    if column + 8 < dim {
                        global::store_f32x2(address + 4 * u64::from(column) + 32, [c, d]);
                    }
                }
                if let Some(totals) = totals
                    && lane % 4 == 0
                {
                    let Total { max, sum } = totals[mt][r];
                    global::store_f32x2(p.partial_softmax + 8 * index, [max, sum]);
                }
            }
        }
    }
}
