//! The consumers' loop over blocks of queries: Algorithm 2 of FlashAttention-2 (Dao 2023), with S and dP transposed.

use super::KEYS;
use super::consumer::Consumer;
use super::elements::Elements;
use super::guard::{Columns, search};
use super::job::job_at;
use super::products::{add_columns, multiply_columns, multiply_rows, wait};
use crate::abi::BackwardParams;
use crate::attention::backward::job::Step;
use crate::attention::options::mask::Mask;
use crate::attention::options::score::Score;
use crate::layout::sm90_backward::Sm90BackwardMemory;
use crate::ptx::mbarrier;
use crate::tile::registers::again;
use crate::tile::wgmma::{self, Product};
use crate::tile::{Accumulator, Element, Ring};

/// Computes dK and dV of the warpgroup's keys, and its part of the block's dQ, or dS where `STORES`.
///
/// # Safety
/// The conditions of [`sm90`](super::sm90), with initialised barriers, in all threads of the warpgroup.
#[inline(always)]
pub unsafe fn consume<
    E: Element,
    M: Mask,
    C: Score,
    const DT: usize,
    const NT: usize,
    const QT: usize,
    const STORES: bool,
>(
    params: &BackwardParams,
    memory: Sm90BackwardMemory,
    place: u32,
    warpgroup: u32,
) where
    [Accumulator; DT]: Product,
    [Accumulator; NT]: Product,
    [Accumulator; QT]: Product,
{
    let consumer = || Consumer::<M, NT, STORES> {
        params,
        memory,
        job: job_at::<M, STORES>(params, place, 16 * NT as u32),
        warpgroup,
    };
    let this = consumer();
    let (row, zeros) = (this.first_row(), memory.zeros());
    // Blocks of queries within these need no mask.
    let whole = this.job.whole(this.first_key(), KEYS);
    let mut dk = [Accumulator::ZERO; DT];
    let mut dv = [Accumulator::ZERO; DT];
    let mut ring = Ring::<{ Sm90BackwardMemory::STAGES }>(0);
    let mut step = Step::first(&this.job);
    let mut left = this.job.steps(&params.forward);
    // SAFETY: every stage is waited for before it is read, and released after. All branches depend on the step and the
    // warpgroup alone.
    unsafe {
        mbarrier::wait(memory.k_full(), 0);
        let in_keys = !M::UNIFORM && !STORES && search::<E, DT, 8>(memory.k(), warpgroup);
        while left > 0 {
            let stage = ring.stage();
            let block = this.block(step, stage);
            let masked = this.masks(block, whole);
            let scores = this.scores::<C>(block);
            ring.wait(memory.q_full(stage));
            ring.wait(memory.d_o_full(stage));
            let leave_out = this.leave_out::<E, DT>(block, masked, in_keys);
            // Before the products: behind their reads of shared memory its loads would wait.
            let statistics = [memory.lse(stage), memory.delta(stage)];
            let mut elements =
                Elements::<C, M::Queries, NT>::new(params, scores, statistics, masked);
            wgmma::fence();

            // 1. Sᵀ = K Qᵀ
            let mut s = multiply_rows::<E, DT, NT>((memory.k(), row), block.q);

            // 2. dPᵀ = V dOᵀ
            let mut dp = multiply_rows::<E, DT, NT>((memory.v(), row), block.d_o);
            elements.read_mask(|| this.queries(block));
            this.prefetch(scores, block);

            // P = exp(S - lse)
            wait::<1, _>(&mut s);
            elements.probabilities::<E>(&mut s);
            if C::SCALED && DT <= 4 {
                // Else the compiler computes P behind the wait, and not beside product 2. Above D = 64 it does not.
                wgmma::pin(&mut s);
            }

            // dS = P * (dP - delta)
            wait::<0, _>(&mut dp);
            elements.subtract_delta(&mut dp);
            let mut p = elements.mask::<E>(&mut s, &mut dp, || this.queries(block));
            let mut ds = elements.gradients::<E>(params, this.head(block), &s, &dp);

            // 3. dV += Pᵀ dO. Where the other warpgroup waits for dS, dS goes first: measured in docs/tuning.md.
            let d_o = || Columns::new::<M>(block.d_o, zeros, leave_out.queries);
            if STORES {
                add_columns::<E, DT, NT>(&mut dv, &p, d_o());
            }
            this.pass_ds(block, &ds);
            let mut dq = [Accumulator::ZERO; QT];
            if !STORES {
                add_columns::<E, DT, NT>(&mut dv, &p, d_o());

                // 5. dQ = dS K
                ring.wait(memory.ds_full(stage));
                let (row, k) = this.part_of_dq();
                let k = Columns::new::<M>(k, zeros, leave_out.keys);
                multiply_columns::<E, QT>(&mut dq, (block.ds, row), k, false);
            }

            // 4. dK += dSᵀ Q
            let q = Columns::new::<M>(block.q, zeros, leave_out.queries);
            add_columns::<E, DT, NT>(&mut dk, &ds, q);

            wait::<1, _>(&mut dv);
            if leave_out.queries {
                this.add_left_out::<E, DT>(block, &mut dv, &mut p, block.d_o);
            }
            ring.release(memory.d_o_full(stage));
            if !STORES {
                wgmma::pin(&mut dq);
                if leave_out.keys {
                    this.add_left_out_keys::<E, QT>(block, &mut dq);
                }
                this.pass_dq(block, &dq);
            }
            wait::<0, _>(&mut dk);
            if leave_out.queries {
                this.add_left_out::<E, DT>(block, &mut dk, &mut ds, block.q);
            }
            ring.release(memory.q_full(stage));
            ring = ring.next();
            step = step.next(&this.job);
            left -= 1;
        }
        // Held over the loop, it spills 40 to 56 bytes where several options are on.
        again(consumer).store::<E, C, DT>(dk, &dv);
    }
}
