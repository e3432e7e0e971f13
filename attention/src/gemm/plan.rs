//! Launches of the kernels of a matrix product.

use super::options::as_tensor;
use super::{GemmProblem, RawGemm};
use crate::device::driver::Gpu;
use crate::device::emulation::Emulation;
use crate::error::Result;
use crate::forward::chosen::Chosen;
use crate::forward::plan::{self, Grid, Pack, Run, Workspace};
use crate::forward::schedule::Facts;
use kernels::abi::Order;
use kernels::abi::{GemmParams, MatrixRef};
use kernels::catalog::Kernel;
use std::ffi::c_void;
use std::sync::Arc;

/// Copies of the inputs that no kernel can read in place, and the product.
pub struct Launch {
    a: Option<Pack>,
    b: Option<Pack>,
    kernel: Grid,
    workspace_bytes: usize,
    params: GemmParams,
}

impl Launch {
    /// The launch that computes a [valid](GemmProblem::validate) problem whose m and n are not 0.
    pub fn new(kernel: &'static Kernel, args: &RawGemm, facts: &Facts) -> Result<Self> {
        let GemmProblem { m, n, k } = args.problem;
        let (a, b) = (normalized(args.a, m), normalized(args.b, n));
        let c = normalized(args.c, m);
        let mut workspace = Workspace::default();
        let mut pack = |matrix: MatrixRef, rows: usize| {
            let in_place = k == 0 || (matrix.is_aligned() && k.is_multiple_of(8));
            let pack = || Pack::new(as_tensor(matrix), [1, 1, rows, k], &mut workspace);
            (!in_place).then(pack).transpose()
        };
        let (pack_a, pack_b) = (pack(a, m)?, pack(b, n)?);
        let (row_tiles, column_tiles) = (
            m.div_ceil(kernel.tile.q_rows as usize),
            n.div_ceil(kernel.tile.keys as usize),
        );
        let grid = Grid::new(kernel, row_tiles as u128 * column_tiles as u128)?;
        // All of these fit: the grid holds all tiles, and `validate` bounds the sizes.
        let order = Order::new(
            row_tiles as u32,
            column_tiles as u32,
            group_rows(kernel, facts).min(row_tiles as u32),
        );
        Ok(Launch {
            a: pack_a,
            b: pack_b,
            kernel: grid,
            workspace_bytes: workspace.bytes,
            params: GemmParams {
                a,
                b,
                c,
                m: m as u32,
                n: n as u32,
                k: k.next_multiple_of(8) as u32,
                c_aligned: u32::from(c.is_aligned() && n.is_multiple_of(8)),
                order,
            },
        })
    }

    /// Queues the launch on a stream.
    ///
    /// # Safety
    /// As for [`Gemm::forward_raw`](super::Gemm::forward_raw).
    pub unsafe fn on_gpu(&self, gpu: &Gpu, stream: *mut c_void) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe {
            plan::on_gpu(gpu, stream, self.workspace_bytes, |workspace, run| {
                self.each_kernel(workspace, run)
            })
        }
    }

    /// Runs the launch.
    pub fn on_emulator(&self, emulation: &Arc<Emulation>) -> Result<()> {
        plan::on_emulator(emulation, self.workspace_bytes, |workspace, run| {
            self.each_kernel(workspace, run)
        })
    }

    /// Launches each kernel, in their order, with a workspace at this address.
    fn each_kernel(&self, workspace: u64, run: &Run) -> Result<()> {
        let mut params = self.params;
        for (pack, matrix) in [(&self.a, &mut params.a), (&self.b, &mut params.b)] {
            if let Some(pack) = pack {
                let copy = pack.run(workspace, run)?;
                *matrix = MatrixRef {
                    address: copy.address,
                    row_stride: copy.row_stride,
                };
            }
        }
        run(self.kernel, bytemuck::bytes_of(&params))
    }
}

/// Rows of tiles whose tiles take turns, column by column: with them the blocks that run together cover
/// about a square of C, which takes the fewest rows of A and B for its area.
fn group_rows(kernel: &'static Kernel, facts: &Facts) -> u32 {
    let running = facts.multiprocessors * facts.resident_blocks(&Chosen::new(kernel));
    let shape = f64::from(kernel.tile.keys) / f64::from(kernel.tile.q_rows);
    (f64::from(running) * shape).sqrt().round().max(1.0) as u32
}

/// The same matrix with the stride of a single row set to zero: it is never used, and must not make it
/// look unaligned.
fn normalized(matrix: MatrixRef, rows: usize) -> MatrixRef {
    MatrixRef {
        row_stride: if rows > 1 { matrix.row_stride } else { 0 },
        ..matrix
    }
}

#[cfg(test)]
mod tests {
    use super::Launch;
    use crate::forward::schedule::Facts;
    use crate::gemm::{Gemm, GemmProblem, RawGemm};
    use kernels::abi::MatrixRef;
    use kernels::catalog::Dtype;
    use kernels::catalog::class::Class;

    fn launch(k: usize, a_stride: i64, b: u64, c_stride: i64) -> Launch {
        let facts = Facts::emulated(Class::Sm90);
        let problem = GemmProblem { m: 300, n: 200, k };
        let kernel = Gemm::new().resolve(Dtype::F16, &problem, &facts);
        let matrix = |address, row_stride| MatrixRef {
            address,
            row_stride,
        };
        let args = RawGemm {
            a: matrix(1 << 20, a_stride),
            b: matrix(b, 64),
            c: matrix(1 << 30, c_stride),
            problem,
        };
        Launch::new(kernel.expect("a kernel"), &args, &facts).expect("a grid")
    }

    #[test]
    fn only_what_needs_it_is_copied() {
        for (launch, copied) in [
            (launch(64, 64, 1 << 21, 200), [false, false]),
            (launch(64, 65, 1 << 21, 200), [true, false]),
            (launch(64, -72, 2 + (1 << 21), 200), [false, true]),
            // Behind the rows lies what must not count.
            (launch(61, 64, 1 << 21, 200), [true, true]),
            // Nothing is read.
            (launch(0, 65, 2, 200), [false, false]),
        ] {
            assert_eq!([launch.a.is_some(), launch.b.is_some()], copied);
            assert_eq!(launch.workspace_bytes > 0, copied.contains(&true));
            assert_eq!(launch.params.c_aligned, 1);
            assert_eq!(launch.params.k % 8, 0);
        }
        assert_eq!(launch(64, 64, 1 << 21, 201).params.c_aligned, 0);
    }

    #[test]
    fn copies_have_room_for_whole_pieces() {
        let launch = launch(61, 64, 1 << 21, 200);
        assert_eq!(launch.workspace_bytes, 300 * 64 * 2 + 200 * 64 * 2);
    }
}
