//! Launches of the kernels, on a GPU or on the emulator.

use crate::device::driver::Gpu;
use crate::device::emulation::{self, Emulation};
use crate::error::{Error, Result};
use crate::forward::chosen::Chosen;
use crate::forward::options::RawForward;
use crate::forward::problem::Problem;
use crate::forward::schedule::{MAX_BLOCKS, Schedule, group};
use crate::ptx;
use kernels::abi::Divisor;
use kernels::abi::Order;
use kernels::abi::{ForwardParams, LadderParams, PackParams, TensorRef};
use kernels::catalog::{Family, KERNELS, Kernel};
use kernels::ladder::NaivePass;
use kernels::ladder::table::Loop;
use std::cell::RefCell;
use std::ffi::c_void;
use std::sync::Arc;

/// The kernels that compute a problem, their grids and their arguments: copies of inputs whose rows
/// are not aligned, attention and, if it splits the keys, what combines the splits.
pub struct Launch {
    packs: Vec<(Input, Pack)>,
    kernel: Grid,
    combine: Option<Grid>,
    /// Bytes of the memory that the kernels share while they run.
    workspace_bytes: usize,
    params: ForwardParams,
}

/// A kernel, its number of blocks and their shared memory.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    pub kernel: &'static Kernel,
    pub blocks: u32,
    shared_bytes: u32,
}

/// A copy of an input.
#[derive(Debug)]
pub struct Pack {
    grid: Grid,
    params: PackParams,
    /// The copy, which has the shape of the input; its address counts from the workspace's.
    copy: TensorRef,
}

/// The inputs of a forward pass.
#[derive(Clone, Copy, Debug)]
enum Input {
    Q,
    K,
    V,
}

impl Launch {
    /// The launch that computes a [valid](Problem::validate) problem by a schedule of a kernel that
    /// serves it.
    pub fn new(
        chosen: Chosen,
        problem: &Problem,
        schedule: &Schedule,
        args: &RawForward,
    ) -> Result<Self> {
        let (q_shape, kv_shape) = (problem.q_shape(), problem.kv_shape());
        let [q, o] = [args.q, args.o].map(|tensor| normalized(tensor, q_shape));
        let [k, v] = [args.k, args.v].map(|tensor| normalized(tensor, kv_shape));
        let mut workspace = Workspace::default();
        let mut packs = Vec::new();
        for (input, tensor, shape) in [
            (Input::Q, q, q_shape),
            (Input::K, k, kv_shape),
            (Input::V, v, kv_shape),
        ] {
            if !tensor.is_aligned() {
                packs.push((input, Pack::new(tensor, shape, &mut workspace)?));
            }
        }
        let kernel = chosen.kernel;
        let [partial_o, partial_softmax] = workspace.reserve_partials(kernel, problem, schedule)?;
        let combine = combines(kernel, schedule).then(|| combine_grid(kernel, problem));
        let params = ForwardParams {
            q,
            k,
            v,
            o,
            lse: args.lse,
            partial_o,
            partial_softmax,
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
            o_aligned: u32::from(o.is_aligned()),
            batch_heads: (problem.batch * problem.heads) as u32,
            splits: schedule.splits,
            split_keys: schedule.split_keys,
            causal: u32::from(problem.causal),
            ladder: chosen.ladder,
        };
        let grid = Grid {
            kernel,
            blocks: schedule.blocks,
            shared_bytes: chosen.shared_bytes,
        };
        Ok(Launch {
            packs,
            kernel: grid,
            combine: combine.transpose()?,
            workspace_bytes: workspace.bytes,
            params,
        })
    }

    /// Queues the launch on a stream.
    ///
    /// # Safety
    /// As for [`Attention::forward_raw`](crate::Attention::forward_raw).
    pub unsafe fn on_gpu(&self, gpu: &Gpu, stream: *mut c_void) -> Result<()> {
        // SAFETY: the caller's word; what the kernels share lies in the workspace.
        unsafe {
            on_gpu(gpu, stream, self.workspace_bytes, |w, run| {
                self.each_kernel(w, run)
            })
        }
    }

    /// Runs the launch.
    pub fn on_emulator(&self, emulation: &Arc<Emulation>) -> Result<()> {
        on_emulator(emulation, self.workspace_bytes, |w, run| {
            self.each_kernel(w, run)
        })
    }

    /// Calls `launch` with each kernel, in their order, and its parameter block for a workspace at
    /// this address.
    fn each_kernel(&self, workspace: u64, launch: &Run) -> Result<()> {
        let mut params = ForwardParams {
            partial_o: workspace + self.params.partial_o,
            partial_softmax: workspace + self.params.partial_softmax,
            ..self.params
        };
        for (input, pack) in &self.packs {
            let input = match input {
                Input::Q => &mut params.q,
                Input::K => &mut params.k,
                Input::V => &mut params.v,
            };
            *input = pack.run(workspace, launch)?;
        }
        let passes: &[NaivePass] = match self.kernel.kernel.main_loop() {
            Some(Loop::Naive) => &[NaivePass::Scores, NaivePass::Softmax, NaivePass::Output],
            _ => &[NaivePass::Scores],
        };
        for &pass in passes {
            let ladder = LadderParams {
                pass: pass as u32,
                ..params.ladder
            };
            let params = ForwardParams { ladder, ..params };
            launch(self.kernel, bytemuck::bytes_of(&params))?;
        }
        match self.combine {
            Some(combine) => launch(combine, bytemuck::bytes_of(&params)),
            None => Ok(()),
        }
    }
}

/// Launches a grid with its parameter block.
pub type Run<'a> = dyn Fn(Grid, &[u8]) -> Result<()> + 'a;

/// Queues kernels on a stream: calls `each_kernel` with the address of a workspace of so many bytes and
/// what launches.
///
/// # Safety
/// The stream is null or one of the GPU's primary context, the launches have the kernels' own parameter
/// blocks, and all memory in these but the workspace is valid until the work is done.
pub unsafe fn on_gpu(
    gpu: &Gpu,
    stream: *mut c_void,
    workspace_bytes: usize,
    each_kernel: impl FnOnce(u64, &Run) -> Result<()>,
) -> Result<()> {
    // The workspace is dropped, which frees it in the order of the stream, after all kernels are
    // queued or one has failed to be.
    let workspace = match workspace_bytes {
        0 => None,
        // SAFETY: the caller vouches for the stream.
        bytes => Some(unsafe { gpu.workspace(bytes, stream)? }),
    };
    let address = workspace
        .as_ref()
        .map_or(0, |workspace| workspace.address());
    // SAFETY: the caller's word.
    each_kernel(address, &|grid, params| unsafe {
        grid.on_gpu(gpu, params, stream)
    })
}

/// Runs kernels, as [`on_gpu`], and keeps what they did.
pub fn on_emulator(
    emulation: &Arc<Emulation>,
    workspace_bytes: usize,
    each_kernel: impl FnOnce(u64, &Run) -> Result<()>,
) -> Result<()> {
    let workspace = emulation::Memory::uninitialized(emulation, workspace_bytes);
    let launches = RefCell::new(Vec::new());
    each_kernel(workspace.address(), &|grid, params| {
        let counters = emulation.launch(grid.kernel, grid.blocks, grid.shared_bytes, params)?;
        launches.borrow_mut().push((grid.kernel.name, counters));
        Ok(())
    })?;
    emulation.count(launches.into_inner());
    Ok(())
}

/// Memory that the kernels of a launch share, as it is shared out; addresses in it count from its
/// start until it is allocated.
#[derive(Debug, Default)]
pub struct Workspace {
    pub bytes: usize,
}

impl Workspace {
    const OVERFLOW: Error = Error::Overflow {
        argument: "the workspace",
    };

    /// The place of so many bytes, given as a product: a multiple of 256.
    fn reserve(&mut self, bytes: [usize; 3]) -> Result<u64> {
        let start = self.bytes.checked_next_multiple_of(256);
        let bytes = bytes.into_iter().try_fold(1, usize::checked_mul);
        let end = start
            .zip(bytes)
            .and_then(|(start, bytes)| start.checked_add(bytes));
        self.bytes = end.ok_or(Self::OVERFLOW)?;
        Ok(start.ok_or(Self::OVERFLOW)? as u64)
    }

    /// The places of partial o and of its softmax: of each row by each split, or of the naive kernel's S
    /// alone.
    fn reserve_partials(
        &mut self,
        kernel: &Kernel,
        problem: &Problem,
        schedule: &Schedule,
    ) -> Result<[u64; 2]> {
        let elements = problem.lse_shape().iter().product::<usize>();
        if kernel.main_loop() == Some(Loop::Naive) {
            let scores = self.reserve([elements, problem.seqlen_kv, size_of::<f32>()])?;
            return Ok([scores, 0]);
        }
        if !combines(kernel, schedule) {
            return Ok([0; 2]);
        }
        let rows = elements.checked_mul(schedule.splits as usize);
        let rows = rows.ok_or(Self::OVERFLOW)?;
        Ok([
            self.reserve([rows, problem.dim, size_of::<f32>()])?,
            self.reserve([rows, 2, size_of::<f32>()])?,
        ])
    }
}

/// Bytes of the memory that the kernels share while they run, but for copies of inputs.
pub fn workspace_bytes(kernel: &Kernel, problem: &Problem, schedule: &Schedule) -> Result<usize> {
    let mut workspace = Workspace::default();
    workspace.reserve_partials(kernel, problem, schedule)?;
    Ok(workspace.bytes)
}

/// Whether a further kernel makes o of partial results.
fn combines(kernel: &Kernel, schedule: &Schedule) -> bool {
    schedule.splits > 1 || kernel.main_loop() == Some(Loop::Fa1)
}

impl Pack {
    /// The copy of an input of this shape, with zeros behind rows that are no multiple of 8 elements.
    /// Along axes of stride 0, which have the same element everywhere, it has one too.
    pub fn new(
        from: TensorRef,
        [batch, heads, rows, dim]: [usize; 4],
        workspace: &mut Workspace,
    ) -> Result<Self> {
        let distinct = |extent: usize, stride: i64| if stride == 0 { 1 } else { extent };
        let batch = distinct(batch, from.batch_stride);
        let heads = distinct(heads, from.head_stride);
        let rows = distinct(rows, from.row_stride);
        let kernel = KERNELS.iter().find(|kernel| kernel.family == Family::Pack);
        let kernel = kernel.expect("in the table");
        // No overflow: `validate` has `batch * heads` below 2^63.
        let tiles = rows.div_ceil(kernel.tile.q_rows as usize);
        let grid = Grid::new(kernel, (batch * heads) as u128 * tiles as u128)?;
        let row = dim.next_multiple_of(8);
        let to = workspace.reserve([batch * heads, rows * row, size_of::<u16>()])?;
        let packed = |stride: i64, row_major: usize| if stride == 0 { 0 } else { row_major as i64 };
        Ok(Pack {
            grid,
            params: PackParams {
                from,
                to,
                heads: heads as u32,
                rows: rows as u32,
                dim: dim as u32,
                tiles: tiles as u32,
            },
            copy: TensorRef {
                address: to,
                batch_stride: packed(from.batch_stride, heads * rows * row),
                head_stride: packed(from.head_stride, rows * row),
                row_stride: packed(from.row_stride, row),
            },
        })
    }

    /// Launches the copy; returns where it lies in a workspace at this address.
    pub fn run(&self, workspace: u64, launch: &Run) -> Result<TensorRef> {
        let to = workspace + self.params.to;
        let copied = PackParams { to, ..self.params };
        launch(self.grid, bytemuck::bytes_of(&copied))?;
        Ok(TensorRef {
            address: to,
            ..self.copy
        })
    }
}

/// The kernel that combines the splits of a kernel: a warp takes up to 128 columns of a row.
fn combine_grid(kernel: &Kernel, problem: &Problem) -> Result<Grid> {
    let combine = KERNELS.iter().find(|combine| {
        combine.family == Family::Combine
            && combine.dtype == kernel.dtype
            && combine.arch == kernel.arch
    });
    let kernel = combine.expect("every dtype has one");
    let rows = problem.lse_shape().iter().product::<usize>();
    let row_warps = problem.dim.div_ceil(128).next_power_of_two();
    let warps = rows as u128 * row_warps as u128;
    Grid::new(kernel, warps.div_ceil(u128::from(kernel.tile.warps)))
}

impl Grid {
    /// A grid of so many blocks, if it can be launched.
    pub fn new(kernel: &'static Kernel, blocks: u128) -> Result<Self> {
        match u32::try_from(blocks) {
            Ok(blocks) if blocks <= MAX_BLOCKS => Ok(Grid {
                kernel,
                blocks,
                shared_bytes: kernel.shared_bytes(),
            }),
            _ => Err(Error::Grid {
                kernel: kernel.name,
                blocks,
                max: MAX_BLOCKS,
            }),
        }
    }

    /// # Safety
    /// As for [`Launch::on_gpu`], with the kernel's own parameter block, of which all memory is valid.
    unsafe fn on_gpu(&self, gpu: &Gpu, params: &[u8], stream: *mut c_void) -> Result<()> {
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
        let shared_bytes = self.shared_bytes;
        let ptx = || ptx::module(kernel.module()).ok_or(Error::NotCompiled);
        let function = gpu.function(kernel.name, kernel.module(), ptx)?;
        // SAFETY: the table gives every kernel this block size and this much shared memory; the
        // caller vouches for the parameters, the memory and the stream.
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
    use super::{Launch, Pack, Workspace, combine_grid, normalized};
    use crate::error::{Error, Result};
    use crate::forward::chosen::Chosen;
    use crate::forward::options::RawForward;
    use crate::forward::problem::Problem;
    use crate::forward::schedule::{Facts, Schedule};
    use kernels::abi::TensorRef;
    use kernels::catalog::class::Class;
    use kernels::catalog::{KERNELS, Kernel};

    fn kernel(name: &str) -> &'static Kernel {
        let kernel = KERNELS.iter().find(|kernel| kernel.name == name);
        kernel.expect("in the table")
    }

    #[test]
    fn workspaces_are_shared_out() {
        let mut workspace = Workspace::default();
        let places = [[3, 5, 2], [1, 0, 7], [1, 1, 256], [2, 2, 2]];
        let places = places.map(|bytes| workspace.reserve(bytes));
        assert_eq!(places, [Ok(0), Ok(256), Ok(256), Ok(512)]);
        assert_eq!(workspace.bytes, 520);
        for bytes in [[1 << 40, 1 << 40, 1], [usize::MAX, 1, 1], [1 << 62, 2, 2]] {
            assert_eq!(workspace.reserve(bytes), Err(Workspace::OVERFLOW));
            assert_eq!(workspace.bytes, 520);
        }
    }

    #[test]
    fn combine_grids_have_a_limit() {
        let combine = |rows: usize| {
            let shape = [rows, 1, 1, 136];
            let problem = Problem::new(shape, shape, shape, false, None).expect("valid");
            combine_grid(&KERNELS[0], &problem).map(|grid| (grid.kernel.name, grid.blocks))
        };
        assert_eq!(combine(1001), Ok(("combine_f16", 501)));
        let error = combine(1 << 33);
        assert!(matches!(error, Err(Error::Grid { .. })), "{error:?}");
    }

    /// The launch of `[2, 3, 70, 64]` tensors with these row strides and first elements.
    fn launch(inputs: [(i64, u64); 3], splits: u32) -> Result<Launch> {
        let shape = [2, 3, 70, 64];
        let problem = Problem::new(shape, shape, shape, false, None)?;
        let kernel = kernel("forward_f16_d64");
        let schedule = Schedule::new(
            &Chosen::new(kernel),
            &problem,
            &Facts::emulated(Class::Sm80),
            Some(splits),
        )?;
        let tensor = |(row_stride, first): (i64, u64)| TensorRef {
            address: (1 << 20) + 2 * first,
            batch_stride: 0,
            head_stride: 1 << 14,
            row_stride,
        };
        let [q, k, v] = inputs.map(tensor);
        let args = RawForward {
            q,
            k,
            v,
            o: tensor((65, 0)),
            lse: 1 << 30,
            batch: 2,
            heads: 3,
            kv_heads: 3,
            seqlen_q: 70,
            seqlen_kv: 70,
            dim: 64,
        };
        Launch::new(Chosen::new(kernel), &problem, &schedule, &args)
    }

    #[test]
    fn only_what_is_not_aligned_is_copied() {
        for (inputs, copied) in [
            ([(64, 0), (64, 8), (-72, 0)], [false; 3]),
            ([(65, 0), (64, 0), (64, 0)], [true, false, false]),
            ([(64, 0), (64, 1), (64, 0)], [false, true, false]),
            ([(64, 0), (64, 0), (-68, 0)], [false, false, true]),
            ([(0, 4), (1, 0), (60, 0)], [true; 3]),
        ] {
            for splits in [1, 2] {
                let launch = launch(inputs, splits).expect("valid");
                let found = launch.packs.iter().fold([false; 3], |mut found, pack| {
                    found[pack.0 as usize] = true;
                    found
                });
                assert_eq!(found, copied, "{inputs:?}");
                // What a launch needs no workspace for, it must not wait for on any device.
                let needed = splits > 1 || copied.contains(&true);
                assert_eq!(launch.workspace_bytes > 0, needed);
                assert_eq!(launch.params.o_aligned, 0);
            }
        }
    }

    #[test]
    fn copies_are_row_major_and_broadcasts_stay() {
        let pack = |strides: [i64; 3], shape| {
            let [batch_stride, head_stride, row_stride] = strides;
            let from = TensorRef {
                address: 2,
                batch_stride,
                head_stride,
                row_stride,
            };
            let mut workspace = Workspace::default();
            Pack::new(from, shape, &mut workspace).map(|pack| {
                let TensorRef {
                    batch_stride,
                    head_stride,
                    row_stride,
                    ..
                } = pack.copy;
                assert!(pack.copy.is_aligned());
                let strides = [batch_stride, head_stride, row_stride];
                (strides, pack.grid.blocks, workspace.bytes)
            })
        };
        let shape = [2, 3, 65, 8];
        assert_eq!(pack([9, -7, 5], shape), Ok(([1560, 520, 8], 12, 6240)));
        assert_eq!(pack([0, 0, 5], shape), Ok(([0, 0, 8], 2, 1040)));
        assert_eq!(pack([0, 5, 0], shape), Ok(([0, 8, 0], 3, 48)));
        assert_eq!(pack([0, 0, 0], shape), Ok(([0, 0, 0], 1, 16)));
        // Rows of 13 elements take 16 places.
        let odd = [2, 3, 65, 13];
        assert_eq!(pack([9, -7, 5], odd), Ok(([3120, 1040, 16], 12, 12480)));
        let error = pack([1, 1, 1], [1 << 15, 1 << 15, 129, 8]);
        assert!(matches!(error, Err(Error::Grid { .. })), "{error:?}");
        let error = pack([1, 1, 1], [1 << 30, 1, 1 << 30, 256]);
        assert!(matches!(error, Err(Error::Grid { .. })), "{error:?}");
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
