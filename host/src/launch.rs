//! Launches of the kernels, on a GPU or on the emulator.

use crate::attention::RawForward;
use crate::driver::Gpu;
use crate::emulation::{self, Emulation};
use crate::error::{Error, Result};
use crate::problem::Problem;
use crate::ptx;
use crate::schedule::{MAX_BLOCKS, Schedule, group};
use kernels::divide::Divisor;
use kernels::order::Order;
use kernels::params::{ForwardParams, TensorRef};
use kernels::table::{Family, KERNELS, Kernel};
use std::ffi::c_void;
use std::sync::Arc;

/// A kernel, its grid and its arguments; and, if it splits the keys, the kernel that combines what
/// it finds.
pub struct Launch {
    kernel: Grid,
    combine: Option<Combine>,
    params: ForwardParams,
}

/// A kernel and its number of blocks.
#[derive(Clone, Copy)]
struct Grid {
    kernel: &'static Kernel,
    blocks: u32,
}

/// The second kernel of a launch, and the memory between the two.
struct Combine {
    grid: Grid,
    /// Bytes of the partial O, a multiple of 32.
    o_bytes: usize,
    /// Bytes of the partial O and of the maxima and sums after it.
    bytes: usize,
}

impl Launch {
    /// The launch that computes a [valid](Problem::validate) problem by a schedule of a kernel that
    /// serves it.
    pub fn new(
        kernel: &'static Kernel,
        problem: &Problem,
        schedule: &Schedule,
        args: &RawForward,
    ) -> Result<Self> {
        let [q, o] = [args.q, args.o].map(|tensor| normalized(tensor, problem.q_shape()));
        let [k, v] = [args.k, args.v].map(|tensor| normalized(tensor, problem.kv_shape()));
        let params = ForwardParams {
            q,
            k,
            v,
            o,
            lse: args.lse,
            // With one split there are none; else `at` fills them in.
            partial_o: 0,
            partial_softmax: 0,
            // All of these fit: the grid holds all heads, and `validate` bounds the lengths and the
            // dim.
            heads: problem.heads as u32,
            tile_heads: Divisor::new((problem.heads / schedule.packed as usize) as u32),
            group: Divisor::new(group(problem) as u32),
            order: Order::new(
                (problem.batch * problem.heads / schedule.packed as usize) as u32,
                schedule.q_tiles,
                schedule.wave_heads,
            ),
            seqlen_q: problem.seqlen_q as u32,
            seqlen_kv: problem.seqlen_kv as u32,
            dim: problem.dim as u32,
            scale: problem.scale,
            aligned: u32::from([q, k, v, o].iter().all(TensorRef::is_aligned)),
            batch_heads: (problem.batch * problem.heads) as u32,
            splits: schedule.splits,
            split_keys: schedule.split_keys,
            causal: u32::from(problem.causal),
        };
        let combine = match schedule.splits {
            1 => None,
            splits => Some(Combine::new(kernel, problem, splits)?),
        };
        let blocks = schedule.blocks;
        Ok(Launch {
            kernel: Grid { kernel, blocks },
            combine,
            params,
        })
    }

    /// Queues the launch on a stream.
    ///
    /// # Safety
    /// As for [`Attention::forward_raw`](crate::Attention::forward_raw).
    pub unsafe fn on_gpu(&self, gpu: &Gpu, stream: *mut c_void) -> Result<()> {
        let Some(combine) = &self.combine else {
            // SAFETY: the caller's word.
            return unsafe { self.kernel.on_gpu(gpu, &self.params, stream) };
        };
        // SAFETY: the caller vouches for the stream. The workspace is dropped, which frees it in the
        // order of the stream, after both kernels are queued or one has failed to be.
        unsafe {
            let workspace = gpu.workspace(combine.bytes, stream)?;
            let params = self.params_at(workspace.address(), combine);
            self.kernel.on_gpu(gpu, &params, stream)?;
            combine.grid.on_gpu(gpu, &params, stream)
        }
    }

    /// Runs the launch.
    pub fn on_emulator(&self, emulation: &Arc<Emulation>) -> Result<()> {
        let Some(combine) = &self.combine else {
            return self.kernel.on_emulator(emulation, &self.params);
        };
        let workspace = emulation::Memory::uninitialized(emulation, combine.bytes);
        let params = self.params_at(workspace.address(), combine);
        self.kernel.on_emulator(emulation, &params)?;
        combine.grid.on_emulator(emulation, &params)
    }

    /// The arguments with a workspace for the partial results.
    fn params_at(&self, workspace: u64, combine: &Combine) -> ForwardParams {
        ForwardParams {
            partial_o: workspace,
            partial_softmax: workspace + combine.o_bytes as u64,
            ..self.params
        }
    }
}

impl Grid {
    /// # Safety
    /// As for [`Launch::on_gpu`], with partial results as [`ForwardParams`] says.
    unsafe fn on_gpu(&self, gpu: &Gpu, params: &ForwardParams, stream: *mut c_void) -> Result<()> {
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
        // shared memory; the caller vouches for the memory and the stream.
        unsafe {
            gpu.launch(
                function,
                self.blocks,
                kernel.threads(),
                shared_bytes,
                params,
                stream,
            )
        }
    }

    fn on_emulator(&self, emulation: &Emulation, params: &ForwardParams) -> Result<()> {
        emulation.launch(self.kernel, self.blocks, bytemuck::bytes_of(params))
    }
}

impl Combine {
    /// For the partial results of a kernel on so many splits.
    fn new(kernel: &Kernel, problem: &Problem, splits: u32) -> Result<Self> {
        let combine = KERNELS.iter().find(|combine| {
            combine.family == Family::Combine
                && combine.dtype == kernel.dtype
                && combine.arch == kernel.arch
        });
        let kernel = combine.expect("every dtype has one");
        let rows: usize = problem.lse_shape().iter().product();
        let sizes = rows.checked_mul(splits as usize).and_then(|rows| {
            let o = rows.checked_mul(problem.dim * size_of::<f32>())?;
            let softmax = rows.checked_mul(2 * size_of::<f32>())?;
            Some((o, o.checked_add(softmax)?))
        });
        let (o_bytes, bytes) = sizes.ok_or(Error::Overflow {
            argument: "the workspace of the splits",
        })?;
        // A warp takes up to 128 columns of a row.
        let warps = rows as u128 * problem.dim.div_ceil(128) as u128;
        let blocks = warps.div_ceil(u128::from(kernel.tile.warps));
        let fits = u32::try_from(blocks).ok().filter(|&b| b <= MAX_BLOCKS);
        let blocks = fits.ok_or(Error::Grid {
            kernel: kernel.name,
            blocks,
            max: MAX_BLOCKS,
        })?;
        Ok(Combine {
            grid: Grid { kernel, blocks },
            o_bytes,
            bytes,
        })
    }
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
    use super::{Combine, normalized};
    use crate::error::Error;
    use crate::problem::Problem;
    use kernels::params::TensorRef;
    use kernels::table::KERNELS;

    #[test]
    fn workspaces_have_a_limit() {
        let combine = |rows: usize, splits| {
            let shape = [rows, 1, 1, 8];
            let problem = Problem::new(shape, shape, shape, false, None).expect("valid");
            Combine::new(&KERNELS[0], &problem, splits)
        };
        let one = combine(1000, 3).expect("small");
        assert_eq!((one.o_bytes, one.bytes), (3000 * 32, 3000 * 40));
        assert_eq!(
            (one.grid.kernel.name, one.grid.blocks),
            ("combine_f16", 250)
        );
        let error = combine(1 << 58, 1 << 8).err();
        assert!(matches!(error, Some(Error::Overflow { .. })), "{error:?}");
        let error = combine(1 << 33, 2).err();
        assert!(matches!(error, Some(Error::Grid { .. })), "{error:?}");
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
