//! Launches of the forward kernels, on a GPU or on the emulator.

use crate::attention::RawForward;
use crate::driver::Gpu;
use crate::emulation::Emulation;
use crate::error::{Error, Result};
use crate::problem::Problem;
use crate::ptx;
use kernels::params::{ForwardParams, TensorRef};
use kernels::table::Kernel;
use std::ffi::c_void;

/// Blocks that a grid can have along x.
const MAX_BLOCKS: u32 = i32::MAX as u32;

/// A kernel, its grid and its arguments.
pub struct Launch {
    kernel: &'static Kernel,
    blocks: u32,
    params: ForwardParams,
}

impl Launch {
    /// The launch that computes a [valid](Problem::validate) problem with a kernel that serves it.
    pub fn new(kernel: &'static Kernel, problem: &Problem, args: &RawForward) -> Result<Self> {
        let q_tiles = (problem.seqlen_q as u32).div_ceil(kernel.tile.q_rows);
        let blocks = blocks(kernel, problem, q_tiles)?;
        let [q, o] = [args.q, args.o].map(|tensor| normalized(tensor, problem.q_shape()));
        let [k, v] = [args.k, args.v].map(|tensor| normalized(tensor, problem.kv_shape()));
        let params = ForwardParams {
            q,
            k,
            v,
            o,
            lse: args.lse,
            // All of these fit: the grid holds `batch * heads * q_tiles` blocks, and `validate`
            // bounds the lengths and the dim.
            heads: problem.heads as u32,
            group: (problem.heads / problem.kv_heads) as u32,
            seqlen_q: problem.seqlen_q as u32,
            seqlen_kv: problem.seqlen_kv as u32,
            dim: problem.dim as u32,
            q_tiles,
            wave_heads: wave_heads(kernel, problem),
            scale: problem.scale,
            aligned: u32::from([q, k, v, o].iter().all(TensorRef::is_aligned)),
            batch_heads: (problem.batch * problem.heads) as u32,
        };
        Ok(Launch {
            kernel,
            blocks,
            params,
        })
    }

    /// Queues the launch on a stream.
    ///
    /// # Safety
    /// As for [`Attention::forward_raw`](crate::Attention::forward_raw).
    pub unsafe fn on_gpu(&self, gpu: &Gpu, stream: *mut c_void) -> Result<()> {
        let kernel = self.kernel;
        let needed = kernel.arch.compute_capability();
        if gpu.compute_capability() < needed {
            return Err(Error::ComputeCapability {
                device: gpu.name().to_owned(),
                found: gpu.compute_capability(),
                needed_by: kernel.name,
                needed,
            });
        }
        let shared_bytes = kernel.shared_bytes();
        let ptx = ptx::module(kernel.module()).ok_or(Error::NotCompiled)?;
        let function = gpu.function(kernel.name, kernel.module(), ptx, shared_bytes)?;
        // SAFETY: the table gives every kernel this parameter block, this block size and this much
        // shared memory; the caller vouches for the tensors and the stream.
        unsafe {
            gpu.launch(
                function,
                self.blocks,
                kernel.threads(),
                shared_bytes,
                &self.params,
                stream,
            )
        }
    }

    /// Runs the launch.
    pub fn on_emulator(&self, emulation: &Emulation) -> Result<()> {
        emulation.launch(self.kernel, self.blocks, bytemuck::bytes_of(&self.params))
    }
}

/// How many heads take turns: under the causal mask as many as share the L2 cache with their keys and
/// values, in waves of about one size. Without a mask all tiles weigh the same, and a head at a time
/// keeps its keys and values closest.
fn wave_heads(kernel: &Kernel, problem: &Problem) -> u32 {
    /// Half of what an A100 or an H100 has: the rest is for q, o and what comes next.
    const L2_BYTES: usize = 20 << 20;
    if !kernel.causal {
        return 1;
    }
    let kv_bytes = 2 * size_of::<u16>() * problem.seqlen_kv * problem.dim;
    let group = problem.heads / problem.kv_heads;
    let fitting = (L2_BYTES / kv_bytes).max(1).saturating_mul(group);
    let heads = problem.batch * problem.heads;
    heads.div_ceil(heads.div_ceil(fitting)) as u32
}

fn blocks(kernel: &Kernel, problem: &Problem, q_tiles: u32) -> Result<u32> {
    // No overflow: `validate` has `batch * heads` below 2^63.
    let blocks = problem.batch as u128 * problem.heads as u128 * u128::from(q_tiles);
    u32::try_from(blocks)
        .ok()
        .filter(|&blocks| blocks <= MAX_BLOCKS)
        .ok_or(Error::Grid {
            kernel: kernel.name,
            q_rows: kernel.tile.q_rows,
            blocks,
            max: MAX_BLOCKS,
        })
}

/// The same tensor with the strides of axes of one element set to zero: they are never used, and
/// must not make it look unaligned.
fn normalized(tensor: TensorRef, [batch, heads, rows, _]: [usize; 4]) -> TensorRef {
    let used = |extent: usize, stride: i64| if extent > 1 { stride } else { 0 };
    TensorRef {
        batch_stride: used(batch, tensor.batch_stride),
        head_stride: used(heads, tensor.head_stride),
        row_stride: used(rows, tensor.row_stride),
        ..tensor
    }
}

#[cfg(test)]
mod tests {
    use super::{blocks, normalized, wave_heads};
    use crate::error::Error;
    use crate::problem::Problem;
    use kernels::params::TensorRef;
    use kernels::table::KERNELS;

    #[test]
    fn the_grid_has_a_limit() {
        let shape = |batch| [batch, 1, 1, 8];
        let problem =
            |batch| Problem::new(shape(batch), shape(batch), shape(batch), false, None).unwrap();
        let limit = i32::MAX as usize;
        assert_eq!(blocks(&KERNELS[0], &problem(limit), 1), Ok(i32::MAX as u32));
        for batch in [limit + 1, 1 << 33] {
            let refused = blocks(&KERNELS[0], &problem(batch), 1);
            assert!(matches!(refused, Err(Error::Grid { .. })), "{refused:?}");
        }
    }

    #[test]
    fn heads_take_turns_where_their_keys_share_the_cache() {
        let waves = |name: &str, heads, seqlen_kv| {
            let kernel = KERNELS.iter().find(|kernel| kernel.name == name);
            let q = [2, heads, 1000, 64];
            let kv = [2, 4, seqlen_kv, 64];
            let problem = Problem::new(q, kv, kv, true, None).expect("a valid problem");
            wave_heads(kernel.expect("a kernel"), &problem)
        };
        assert_eq!(waves("forward_f16_d64", 4, 4096), 1);
        assert_eq!(waves("forward_f16_d64_causal", 4, 4096), 8);
        // A head and its group, though its keys and values alone fill the cache.
        assert_eq!(waves("forward_f16_d64_causal", 12, 1 << 20), 3);
        // 20 of these fit; 32 make two waves of one size.
        assert_eq!(waves("forward_f16_d64_causal", 16, 16384), 16);
    }

    #[test]
    fn strides_of_single_elements_do_not_count() {
        let tensor = TensorRef {
            address: 1 << 20,
            batch_stride: 3,
            head_stride: 5,
            row_stride: 64,
        };
        assert!(normalized(tensor, [1, 1, 9, 64]).is_aligned());
        assert!(!normalized(tensor, [1, 2, 9, 64]).is_aligned());
    }
}
