//! The consumers: one warpgroup computes dV, the other dK.

use super::super::THREADS;
use super::super::guard::{Columns, SEARCH};
use super::super::job::job_at;
use super::super::reduce::SHARING;
use super::super::store::store;
use super::{BOTH, DS_EMPTY, DS_FULL, NT, P_EMPTY, P_FULL, SIZE, half_at};
use crate::abi::BackwardParams;
use crate::attention::backward::job::Step;
use crate::attention::guard::panels::{add_guarded, has_non_finite};
use crate::attention::mask::{Interval, Mask};
use crate::layout::descriptor::Panels;
use crate::layout::fragment;
use crate::layout::rows::Rows;
use crate::layout::sm90_backward::Sm90WideMemory;
use crate::ptx::wgmma::{self, Product};
use crate::ptx::{barrier, bulk, math, mbarrier, shared, special, stmatrix};
use crate::tile::registers::{again, opaque};
use crate::tile::{Accumulator, Element, Operand, Ring};
use core::hint::cold_path;

/// A consuming warpgroup, and the step that it is at.
struct Consumer {
    memory: Sm90WideMemory,
    /// 0 has dV, 1 has dK.
    warpgroup: u32,
    /// The step whose first product is in work.
    ring: Ring<{ Sm90WideMemory::STAGES }>,
}

impl Consumer {
    /// The tile of queries of the first product of a step, and of the second, with their barriers.
    #[inline(always)]
    fn tiles(&self, ring: Ring<2>) -> [(Panels, u32); 2] {
        [self.warpgroup, 1 - self.warpgroup].map(|which| {
            let stage = ring.stage();
            (
                self.memory.queries(which, stage),
                self.memory.queries_full(which, stage),
            )
        })
    }

    /// Issues the first product of a step. Gives lse or delta of the lane's columns, `[slice][half][column]`.
    ///
    /// # Safety
    /// All lanes of the warpgroup make the same calls, in the order of the steps.
    #[inline(always)]
    unsafe fn issue_rows<E: Element, const DT: usize>(
        &self,
        x: &mut [Accumulator; NT],
    ) -> [[[f32; 2]; 2]; NT] {
        let [(tile, full), _] = self.tiles(self.ring);
        let keys = self.memory.keys(opaque(self.warpgroup));
        // SAFETY: the caller's promise.
        unsafe {
            self.ring.wait(full);
            // Before the product: behind its reads of shared memory these would wait.
            let rows = self.memory.rows(self.warpgroup, self.ring.stage());
            let rows = rows + 8 * (special::lane() % 4);
            let mut statistics = [[[0.0; 2]; 2]; NT];
            for nt in 0..NT {
                for half in 0..2 {
                    let at = rows + 64 * nt as u32 + 32 * half as u32;
                    statistics[nt][half] = shared::load_f32x2(at);
                }
            }
            wgmma::fence();
            let (a, b) = (keys.rows(0), tile.rows(0));
            for dt in 0..DT as u32 {
                let (a, b) = (a.skip(keys.to_columns(dt)), b.skip(tile.to_columns(dt)));
                x.rows::<E>(a, b, dt > 0);
            }
            wgmma::commit();
            statistics
        }
    }

    /// Issues the second product of a step.
    ///
    /// # Safety
    /// The conditions of [`issue_rows`](Self::issue_rows).
    #[inline(always)]
    unsafe fn issue_columns<E: Element, M: Mask, const DT: usize>(
        &self,
        ring: Ring<2>,
        sum: &mut [Accumulator; DT],
        p: &[Operand; NT],
        leave_out: bool,
    ) where
        [Accumulator; DT]: Product,
    {
        let [_, (tile, full)] = self.tiles(ring);
        // SAFETY: the caller's promise.
        unsafe {
            ring.wait(full);
            wgmma::pin(sum);
            wgmma::fence();
            let columns = Columns::new::<M>(tile, self.memory.zeros(), leave_out);
            for nt in 0..NT {
                sum.columns::<E>(p[nt], columns.slice(nt as u32));
            }
            wgmma::commit();
        }
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
    let job = job_at::<M, true>(params, place, SIZE);
    let first_key = job.first_key + half * SIZE;
    let whole = job.queries(first_key + SIZE - 1);
    let scale = params.forward.scale * core::f32::consts::LOG2_E;
    // SAFETY: the block has this many threads.
    let who = || unsafe { special::thread(THREADS) % 128 };
    let mut consumer = Consumer {
        memory,
        warpgroup,
        ring: Ring(0),
    };
    // The queries that see a lane's two keys, counted from the first one of a step.
    let queries = |step: Step| {
        let thread = who();
        let key = first_key + thread / 32 * 16 + thread % 32 / 4;
        let first = (step.tile * SIZE) as i32;
        [key, key + 8].map(|key| job.queries(key).counted_from(first))
    };
    let is_masked = |step: Step| {
        let first = (step.tile * SIZE) as i32;
        first < whole.start() || first + SIZE as i32 > whole.end()
    };
    let mut sum = [Accumulator::ZERO; DT];
    let mut step = Step::first(&job);
    let mut left = job.steps(&params.forward);
    // SAFETY: every stage is waited for before it is read, and released after. All branches but the cold ones depend on
    // the step and the warpgroup alone.
    unsafe {
        // P or dS, from the first product of a step.
        let elements = |x: &mut [Accumulator; NT], statistics: [[[f32; 2]; 2]; NT], step: Step| {
            for nt in 0..NT {
                for half in 0..2 {
                    for i in 0..4 {
                        let x = &mut x[nt].0[4 * half + i];
                        let row = statistics[nt][half][i % 2];
                        *x = if warpgroup == 0 {
                            math::fma(*x, scale, -row)
                        } else {
                            *x - row
                        };
                    }
                }
            }
            let place = |i: usize| memory.p() + 2048 * i as u32 + 16 * who();
            if warpgroup == 0 {
                for nt in 0..NT {
                    for i in 0..8 {
                        x[nt].0[i] = math::exp2(x[nt].0[i]);
                    }
                }
            } else {
                barrier::some(P_FULL, BOTH);
                for nt in 0..NT {
                    for half in 0..2 {
                        let p = shared::load_u32x4(place(2 * nt + half));
                        for i in 0..4 {
                            x[nt].0[4 * half + i] *= f32::from_bits(p[i]);
                        }
                    }
                }
                barrier::arrive(P_EMPTY, BOTH);
            }
            if is_masked(step) {
                let queries = queries(step);
                for nt in 0..NT {
                    let queries = queries.map(|queries| queries.counted_from(16 * nt as i32));
                    x[nt].zero_columns(special::lane(), queries);
                }
            }
            if warpgroup == 0 {
                barrier::some(P_EMPTY, BOTH);
                for nt in 0..NT {
                    for half in 0..2 {
                        let p = [0, 1, 2, 3].map(|i| x[nt].0[4 * half + i].to_bits());
                        shared::store_u32x4(place(2 * nt + half), p);
                    }
                }
                barrier::arrive(P_FULL, BOTH);
            }
        };
        // Passes dS to the warp that stores it.
        let share = |p: &[Operand; NT]| {
            if warpgroup == 1 {
                let (row, chunk) = fragment::ldmatrix_chunks_first(special::lane());
                let key = who() / 32 * 16 + 8 * chunk;
                barrier::some(DS_EMPTY, SHARING);
                for nt in 0..NT {
                    stmatrix::x4_trans(memory.ds().chunk(16 * nt as u32 + row, key), p[nt].0);
                }
                bulk::fence();
                barrier::arrive(DS_FULL, SHARING);
            }
        };
        // Where a key sees only part of a step's queries, the warpgroup looks for infinities and NaN, and adds the product
        // by itself where it finds some.
        let guard = |consumer: &Consumer,
                     sum: &mut [Accumulator; DT],
                     p: &mut [Operand; NT],
                     step: Step| {
            if M::UNIFORM || !is_masked(step) {
                return false;
            }
            let [_, (tile, full)] = consumer.tiles(consumer.ring);
            consumer.ring.wait(full);
            let found = has_non_finite::<E, DT, NT>(tile, who(), SEARCH + warpgroup);
            if found {
                cold_path();
                add_guarded::<E, DT, NT>(tile, sum, p, queries(step));
                barrier::warp();
            }
            found
        };
        if warpgroup == 1 {
            barrier::arrive(P_EMPTY, BOTH);
        }
        mbarrier::wait(memory.keys_full(warpgroup), 0);
        let mut x = [Accumulator::ZERO; NT];
        let statistics = consumer.issue_rows::<E, DT>(&mut x);
        wgmma::wait::<0>();
        wgmma::pin(&mut x);
        elements(&mut x, statistics, step);
        barrier::warp();
        let [(_, full), _] = consumer.tiles(consumer.ring);
        consumer.ring.release(full);
        let mut p = x.map(Accumulator::to_operand::<E>);
        share(&p);
        let mut leave_out = guard(&consumer, &mut sum, &mut p, step);
        // No product is under way from a step to the next.
        while left > 1 {
            let last = consumer.ring;
            consumer.ring = last.next();
            step = step.next(&job);
            let statistics = consumer.issue_rows::<E, DT>(&mut x);
            consumer.issue_columns::<E, M, DT>(last, &mut sum, &p, leave_out);
            wgmma::wait::<1>();
            wgmma::pin(&mut x);
            elements(&mut x, statistics, step);
            barrier::warp();
            let [(_, full), _] = consumer.tiles(consumer.ring);
            consumer.ring.release(full);
            wgmma::wait::<0>();
            wgmma::pin(&mut sum);
            let [_, (_, full)] = consumer.tiles(last);
            last.release(full);
            p = x.map(Accumulator::to_operand::<E>);
            share(&p);
            leave_out = guard(&consumer, &mut sum, &mut p, step);
            left = opaque(left - 1);
        }
        consumer.issue_columns::<E, M, DT>(consumer.ring, &mut sum, &p, leave_out);
        wgmma::wait::<0>();
        wgmma::pin(&mut sum);
        let job = again(|| job_at::<M, true>(params, place, SIZE));
        let first = job.first_key + half * SIZE;
        let count = job.sequence.keys.saturating_sub(first);
        let (tensor, aligned) = match warpgroup {
            0 => (params.dv, params.dv_aligned),
            _ => (params.dk, params.dk_aligned),
        };
        let factor = if warpgroup == 0 {
            1.0
        } else {
            params.forward.scale
        };
        for dt in 0..DT {
            sum[dt].scale_rows([factor; 2]);
        }
        let rows = job
            .sequence
            .head_rows(&tensor, job.kv_head, params.forward.dim);
        store::<E, DT>(&sum, rows.skip(first), count, aligned);
    }
}
