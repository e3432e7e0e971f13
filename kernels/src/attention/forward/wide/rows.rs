//! What a warp holds of its rows, and what a step does to it.

use super::stream::Stream;
use super::tile::Tile;
use super::{MT, NT};
use crate::abi::ForwardParams;
use crate::attention::forward::begin;
use crate::attention::options::mask::Mask;
use crate::attention::options::score::{Corner, Score};
use crate::attention::steps::softmax::Total;
use crate::attention::workload::heads::Heads;
use crate::attention::workload::sequence::Sequence;
use crate::attention::{Softmax, Team, WorkTile, store_partial};
use crate::ptx::{barrier, global, shared, special};
use crate::tile::registers::again;
use crate::tile::whole::scale_rows;
use crate::tile::{Accumulator, Copier, Element, Operand, SharedTile, multiply_transposed};

/// A slice of the columns of the team's rows, of Q or P.
///
/// # Safety
/// The conditions of [`SharedTile::a`].
#[inline(always)]
pub unsafe fn slice<const DT: usize>(
    rows: SharedTile<DT>,
    lane: u32,
    slice: usize,
) -> [Operand; MT] {
    let mut operands = [Operand::ZERO; MT];
    for mt in 0..MT {
        // SAFETY: the caller's promise.
        operands[mt] = unsafe { rows.a(lane, mt, slice) };
    }
    operands
}

/// The slices of O's columns that a warp of a team has.
#[inline(always)]
pub fn column_of<const T: usize>(team: &Team<T>) -> impl Fn(usize) -> usize + Copy {
    let side = team.side as usize;
    move |ot| ot * T | side
}

/// What a warp holds of its rows from step to step: m and l, and O.
pub struct Rows<C, const OT: usize> {
    score: C,
    softmax: Softmax<MT>,
    /// O, before its rows are divided.
    pub o: [[Accumulator; OT]; MT],
}

impl<C: Score, const OT: usize> Rows<C, OT> {
    /// Line 5: `O = 0, l = 0, m = -inf`. Of the team that has the rows from `row` on the `first` warp counts sinks.
    #[inline(always)]
    pub fn new<M: Mask, H: Heads>(tile: &Tile<M, H>, row: u32, first: bool) -> Self {
        let (params, work) = (tile.params, &tile.work);
        let score = begin::score::<H, C>(params, work);
        let mut softmax = Softmax::new(score.scale());
        let row = (work.first + row) as i32;
        begin::take_sinks::<H, C, MT>(&mut softmax, params, work, tile.split, row, first);
        let o = [[Accumulator::ZERO; OT]; MT];
        Rows { score, softmax, o }
    }

    /// Line 8: the scores of block `j`, `S = Q K^T`, in the warp's part of the keys.
    ///
    /// # Safety
    /// The conditions of [`wide`](super::wide); all threads of the block make the call.
    #[inline(always)]
    pub unsafe fn scores<
        E: Element,
        M: Mask,
        H: Heads,
        const T: usize,
        const DT: usize,
        const S: usize,
    >(
        &self,
        stream: &mut Stream<M, H, DT, S>,
        tile: &Tile<M, H>,
        team: &Team<T>,
        lane: u32,
        j: u32,
    ) -> [[Accumulator; NT]; MT] {
        let warp_key = 16 * NT as u32 * team.side;
        let mut s = [[Accumulator::ZERO; NT]; MT];
        // SAFETY: the caller's promise; each slice is waited for, and released after its use.
        unsafe {
            for _ in 0..stream.windows {
                stream.wait::<C>();
                let [q_tile, k_tile] = stream.windows_here();
                let (q_tile, k_tile) = (q_tile.skip(team.row), k_tile.skip(warp_key));
                let q = |dt: usize| slice(q_tile, lane, dt);
                multiply_transposed::<E, _, _, MT, NT, _>(&mut s, q, k_tile, lane);
                stream.release_windows();
            }
        }
        if self.score.scale().negative {
            s = s.map(|row| row.map(Accumulator::negate));
        }
        let (query, key) = (tile.work.first + team.row, tile.first_key(j) + warp_key);
        let corner = Corner::new(query as i32, key as i32, tile.work.sequence, tile.split);
        self.score.apply::<false, MT, NT>(&mut s, corner);
        s
    }

    /// Line 9, and the factor of line 10: P goes to the team's rows of `p_tile`.
    ///
    /// # Safety
    /// The conditions of [`Team::combine`]; no warp of the team reads P.
    #[inline(always)]
    pub unsafe fn softmax<E: Element, const T: usize, const KT: usize>(
        &mut self,
        mut s: [[Accumulator; NT]; MT],
        team: Team<T>,
        p_tile: SharedTile<KT>,
        lane: u32,
    ) {
        // SAFETY: the caller's promise; the warp alone writes its columns of P.
        unsafe {
            let mut maxima = [[0.0; 2]; MT];
            for mt in 0..MT {
                maxima[mt] = self.softmax.maxima(&s[mt]);
            }
            let maxima = team.combine(maxima, f32::max);
            for mt in 0..MT {
                let factors = self.softmax.update(mt, &mut s[mt], maxima[mt]);
                scale_rows(&mut self.o[mt], factors);
                for nt in 0..NT {
                    let p = s[mt][nt].to_operand::<E>();
                    p_tile.set(lane, mt, NT * team.side as usize + nt, p);
                }
            }
        }
    }

    /// Lines 12 to 15: stores O and lse or, if the keys are split, what a combine kernel makes them from. O goes through
    /// shared memory, from where it leaves in 16-byte pieces.
    ///
    /// # Safety
    /// The conditions of [`wide`](super::wide); all threads of the block make the call.
    #[inline(always)]
    pub unsafe fn store<E: Element, H: Heads, const W: usize, const T: usize, const DT: usize>(
        self,
        params: &ForwardParams,
        team: &Team<T>,
    ) {
        let (br, threads, lane) = ((16 * MT * W / T) as u32, 32 * W as u32, special::lane());
        // SAFETY: the caller's promise.
        let (mut o, totals) = (self.o, unsafe { team.totals(&self.softmax) });
        // Held over the loop, it spills 12 bytes at D = 1024.
        let work = again(|| WorkTile::<H>::of_block::<C>(params, br));
        let first = work.first + team.row;
        let exist = work.row_count::<C>().saturating_sub(first);
        let column = column_of(team);
        // SAFETY: the caller's promise. Rows and columns are the warp's own until the second barrier; one lane of
        // the team stores the lse of a row.
        unsafe {
            if Sequence::split_count(params) > 1 {
                let totals = (team.side == 0).then_some(totals);
                let column = |ot| column(ot) as u32;
                let rows = (first, exist);
                return store_partial::<E, _, C, _, _>(params, &work, rows, o, totals, column);
            }
            let o_tile = SharedTile::<DT>::new(shared::base());
            barrier::block();
            for mt in 0..MT {
                let finished = totals[mt].map(Total::finish);
                scale_rows(&mut o[mt], finished.map(|(factor, _)| factor));
                for ot in 0..OT {
                    let o = o[mt][ot].to_operand::<E>();
                    o_tile.skip(team.row).set(lane, mt, column(ot), o);
                }
                for r in 0..2 {
                    let row = (16 * mt + 8 * r) as u32 + lane / 4;
                    if team.side == 0 && lane % 4 == 0 && row < exist {
                        global::store_f32(work.lse(params, first + row), finished[r].1);
                    }
                }
            }
            barrier::block();
            let rows = work.o_rows::<C>(params);
            let copier = Copier::<DT, _>::new(rows, special::thread(threads), threads);
            let exist = work.row_count::<C>() - work.first;
            copier.store(o_tile, work.first, br, exist, params.o_aligned != 0);
        }
    }
}
