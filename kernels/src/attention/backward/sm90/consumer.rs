//! A consuming warpgroup: its keys, the queries of a step, and how dS, dQ, dK and dV leave it.

use super::KEYS;
use super::guard::{LeaveOut, add_left_out, search};
use super::job::{coverage, query_tile};
use super::reduce::{SHARING, read, written};
use super::roles::thread;
use super::store::store;
use super::write::write_ds;
use crate::abi::{BackwardParams, Coverage};
use crate::attention::backward::job::{Job, Step};
use crate::attention::guard::panels::add_guarded_gradients;
use crate::attention::options::mask::{Interval, Mask, Span, Visible};
use crate::attention::options::score::{Corner, Score};
use crate::layout::descriptor::Panels;
use crate::layout::rows::Rows;
use crate::layout::sm90_backward::Sm90BackwardMemory;
use crate::layout::sum;
use crate::ptx::{barrier, bulk, mbarrier, shared, special};
use crate::tile::registers::opaque_in;
use crate::tile::{Accumulator, Element, Operand};
use core::hint::cold_path;

/// A consuming warpgroup, whose steps have `16 * NT` queries. It stores dS where `STORES`, else it adds to the sums of dQ.
#[derive(Clone, Copy)]
pub struct Consumer<'a, M, const NT: usize, const STORES: bool> {
    pub params: &'a BackwardParams,
    pub memory: Sm90BackwardMemory,
    pub job: Job<M>,
    pub warpgroup: u32,
}

/// A block of queries: a step.
#[derive(Clone, Copy)]
pub struct Block {
    step: Step,
    /// The stage that has its tiles.
    stage: u32,
    first_query: i32,
    pub q: Panels,
    pub d_o: Panels,
    pub ds: Panels,
}

impl<M: Mask, const NT: usize, const STORES: bool> Consumer<'_, M, NT, STORES> {
    /// Queries of a step.
    const BR: u32 = 16 * NT as u32;

    /// The first of its keys in the block's tile.
    #[inline(always)]
    pub fn first_row(&self) -> u32 {
        self.warpgroup * KEYS
    }

    /// The first of its keys.
    #[inline(always)]
    pub fn first_key(&self) -> u32 {
        self.job.first_key + self.first_row()
    }

    /// The block of queries of a step, in a stage.
    #[inline(always)]
    pub fn block(&self, step: Step, stage: u32) -> Block {
        Block {
            step,
            stage,
            first_query: self.first_query(step) as i32,
            q: self.memory.q(stage),
            d_o: self.memory.d_o(stage),
            ds: self.memory.ds(if STORES { 0 } else { stage }),
        }
    }

    /// The first query of a step.
    #[inline(always)]
    fn first_query(&self, step: Step) -> u32 {
        query_tile::<M, STORES>(&self.job, step, Self::BR) * Self::BR
    }

    /// Batch entry and query head of a block.
    #[inline(always)]
    pub fn head(&self, block: Block) -> [u32; 2] {
        let head = self.job.head(&self.params.forward, block.step.head);
        // Else products of the batch entry and strides take 4 uniform registers over the loop. Where a bias has a gradient, those run
        // out: the assembler then holds steps in others. With stored dS at D = 128 it spills 100 bytes for 20, else 128 for 52.
        let batch = opaque_in(self.job.sequence.batch, block.first_query as u32);
        [batch, head]
    }

    /// Which pairs the boolean mask shows.
    #[inline(always)]
    fn coverage(&self, block: Block) -> Coverage {
        coverage::<M, STORES>(&self.job, block.step, Self::BR, self.warpgroup)
    }

    /// Whether some pairs do not see each other, where queries of `whole` see all keys.
    #[inline(always)]
    pub fn masks(&self, block: Block, whole: Span) -> bool {
        let first = block.first_query;
        M::Queries::may_have_gaps() && self.coverage(block) != Coverage::All
            || first < whole.start
            || first + Self::BR as i32 > whole.end
    }

    /// The queries that see the two keys of a lane, counted from the block's first one.
    #[inline(always)]
    pub fn queries(&self, block: Block) -> [M::Queries; 2] {
        let coverage = self.coverage(block);
        let thread = thread();
        let key = self.first_key() + thread / 32 * 16 + thread % 32 / 4;
        let job = self.job.of_head(&self.params.forward, block.step.head);
        // No `map` to the queries: on cold paths its array would stay in local memory.
        let [upper, lower] = [job.queries(key), job.queries(key + 8)];
        [upper, lower].map(|queries| {
            queries
                .counted_from(block.first_query)
                .of_coverage(coverage)
        })
    }

    /// The score of a block's pairs, and the first pair of the warp.
    #[inline(always)]
    pub fn scores<C: Score>(&self, block: Block) -> (C, Corner) {
        let [batch, head] = self.head(block);
        let score = C::new(&self.params.forward, batch, head);
        let key = (self.first_key() + thread() / 32 * 16) as i32;
        let sequence = self.job.sequence;
        let corner = Corner::new(block.first_query, key, sequence, sequence.whole());
        (score, corner)
    }

    /// Brings on to the L2 cache what the next step adds to its scores, of a quarter of the queries for each warp.
    ///
    /// # Safety
    /// The conditions of [`Score::prefetch`].
    #[inline(always)]
    pub unsafe fn prefetch<C: Score>(&self, (score, corner): (C, Corner), block: Block) {
        let next = self.first_query(block.step.next(&self.job));
        let rows = Self::BR / 4;
        let next = Corner {
            query: (next + thread() / 32 * rows) as i32,
            key: self.first_key() as i32,
            ..corner
        };
        // SAFETY: the caller's promise.
        unsafe { score.prefetch(next, [rows, KEYS]) }
    }

    /// What the products of a block leave out, where `keys` says whether K is not finite.
    ///
    /// # Safety
    /// All lanes of the warpgroup make the same call, with Q and dO landed.
    #[inline(always)]
    pub unsafe fn leave_out<E: Element, const DT: usize>(
        &self,
        block: Block,
        masked: bool,
        keys: bool,
    ) -> LeaveOut {
        if M::UNIFORM || !masked {
            return LeaveOut::default();
        }
        // SAFETY: the caller's promise.
        let queries = unsafe {
            search::<E, DT, NT>(block.q, self.warpgroup)
                | search::<E, DT, NT>(block.d_o, self.warpgroup)
        };
        LeaveOut { queries, keys }
    }

    /// Adds product 3 or 4 with a tile that the step left out.
    ///
    /// # Safety
    /// Every lane of the warp makes the same call, with the tile landed.
    #[inline(always)]
    pub unsafe fn add_left_out<E: Element, const DT: usize>(
        &self,
        block: Block,
        sum: &mut [Accumulator; DT],
        a: &mut [Operand; NT],
        tile: Panels,
    ) {
        cold_path();
        // SAFETY: the caller's promise.
        unsafe {
            add_guarded_gradients::<E, DT, NT>(tile, sum, a, self.queries(block));
            barrier::warp();
        }
    }

    /// Adds product 5, which the step left out.
    ///
    /// # Safety
    /// Every lane of the warp makes the same call, with dS and K landed.
    #[inline(always)]
    pub unsafe fn add_left_out_keys<E: Element, const QT: usize>(
        &self,
        block: Block,
        dq: &mut [Accumulator; QT],
    ) {
        let (row, k) = self.part_of_dq();
        let mask = self.job.of_head(&self.params.forward, block.step.head).mask;
        let first = [block.first_query + row as i32, self.job.first_key as i32];
        // SAFETY: the caller's promise.
        unsafe { add_left_out::<E, M, QT>(mask, first, (block.ds, row), k, dq) }
    }

    /// The warpgroup's part of product 5: its first row of dS, and its columns of K.
    #[inline(always)]
    pub fn part_of_dq(&self) -> (u32, Panels) {
        let k = self.memory.k();
        match Self::BR {
            128 => (64 * self.warpgroup, k),
            _ => (0, k.skip_panels(self.warpgroup)),
        }
    }

    /// Passes dS on: to the warp that stores it, or to both warpgroups, which multiply it by K.
    ///
    /// # Safety
    /// All lanes of the warpgroup make the same call, once for each step.
    #[inline(always)]
    pub unsafe fn pass_ds(&self, block: Block, ds: &[Operand; NT]) {
        // SAFETY: the caller's promise. The barriers say that the tile is read, and that it is written.
        unsafe {
            if STORES {
                barrier::some(read(0, self.warpgroup), SHARING);
            }
            write_ds(block.ds, self.first_row(), ds);
            if STORES {
                barrier::arrive(written(0, self.warpgroup), SHARING);
            } else {
                barrier::warp();
                mbarrier::arrive_once(self.memory.ds_full(block.stage));
            }
        }
    }

    /// Passes the warpgroup's part of dQ, in the order of the sums, to the warp that adds it to them.
    ///
    /// # Safety
    /// All lanes of the warpgroup make the same call, once for each step.
    #[inline(always)]
    pub unsafe fn pass_dq<const QT: usize>(&self, block: Block, dq: &[Accumulator; QT]) {
        let stage = block.stage % self.memory.dq_stages();
        // SAFETY: the caller's promise. The barriers say that the place is read, and that it is written.
        unsafe {
            barrier::some(read(stage, self.warpgroup), SHARING);
            let to = self.memory.dq(stage, self.warpgroup);
            let to = to + thread() / 32 * QT as u32 * sum::BYTES;
            for qt in 0..QT {
                for i in 0..8 {
                    let place = sum::place(special::lane(), i as u32);
                    shared::store_f32(to + qt as u32 * sum::BYTES + 4 * place, dq[qt].0[i]);
                }
            }
            bulk::fence();
            barrier::arrive(written(stage, self.warpgroup), SHARING);
        }
    }

    /// Stores dK and dV.
    ///
    /// # Safety
    /// All lanes of the warpgroup make the same call, after its last product.
    #[inline(always)]
    pub unsafe fn store<E: Element, C: Score, const DT: usize>(
        &self,
        mut dk: [Accumulator; DT],
        dv: &[Accumulator; DT],
    ) {
        let (params, sequence, first) = (self.params, self.job.sequence, self.first_key());
        let count = sequence.keys.saturating_sub(first);
        let rows = |tensor, dim| {
            let rows = sequence.head_rows(tensor, self.job.kv_head, dim);
            rows.skip(first)
        };
        let dv_rows = rows(&params.dv, C::value_dim(&params.forward));
        // SAFETY: the caller's promise; the rows are the warpgroup's alone.
        unsafe {
            store::<E, DT>(dv, dv_rows, count, params.dv_aligned);
            for dt in 0..DT {
                dk[dt].scale_rows([params.forward.scale; 2]);
            }
            let dk_rows = rows(&params.dk, params.forward.dim);
            store::<E, DT>(&dk, dk_rows, count, params.dk_aligned);
        }
    }
}
