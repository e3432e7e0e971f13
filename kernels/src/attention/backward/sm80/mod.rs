//! FlashAttention-2 backward (Dao 2023, Algorithm 2), one key tile a block.
//!
//! A block holds Bc keys and walks over the queries of all heads of the group in tiles of Br. Two warps share
//! `16 * MT` of the keys, one on each side:
//!
//! ```text
//! side 0    Sᵀ = K Qᵀ      P = exp(S - lse)       loads of the next step    dV += Pᵀ dO
//! side 1    dQ += dS K, of the step before    dPᵀ = V dOᵀ    dS = P * (dP - delta)    dK += dSᵀ Q
//! ```
//!
//! A side has one of the two sums in registers, so that a warp can have twice as many keys as with both: each fragment
//! of Q and dO then feeds twice as many products. The products are transposed, a row for each key: P and dS,
//! rounded, are operands in registers. P passes through shared memory once, lane to lane; dS as a tile, for dQ.
//! dQ comes a step late: side 1 computes it while side 0 computes the exponentials, which side 1 waits for.
//!
//! dQ is added to sums in device memory: in any order, or in turns, key tile after key tile. A block then waits only for
//! blocks of earlier places of the order. GPUs begin blocks in this order, though CUDA does not promise it.
//!
//! Shared memory holds K, V, two stages of Q and dO, one or two of dS (before that P), two of the row statistics, and the
//! job.
//!
//! | module | what it holds |
//! |---|---|
//! | `kernel` | the types and sizes of a kernel |
//! | `memory` | where tiles lie in shared memory |
//! | `block` | who the thread is, the job of the block, and the query tile of a step |
//! | `load` | what is loaded: keys and values once, queries in each step |
//! | `products` | the first four of the five products |
//! | `sides` | P on side 0, dS on side 1 |
//! | `pass` | P on its way from side to side |
//! | `dq` | the fifth product, added to the sums |
//! | `turns` | the order of these additions |
//! | `store` | dK and dV, stored |

mod block;
mod dq;
mod kernel;
mod load;
mod memory;
mod pass;
mod products;
mod sides;
mod store;
mod turns;

use super::job::Step;
use crate::abi::BackwardParams;
use crate::attention::options::mask::Mask;
use crate::attention::options::score::Score;
use crate::ptx::barrier;
use crate::tile::{Accumulator, CpAsync, Element, Pipeline};
use block::Block;
use kernel::Instance;

/// Computes dk and dv of the block's keys, and adds to the sums of dq.
///
/// The block has `W` warps; the head dim is at most `16 * DT`, and a step takes `16 * NT` queries. Of K and V, `QT` of the
/// `DT` slices stay in registers. Of dQ a warp of side 1 has `QM` by `QN` tiles, `QC` columns of them at a time. dS has `DS`
/// stages: with two, side 0 waits for the dQ of a step before only where it counts turns.
///
/// # Safety
/// Launched as [`BackwardParams`] and the kernel's row of the [catalog](crate::catalog) say: grid, block size and shared
/// memory, with readable inputs and row statistics, and writable sums, dk and dv.
#[inline(always)]
pub unsafe fn sm80<
    E: Element,
    M: Mask,
    C: Score,
    const W: usize,
    const MT: usize,
    const DT: usize,
    const NT: usize,
    const QT: usize,
    const QM: usize,
    const QN: usize,
    const QC: usize,
    const KT: usize,
    const DS: u32,
>(
    params: &BackwardParams,
) {
    let block = Block::<Instance<E, M, C, W, QT, KT, DS>, MT, DT, NT>::new(params);
    let mut pipeline = CpAsync::<2>;
    // dV on side 0, dK on side 1.
    let mut sum = [[Accumulator::ZERO; DT]; MT];

    // SAFETY: all warps pass the same barriers, and the two of a pair their own. Every branch depends on the step
    // and the warp alone, so all lanes reach every instruction of the warp.
    unsafe {
        block.take_job();
        let mut step = Step::first(&block.job());
        pipeline.fill(|| {
            block.load_keys();
            if block.side(0) == 0 {
                block.load_queries(0, step);
            }
        });
        pipeline.peek();
        let kept = block.kept();
        let spoiled = block.spoiled();

        loop {
            // Tiles of this step are there, and all warps are done with the step before.
            pipeline.wait();
            if block.side(step.tile) == 1 && !step.is_first(&block.job()) {
                // 5. dQ += dS K, of the step before
                block.add_dq::<QM, QN, QC, KT>(step.previous(&block.job()), spoiled);
            }
            if !block.more(step) {
                break;
            }
            let tile = block.query_tile(step);
            if tile.side == 1 {
                block.say_added();
            }
            // 1. Sᵀ = K Qᵀ; 2. dPᵀ = V dOᵀ
            let x = block.multiply_transposed(&kept, tile);
            let x = if tile.side == 0 {
                let [p, slopes] = block.probabilities(x, tile);
                block.wait_until_added();
                block.pass_on(p, slopes, tile);
                pipeline.fill(|| block.load_queries(1 - tile.stage, step.next(&block.job())));
                block.end_turn_before(step);
                p
            } else {
                block.gradients(x, tile)
            };
            // 3. dV += Pᵀ dO; 4. dK += dSᵀ Q
            block.add_product(&mut sum, x, tile);
            block.wait_for_turn(step);
            step = step.next(&block.job());
        }
        // All warps are done with K and V, and have added to dQ.
        barrier::block();
        block.end_turn_before(step);
        block.store(sum);
    }
}
