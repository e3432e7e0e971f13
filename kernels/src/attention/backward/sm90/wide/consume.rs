//! The consumers: one warpgroup computes dV, the other dK.

use super::super::elements::of_columns;
use super::super::guard::{Columns, search};
use super::super::job::job_at;
use super::super::products::{add_columns, multiply_rows, wait};
use super::super::reduce::SHARING;
use super::super::roles::thread;
use super::super::store::store;
use super::super::write::write_ds;
use super::{BOTH, DS_EMPTY, DS_FULL, NT, P_EMPTY, P_FULL, SIZE, half_at};
use crate::abi::BackwardParams;
use crate::attention::backward::job::{Job, Step};
use crate::attention::guard::panels::add_guarded_gradients;
use crate::attention::options::mask::{Interval, Mask};
use crate::layout::descriptor::Panels;
use crate::layout::rows::Rows;
use crate::layout::sm90_backward::Sm90WideMemory;
use crate::ptx::{barrier, math, mbarrier, shared, special};
use crate::tile::registers::{again, opaque};
use crate::tile::wgmma::{self, Product};
use crate::tile::{Accumulator, Element, Operand, Ring};
use core::f32::consts::LOG2_E;
use core::hint::cold_path;

/// The stages of Q and dO.
type Stages = Ring<{ Sm90WideMemory::STAGES }>;

/// A consuming warpgroup.
#[derive(Clone, Copy)]
struct Consumer<'a, M: Mask> {
    params: &'a BackwardParams,
    memory: Sm90WideMemory,
    job: Job<M>,
    first_key: u32,
    /// The queries that see all keys.
    whole: M::Queries,
    /// 0 has dV, 1 has dK.
    warpgroup: u32,
}

impl<M: Mask> Consumer<'_, M> {
    /// The tile of queries of a step's first product (0) or second one (1), with its barrier.
    #[inline(always)]
    fn tile(&self, ring: Stages, product: u32) -> (Panels, u32) {
        let (which, stage) = (self.warpgroup ^ product, ring.stage());
        (
            self.memory.queries(which, stage),
            self.memory.queries_full(which, stage),
        )
    }

    /// The queries that see a lane's two keys, counted from the first one of a step.
    #[inline(always)]
    fn queries(&self, step: Step) -> [M::Queries; 2] {
        let thread = thread();
        let key = self.first_key + thread / 32 * 16 + thread % 32 / 4;
        let first = (step.tile * SIZE) as i32;
        [key, key + 8].map(|key| self.job.queries(key).counted_from(first))
    }

    /// Whether some pairs of a step do not see each other.
    #[inline(always)]
    fn masks(&self, step: Step) -> bool {
        let first = (step.tile * SIZE) as i32;
        first < self.whole.start() || first + SIZE as i32 > self.whole.end()
    }

    /// Issues the first product of a step: S or dP. Gives it, and lse or delta of the lane's columns.
    ///
    /// # Safety
    /// All lanes of the warpgroup make the same calls, in the order of the steps.
    #[inline(always)]
    unsafe fn issue_rows<E: Element, const DT: usize>(
        &self,
        ring: Stages,
    ) -> ([Accumulator; NT], [[[f32; 2]; 2]; NT]) {
        let (tile, full) = self.tile(ring, 0);
        // Opaque: the compiler would hold each operand's word over the loop, 16 instructions.
        let keys = self.memory.keys(opaque(self.warpgroup));
        // SAFETY: the caller's promise.
        unsafe {
            ring.wait(full);
            // Before the product: behind its reads of shared memory these would wait.
            let rows = self.memory.rows(self.warpgroup, ring.stage());
            let mut statistics = [[[0.0; 2]; 2]; NT];
            for nt in 0..NT {
                statistics[nt] = of_columns(rows, nt);
            }
            wgmma::fence();
            (multiply_rows::<E, DT, NT>((keys, 0), tile), statistics)
        }
    }

    /// Issues the second product of a step: adds to dV or dK.
    ///
    /// # Safety
    /// The conditions of [`issue_rows`](Self::issue_rows).
    #[inline(always)]
    unsafe fn issue_columns<E: Element, const DT: usize>(
        &self,
        ring: Stages,
        sum: &mut [Accumulator; DT],
        p: &[Operand; NT],
        leave_out: bool,
    ) where
        [Accumulator; DT]: Product,
    {
        let (tile, full) = self.tile(ring, 1);
        // SAFETY: the caller's promise.
        unsafe {
            ring.wait(full);
            let columns = Columns::new::<M>(tile, self.memory.zeros(), leave_out);
            add_columns::<E, DT, NT>(sum, p, columns);
        }
    }

    /// P = exp(S - lse), or dS = P * (dP - delta), in the place of S or dP.
    ///
    /// # Safety
    /// The conditions of [`issue_rows`](Self::issue_rows).
    #[inline(always)]
    unsafe fn elements(
        &self,
        x: &mut [Accumulator; NT],
        statistics: [[[f32; 2]; 2]; NT],
        step: Step,
    ) {
        let scale = self.params.forward.scale * LOG2_E;
        for nt in 0..NT {
            for i in 0..8 {
                let (x, row) = (&mut x[nt].0[i], statistics[nt][i / 4][i % 2]);
                *x = match self.warpgroup {
                    0 => math::fma(*x, scale, -row),
                    _ => *x - row,
                };
            }
        }
        // SAFETY: the caller's promise.
        unsafe {
            if self.warpgroup == 0 {
                for nt in 0..NT {
                    for i in 0..8 {
                        x[nt].0[i] = math::exp2(x[nt].0[i]);
                    }
                }
            } else {
                self.multiply_by_p(x);
            }
            if self.masks(step) {
                let queries = self.queries(step);
                for nt in 0..NT {
                    let queries = queries.map(|queries| queries.counted_from(16 * nt as i32));
                    x[nt].zero_columns(special::lane(), queries);
                }
            }
            if self.warpgroup == 0 {
                self.pass_p(x);
            }
        }
    }

    /// Shared address of half a tile of P, of the lane's elements.
    #[inline(always)]
    fn place_of_p(&self, nt: usize, half: usize) -> u32 {
        self.memory.p() + 2048 * (2 * nt + half) as u32 + 16 * thread()
    }

    /// Passes P to the other warpgroup.
    ///
    /// # Safety
    /// The conditions of [`issue_rows`](Self::issue_rows), in warpgroup 0.
    #[inline(always)]
    unsafe fn pass_p(&self, x: &[Accumulator; NT]) {
        // SAFETY: the caller's promise.
        unsafe {
            barrier::some(P_EMPTY, BOTH);
            for nt in 0..NT {
                for half in 0..2 {
                    let p = [0, 1, 2, 3].map(|i| x[nt].0[4 * half + i].to_bits());
                    shared::store_u32x4(self.place_of_p(nt, half), p);
                }
            }
            barrier::arrive(P_FULL, BOTH);
        }
    }

    /// Multiplies by P, which the other warpgroup passes.
    ///
    /// # Safety
    /// The conditions of [`issue_rows`](Self::issue_rows), in warpgroup 1.
    #[inline(always)]
    unsafe fn multiply_by_p(&self, x: &mut [Accumulator; NT]) {
        // SAFETY: the caller's promise.
        unsafe {
            barrier::some(P_FULL, BOTH);
            for nt in 0..NT {
                for half in 0..2 {
                    let p = shared::load_u32x4(self.place_of_p(nt, half));
                    for i in 0..4 {
                        x[nt].0[4 * half + i] *= f32::from_bits(p[i]);
                    }
                }
            }
            barrier::arrive(P_EMPTY, BOTH);
        }
    }

    /// Passes dS to the warp that stores it.
    ///
    /// # Safety
    /// The conditions of [`issue_rows`](Self::issue_rows).
    #[inline(always)]
    unsafe fn pass_ds(&self, ds: &[Operand; NT]) {
        if self.warpgroup == 1 {
            // SAFETY: the caller's promise. The barriers say that the tile is read, and that it is written.
            unsafe {
                barrier::some(DS_EMPTY, SHARING);
                write_ds(self.memory.ds(), 0, ds);
                barrier::arrive(DS_FULL, SHARING);
            }
        }
    }

    /// Adds the second product of a step where its tile holds infinities or NaN that a key must not see. Gives whether it did.
    ///
    /// # Safety
    /// The conditions of [`issue_rows`](Self::issue_rows).
    #[inline(always)]
    unsafe fn guard<E: Element, const DT: usize>(
        &self,
        ring: Stages,
        sum: &mut [Accumulator; DT],
        p: &mut [Operand; NT],
        step: Step,
    ) -> bool {
        if M::UNIFORM || !self.masks(step) {
            return false;
        }
        let (tile, full) = self.tile(ring, 1);
        // SAFETY: the caller's promise.
        unsafe {
            ring.wait(full);
            let found = search::<E, DT, NT>(tile, self.warpgroup);
            if found {
                cold_path();
                add_guarded_gradients::<E, DT, NT>(tile, sum, p, self.queries(step));
                barrier::warp();
            }
            found
        }
    }

    /// Stores dV or dK.
    ///
    /// # Safety
    /// All lanes of the warpgroup make the same call, after its last product.
    #[inline(always)]
    unsafe fn store<E: Element, const DT: usize>(&self, mut sum: [Accumulator; DT]) {
        let (params, job) = (self.params, self.job);
        let (tensor, aligned, factor) = match self.warpgroup {
            0 => (params.dv, params.dv_aligned, 1.0),
            _ => (params.dk, params.dk_aligned, params.forward.scale),
        };
        for dt in 0..DT {
            sum[dt].scale_rows([factor; 2]);
        }
        let count = job.sequence.keys.saturating_sub(self.first_key);
        let rows = job
            .sequence
            .head_rows(&tensor, job.kv_head, params.forward.dim);
        // SAFETY: the caller's promise; the rows are the warpgroup's alone.
        unsafe { store::<E, DT>(&sum, rows.skip(self.first_key), count, aligned) }
    }
}

/// Computes dV or dK of the block's keys.
///
/// # Safety
/// The conditions of [`produce`](super::produce::produce), in all threads of the warpgroup.
#[inline(always)]
pub unsafe fn consume<E: Element, M: Mask, const DT: usize>(
    params: &BackwardParams,
    memory: Sm90WideMemory,
    place: u32,
    warpgroup: u32,
) where
    [Accumulator; DT]: Product,
{
    let (place, half) = half_at(place);
    let consumer = || {
        let job = job_at::<M, true>(params, place, SIZE);
        let first_key = job.first_key + half * SIZE;
        Consumer {
            params,
            memory,
            job,
            first_key,
            whole: job.queries(first_key + SIZE - 1),
            warpgroup,
        }
    };
    let this = consumer();
    let mut sum = [Accumulator::ZERO; DT];
    let mut ring: Stages = Ring(0);
    let mut step = Step::first(&this.job);
    let mut left = this.job.steps(&params.forward);
    // SAFETY: every stage is waited for before it is read, and released after. All branches but the cold ones depend on
    // the step and the warpgroup alone.
    unsafe {
        if warpgroup == 1 {
            barrier::arrive(P_EMPTY, BOTH);
        }
        mbarrier::wait(memory.keys_full(warpgroup), 0);
        let (mut x, statistics) = this.issue_rows::<E, DT>(ring);
        wait::<0, _>(&mut x);
        this.elements(&mut x, statistics, step);
        barrier::warp();
        ring.release(this.tile(ring, 0).1);
        let mut p = x.map(Accumulator::to_operand::<E>);
        this.pass_ds(&p);
        let mut leave_out = this.guard::<E, DT>(ring, &mut sum, &mut p, step);
        // No product is under way from a step to the next.
        while left > 1 {
            let last = ring;
            ring = last.next();
            step = step.next(&this.job);
            let (mut x, statistics) = this.issue_rows::<E, DT>(ring);
            this.issue_columns::<E, DT>(last, &mut sum, &p, leave_out);
            wait::<1, _>(&mut x);
            this.elements(&mut x, statistics, step);
            barrier::warp();
            ring.release(this.tile(ring, 0).1);
            wait::<0, _>(&mut sum);
            last.release(this.tile(last, 1).1);
            p = x.map(Accumulator::to_operand::<E>);
            this.pass_ds(&p);
            leave_out = this.guard::<E, DT>(ring, &mut sum, &mut p, step);
            left -= 1;
        }
        this.issue_columns::<E, DT>(ring, &mut sum, &p, leave_out);
        wait::<0, _>(&mut sum);
        // Held, it takes 8 instructions more.
        again(consumer).store::<E, DT>(sum);
    }
}
