//! The gradient of the sinks: `-sum(exp(sink - lse) delta)` over the rows of a head.

use super::far::has_far_rows;
use crate::abi::BackwardParams;
use crate::attention::options::score::{Optional, Score};
use crate::attention::workload::sequence::Sequence;
use crate::ptx::{barrier, global, math, shared, shuffle, special};

/// Statistics that a thread reads at a time.
const PIECE: u32 = 4;

/// Writes the gradient of the sink of the block's head, with `W` warps a block, at most 32. Sums have one order.
///
/// # Safety
/// Launched as [`BackwardParams`] and the kernel's row of the [catalog](crate::catalog) say, with written statistics,
/// readable sinks and writable gradients.
#[inline(always)]
pub unsafe fn sinks<const W: u32>(params: &BackwardParams) {
    let forward = &params.forward;
    let head = special::block();
    // SAFETY: the launch has this many threads a block; a head has statistics of all padded rows, and a sink. All threads
    // reach the barrier, and all lanes the shuffles.
    unsafe {
        let thread = special::thread(32 * W);
        let sink = Optional::sink(forward, Sequence::new(forward, 0).whole(), head);
        let has_far = has_far_rows(params);
        let mut sum = 0.0;
        let mut head_index = head;
        while head_index < forward.batch_heads {
            let mut row = PIECE * thread;
            while row < params.padded_rows {
                let place = params.statistics(u64::from(head_index), row);
                let lse = global::load_f32x4(place);
                let delta = global::load_f32x4(place + 4 * u64::from(params.padded_rows));
                for i in 0..PIECE as usize {
                    sum = math::fma(math::exp2(sink - lse[i]), delta[i], sum);
                }
                if has_far {
                    let place = params.far + (place - params.rows);
                    let max = global::load_f32x4(place);
                    let inverse = global::load_f32x4(place + 4 * u64::from(params.padded_rows));
                    for i in 0..PIECE as usize {
                        if inverse[i] > 0.0 {
                            let weight = math::exp2(sink - max[i]) * inverse[i];
                            sum = math::fma(weight, delta[i], sum);
                        }
                    }
                }
                row += PIECE * 32 * W;
            }
            head_index += forward.heads;
        }
        let add = |a: f32, b: f32| a + b;
        let sum = shuffle::reduce::<32>(sum, add);
        let of_warp = |warp: u32| shared::base() + 4 * warp;
        if thread.is_multiple_of(32) {
            shared::store_u32(of_warp(thread / 32), sum.to_bits());
        }
        barrier::block();
        if thread >= 32 {
            return;
        }
        let sum = match thread < W {
            true => shared::load_f32(of_warp(thread)),
            false => 0.0,
        };
        let sum = shuffle::reduce::<32>(sum, add);
        if thread == 0 {
            let place = i64::from(head) * params.d_sinks_head;
            global::store_f32(params.d_sinks.wrapping_add_signed(4 * place), -sum);
        }
    }
}
