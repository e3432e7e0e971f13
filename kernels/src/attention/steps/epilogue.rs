//! After the main loop: a warp stores O and lse of its rows or, where the keys are split, the partial results
//! that a combine kernel needs.

use super::team::Team;
use super::warp::Warp;
use crate::abi::ForwardParams;
use crate::attention::Total;
use crate::attention::options::score::Score;
use crate::attention::workload::heads::Heads;
use crate::attention::workload::sequence::Sequence;
use crate::attention::workload::tile::WorkTile;
use crate::ptx::{global, shared, special};
use crate::tile::registers::{again, opaque};
use crate::tile::{Accumulator, Copier, Fixed, Numbers, SharedTile};

impl<const MT: usize, const DT: usize, const OT: usize, const QT: usize, C: Score>
    Warp<MT, DT, OT, QT, Fixed, C>
{
    /// Lines 12 to 15: stores the results of the warp's rows, in a block of `threads` threads whose `work` is found anew.
    ///
    /// # Safety
    /// The conditions of [`Warp::new`].
    #[inline(always)]
    pub unsafe fn store<B: Numbers, H: Heads, const T: usize>(
        mut self,
        params: &ForwardParams,
        threads: u32,
        team: &Team<T>,
        work: impl Fn(&ForwardParams, u32) -> WorkTile<H>,
    ) {
        let team_rows = 16 * MT as u32;
        // SAFETY: the block has this many threads.
        // Held over the loop, they take up to 9 registers more.
        let (work, thread) = again(|| unsafe {
            let br = team_rows * (threads / 32 / T as u32);
            (work(params, br), special::thread(threads))
        });
        let (lane, team_row) = (thread % 32, thread / 32 / T as u32 * team_rows);
        let (row, rows) = (work.first + team_row, work.row_count::<C>());
        // A team whose rows lie past the last one has nothing to store.
        if row >= rows {
            return;
        }
        let exist = rows - row;
        for mt in 0..MT {
            for ot in 0..OT {
                self.o[mt][ot] = B::sorted(self.o[mt][ot]);
            }
        }
        // SAFETY: the caller's promise; the branches depend on the launch and the warp alone.
        unsafe {
            let totals = team.totals(&self.softmax);
            if Sequence::split_count(params) > 1 {
                let totals = (team.side == 0).then_some(totals);
                let column = |ot| team.side * OT as u32 + ot as u32;
                store_partial::<B, _, C, _, _>(params, &work, (row, exist), self.o, totals, column);
            } else {
                let o_tile = SharedTile::<DT>::new(shared::base());
                let o_tile = o_tile.skip(team_row);
                self.store_final::<B, H, T>(params, &work, lane, team, o_tile, row, exist, totals);
            }
        }
    }

    /// Divides O by l and stores it, and stores lse, of the team's first `exist` rows. O passes through the team's
    /// rows of the Q tile, from where it leaves in 16-byte pieces.
    #[inline(always)]
    unsafe fn store_final<B: Numbers, H: Heads, const T: usize>(
        mut self,
        params: &ForwardParams,
        work: &WorkTile<H>,
        lane: u32,
        team: &Team<T>,
        o_tile: SharedTile<DT>,
        first: u32,
        exist: u32,
        totals: [[Total; 2]; MT],
    ) {
        // SAFETY: the caller's promise. After it no lane reads Q from these rows.
        unsafe { team.sync() }
        let columns = o_tile.skip_columns(team.side * 16 * OT as u32);
        for mt in 0..MT {
            let (factor, lse) = totals[mt][0].finish();
            let (factor8, lse8) = totals[mt][1].finish();
            let lse = [lse, lse8];
            // SAFETY: the caller's promise; only this warp uses its part of the tile, and one lane of the team
            // stores the lse of a row.
            unsafe {
                for dt in 0..OT {
                    self.o[mt][dt].scale_rows([factor, factor8]);
                    let o = self.o[mt][dt].to_operand::<B::Element>();
                    columns.set_pairs(lane, mt, dt, o, B::PAIRS);
                }
                for r in 0..2 {
                    let row = (16 * mt + 8 * r) as u32 + lane / 4;
                    if lane % 4 == 0 && team.side == 0 && row < exist {
                        global::store_f32(work.lse(params, first + row), lse[r]);
                    }
                }
            }
        }
        // SAFETY: the caller's promise.
        unsafe {
            team.sync();
            let o = Copier::new(work.o_rows::<C>(params), lane, 32);
            let rows = (16 * MT / T) as u32;
            let skip = team.side * rows;
            let exist = exist.saturating_sub(skip);
            o.store(
                o_tile.skip(skip),
                first + skip,
                rows,
                exist,
                params.o_aligned != 0,
            );
        }
    }
}

/// Stores partial results of the rows from `first` on, of which `exist` exist: O, not divided by l, in the slices
/// `column(0..OT)` of 16 columns, where the lanes' pairs lie as `B` says; and m and l, where `totals` has them. Four lanes fill a 32-byte sector.
///
/// # Safety
/// The conditions of [`Warp::new`]; no other warp stores these rows and columns.
#[inline(always)]
pub unsafe fn store_partial<B: Numbers, H: Heads, C: Score, const MT: usize, const OT: usize>(
    params: &ForwardParams,
    work: &WorkTile<H>,
    (first, exist): (u32, u32),
    o: [[Accumulator; OT]; MT],
    totals: Option<[[Total; 2]; MT]>,
    column: impl Fn(usize) -> u32,
) {
    let lane = special::lane();
    // Opaque: else what is known of columns is computed for full results, too: up to 130 instructions.
    let dim = opaque(C::value_dim(params));
    for mt in 0..MT {
        for r in 0..2 {
            let row = (16 * mt + 8 * r) as u32 + lane / 4;
            if row >= exist {
                continue;
            }
            let index = work.partial_of_unit::<C>(params, first + row);
            let lane_bytes = 4 * u64::from(B::PAIRS.lane) * u64::from(lane % 4);
            let address = params.partial_o + 4 * index * u64::from(dim) + lane_bytes;
            // SAFETY: the row exists; each of its four lanes stores its own elements, and the first of them m
            // and l.
            unsafe {
                for ot in 0..OT {
                    let [a, b, c, d] = o[mt][ot].row(r);
                    let column = 16 * column(ot);
                    if column < dim {
                        global::store_f32x2(address + 4 * u64::from(column), [a, b]);
                    }
                    if column + 8 < dim {
                        let second = address + 4 * u64::from(column + B::PAIRS.half);
                        global::store_f32x2(second, [c, d]);
                    }
                }
                if let Some(totals) = totals
                    && lane % 4 == 0
                {
                    let Total { max, sum } = totals[mt][r];
                    global::store_f32x2(params.partial_softmax + 8 * index, [max, sum]);
                }
            }
        }
    }
}
