//! dK and dV of wide heads, on Hopper: one warpgroup has dV, the other dK.
//!
//! A block has 64 keys, whose dK and dV would fill the registers of a warpgroup. So one computes S, P and dV, the other dP,
//! dS and dK; P passes from the first to the second through shared memory. Both do the same: a product of the rows of two
//! tiles, something to each element, and a product with the columns of a tile. dS is stored, and dQ is another kernel.
//!
//! ```text
//! warpgroup 0   S = K Qᵀ     P = exp(S - lse)        dV += Pᵀ dO
//! warpgroup 1   dP = V dOᵀ   dS = P * (dP - delta)   dK += dSᵀ Q
//! ```
//!
//! While the tensor cores add the second product of a step, and before that compute the first one of the next, the
//! warpgroup works on its elements.

use super::THREADS;
use super::guard::{Columns, SEARCH};
use super::job::{head_index, job_at};
use super::store::store;
use crate::abi::Sm90BackwardParams;
use crate::attention::backward::job::Step;
use crate::attention::forward::sm90::alone::{add_guarded, has_non_finite};
use crate::attention::mask::{Interval, Mask};
use crate::layout::descriptor::Panels;
use crate::layout::fragment;
use crate::layout::rows::Rows;
use crate::layout::sm90_backward::{DsImage, Sm90BackwardMemory, Sm90WideMemory};
use crate::ptx::wgmma::{self, Product};
use crate::ptx::{
    barrier, bulk, math, mbarrier, setmaxnreg, shared, shuffle, special, stmatrix, tensor,
};
use crate::tile::registers::{again, opaque};
use crate::tile::{Accumulator, Element, Operand, Ring};
use core::hint::cold_path;

/// Queries of a step, and keys of a block.
const SIZE: u32 = 64;

/// 16-wide slices of them.
const NT: usize = 4;

/// The barrier that says that P is written, and the one that says that it is read.
const P_FULL: u32 = 1;
const P_EMPTY: u32 = 2;

/// The barrier that says that dS is written, and the one that says that it is read.
const DS_FULL: u32 = 3;
const DS_EMPTY: u32 = 4;

/// Threads of both consumers, and of the second with the warp that stores dS.
const BOTH: u32 = 256;
const STORING: u32 = 128 + 32;

/// The half tile of keys that a block has: its tile, and which half.
#[inline(always)]
fn half_of_block(params: &Sm90BackwardParams) -> (u32, u32) {
    let block = special::block();
    (params.first_place + block / 2, block % 2)
}

/// Computes dK and dV of the block's keys, and stores dS.
///
/// The head dim is at most `16 * DT`. `GIVEN` registers stay with the producer's threads, `TAKEN` are a consumer's.
///
/// # Safety
/// As [`sm90`](super::sm90).
#[inline(always)]
pub unsafe fn sm90_wide<E: Element, M: Mask, const DT: usize, const GIVEN: u32, const TAKEN: u32>(
    params: &Sm90BackwardParams,
    maps: u64,
) where
    [Accumulator; DT]: Product,
{
    let memory = Sm90WideMemory::new(shared::base(), 16 * DT as u32);
    // SAFETY: the launch has this many threads a block. All of them reach the barrier; then each warpgroup has its
    // role.
    unsafe {
        let thread = special::thread(THREADS);
        if thread == 0 {
            for which in 0..2 {
                mbarrier::init(memory.keys_full(which), 1);
                for stage in 0..Sm90WideMemory::STAGES {
                    mbarrier::init(memory.queries_full(which, stage), 1);
                    // Warps of both warpgroups read each tile.
                    mbarrier::init(memory.queries_full(which, stage) + 8, 8);
                }
            }
            mbarrier::fence_init();
        }
        if !M::UNIFORM && thread < Sm90BackwardMemory::ZERO_BYTES / 16 {
            shared::store_u32x4(memory.zeros() + 16 * thread, [0; 4]);
            bulk::fence();
        }
        barrier::block();
        // The same in all lanes, which the assembler sees.
        let uniform = |value: u32| shuffle::of_lane(f32::from_bits(value), 0).to_bits();
        let warpgroup = uniform(thread / 128);
        if warpgroup == 2 {
            setmaxnreg::decrease::<GIVEN>();
            let warp = uniform(thread / 32 % 4);
            if warp == 0 {
                if thread % 32 == 0 {
                    produce::<M, DT>(params, maps, memory);
                }
            } else if warp == 1 {
                keep::<M>(params, memory);
            }
        } else {
            setmaxnreg::increase::<TAKEN>();
            consume::<E, M, DT>(params, memory, warpgroup);
        }
    }
}

/// Loads K and V, then Q, dO and the rows' statistics, step by step.
///
/// # Safety
/// As [`sm90_wide`], with initialised barriers, in one thread of the block.
#[inline(always)]
unsafe fn produce<M: Mask, const DT: usize>(
    params: &Sm90BackwardParams,
    maps: u64,
    memory: Sm90WideMemory,
) {
    let (backward, forward) = (&params.backward, &params.backward.forward);
    let (place, half) = half_of_block(params);
    let job = job_at::<M, true>(forward, place, SIZE);
    let batch = job.sequence.batch as i32;
    // SAFETY: the barriers count what is loaded, and the stages' consumers; the boxes fit their places.
    unsafe {
        let load = |to: Panels, map: u64, row: u32, head: u32, full: u32| {
            let mut panel = 0;
            while panel < 16 * DT as u32 / to.width {
                let (to, column) = (to.base + panel * to.panel_bytes(), panel * to.width);
                tensor::load(to, map, column as i32, row as i32, head as i32, batch, full);
                // Opaque: the loop stays one.
                panel = opaque(panel + 1);
            }
        };
        let first_key = job.first_key + half * SIZE;
        let mut which = 0;
        while which < 2 {
            let full = memory.keys_full(which);
            mbarrier::arrive_expect(full, memory.tile_bytes());
            load(
                memory.keys(which),
                maps + 128 + 128 * u64::from(which),
                first_key,
                job.kv_head,
                full,
            );
            which = opaque(which + 1);
        }
        let mut ring = Ring::<{ Sm90WideMemory::STAGES }>(0);
        let mut step = Step::first(&job);
        let mut left = job.steps(forward);
        while left > 0 {
            let (stage, row) = (ring.stage(), step.tile * SIZE);
            let head = job.kv_head * forward.group.value + step.head;
            let rows = u64::from(backward.padded_rows);
            let lse = 2 * head_index(&job, forward, step.head) * rows + u64::from(row);
            let mut which = 0;
            while which < 2 {
                let full = memory.queries_full(which, stage);
                ring.acquire(full);
                mbarrier::arrive_expect(full, memory.tile_bytes() + 4 * SIZE);
                load(
                    memory.queries(which, stage),
                    maps + 384 * u64::from(which),
                    row,
                    head,
                    full,
                );
                let from = backward.rows + 4 * (lse + rows * u64::from(which));
                bulk::load(memory.rows(which, stage), from, 4 * SIZE, full);
                which = opaque(which + 1);
            }
            ring = ring.next();
            step = step.next(&job);
            left = opaque(left - 1);
        }
    }
}

/// Stores dS, step by step.
///
/// # Safety
/// As [`sm90_wide`], in all lanes of one warp.
#[inline(always)]
unsafe fn keep<M: Mask>(params: &Sm90BackwardParams, memory: Sm90WideMemory) {
    let (backward, forward) = (&params.backward, &params.backward.forward);
    let (place, half) = half_of_block(params);
    let job = job_at::<M, true>(forward, place, SIZE);
    let image = DsImage::new(
        params.ds,
        params.first_head,
        [backward.padded_rows, job.sequence.keys],
        SIZE,
    );
    let mut step = Step::first(&job);
    let mut left = job.steps(forward);
    // SAFETY: the second consumer writes dS between the two barriers, and the images are the launch's.
    unsafe {
        barrier::arrive(DS_EMPTY, STORING);
        while left > 0 {
            let head = head_index(&job, forward, step.head);
            let to = image.panel(head, step.tile, job.tile, half);
            barrier::some(DS_FULL, STORING);
            bulk::store_once(to, memory.ds().base, image.panel_bytes());
            bulk::commit();
            bulk::wait_read::<0>();
            left = opaque(left - 1);
            if left > 0 {
                barrier::arrive(DS_EMPTY, STORING);
            }
            step = step.next(&job);
        }
    }
}

/// A warpgroup's way through the steps.
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

    /// Issues the first product of a step.
    ///
    /// # Safety
    /// As for all of these: all lanes of the warpgroup make the same calls, in the order of the steps.
    #[inline(always)]
    unsafe fn issue_rows<E: Element, const DT: usize>(&self, x: &mut [Accumulator; NT]) {
        let [(tile, full), _] = self.tiles(self.ring);
        let keys = self.memory.keys(opaque(self.warpgroup));
        // SAFETY: the caller's promise.
        unsafe {
            self.ring.wait(full);
            wgmma::fence();
            let (a, b) = (keys.rows(0), tile.rows(0));
            for dt in 0..DT as u32 {
                let (a, b) = (a.skip(keys.to_columns(dt)), b.skip(tile.to_columns(dt)));
                x.rows::<E>(a, b, dt > 0);
            }
            wgmma::commit();
        }
    }

    /// Issues the second product of a step.
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
/// As [`produce`], in all threads of the warpgroup.
#[inline(always)]
unsafe fn consume<E: Element, M: Mask, const DT: usize>(
    params: &Sm90BackwardParams,
    memory: Sm90WideMemory,
    warpgroup: u32,
) where
    [Accumulator; DT]: Product,
{
    let (place, half) = half_of_block(params);
    let params = &params.backward;
    let job = job_at::<M, true>(&params.forward, place, SIZE);
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
        first < whole.start || first + SIZE as i32 > whole.end
    };
    let mut sum = [Accumulator::ZERO; DT];
    let mut step = Step::first(&job);
    let mut left = job.steps(&params.forward);
    // SAFETY: every stage is waited for before it is read, and released after. All branches but the cold ones depend on
    // the step and the warpgroup alone.
    unsafe {
        // What becomes of the first product of a step: P, or dS.
        let elements = |x: &mut [Accumulator; NT], ring: Ring<2>, step: Step| {
            let rows = memory.rows(warpgroup, ring.stage()) + 8 * (special::lane() % 4);
            for nt in 0..NT {
                for half in 0..2 {
                    let row = shared::load_f32x2(rows + 64 * nt as u32 + 32 * half as u32);
                    for i in 0..4 {
                        let x = &mut x[nt].0[4 * half + i];
                        let row = row[i % 2];
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
        // Announces dS, where the operand is.
        let share = |p: &[Operand; NT]| {
            if warpgroup == 1 {
                let (row, chunk) = fragment::ldmatrix_chunks_first(special::lane());
                let key = who() / 32 * 16 + 8 * chunk;
                barrier::some(DS_EMPTY, STORING);
                for nt in 0..NT {
                    stmatrix::x4_trans(memory.ds().chunk(16 * nt as u32 + row, key), p[nt].0);
                }
                bulk::fence();
                barrier::arrive(DS_FULL, STORING);
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
        consumer.issue_rows::<E, DT>(&mut x);
        wgmma::wait::<0>();
        wgmma::pin(&mut x);
        elements(&mut x, consumer.ring, step);
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
            consumer.issue_rows::<E, DT>(&mut x);
            consumer.issue_columns::<E, M, DT>(last, &mut sum, &p, leave_out);
            wgmma::wait::<1>();
            wgmma::pin(&mut x);
            elements(&mut x, consumer.ring, step);
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
        let job = again(|| job_at::<M, true>(&params.forward, place, SIZE));
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
