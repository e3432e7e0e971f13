//! The plan of a matrix product: copies of inputs that no kernel can read in place, and the product.

use super::choice::resident_blocks;
use super::options::as_tensor;
use super::{GemmProblem, RawGemm};
use crate::device::Facts;
use crate::error::Result;
use crate::pack::pack;
use crate::plan::{Plan, Step, Workspace, grid};
use kernels::abi::{GemmParams, MatrixRef, Order};
use kernels::catalog::Kernel;
use std::mem::offset_of;

/// The plan for a [valid](GemmProblem::validate) problem, by a kernel; without steps if C has no elements.
pub fn plan(kernel: &'static Kernel, args: &RawGemm, facts: &Facts) -> Result<Plan> {
    let mut plan = Plan::without_steps(kernel.name);
    let GemmProblem { m, n, k } = args.problem;
    if m == 0 || n == 0 {
        return Ok(plan);
    }
    let c = normalized(args.c, m);
    let mut inputs = [normalized(args.a, m), normalized(args.b, n)];
    let mut workspace = Workspace::default();
    let mut places = Vec::new();
    for ((matrix, rows), place) in inputs.iter_mut().zip([m, n]).zip([
        offset_of!(GemmParams, a.address),
        offset_of!(GemmParams, b.address),
    ]) {
        // With k = 0 nothing is read.
        if k > 0 && !(matrix.is_aligned() && k.is_multiple_of(8)) {
            let (step, copy) = pack(as_tensor(*matrix), [1, 1, rows, k], &mut workspace)?;
            *matrix = MatrixRef {
                address: copy.address,
                row_stride: copy.row_stride,
            };
            plan.steps.push(step);
            places.push(place);
        }
    }
    let [a, b] = inputs;
    let tile = kernel.gemm().expect("it multiplies matrices").tile;
    let (row_tiles, column_tiles) = (
        m.div_ceil(tile.rows as usize),
        n.div_ceil(tile.columns as usize),
    );
    let blocks = row_tiles as u128 * column_tiles as u128;
    grid(kernel.name, blocks)?;
    let params = GemmParams {
        a,
        b,
        c,
        // All of these fit: the grid holds all tiles, and `validate` bounds the sizes.
        m: m as u32,
        n: n as u32,
        k: k.next_multiple_of(8) as u32,
        c_aligned: u32::from(c.is_aligned() && n.is_multiple_of(8)),
        order: Order::new(
            row_tiles as u32,
            column_tiles as u32,
            group_rows(kernel, facts).min(row_tiles as u32),
        ),
    };
    let shared_bytes = kernel.shared_bytes();
    let step = Step::new(kernel.into(), blocks, shared_bytes, &params, &places)?;
    plan.steps.push(step);
    plan.workspace_bytes = workspace.bytes;
    Ok(plan)
}

/// Rows of tiles whose tiles take turns, column by column: with them the blocks that run together cover
/// about a square of C, which takes the fewest rows of A and B for its area.
fn group_rows(kernel: &Kernel, facts: &Facts) -> u32 {
    let running = facts.multiprocessors * resident_blocks(kernel, facts);
    let tile = kernel.gemm().expect("it multiplies matrices").tile;
    let shape = f64::from(tile.columns) / f64::from(tile.rows);
    (f64::from(running) * shape).sqrt().round().max(1.0) as u32
}

/// The same matrix with stride 0 if it has one row: the stride is never used, and must not make the matrix look
/// unaligned.
fn normalized(matrix: MatrixRef, rows: usize) -> MatrixRef {
    MatrixRef {
        row_stride: if rows > 1 { matrix.row_stride } else { 0 },
        ..matrix
    }
}

#[cfg(test)]
mod tests {
    use crate::device::Facts;
    use crate::error::Error;
    use crate::gemm::{Gemm, GemmProblem, RawGemm};
    use crate::plan::Plan;
    use crate::tensor::Dtype;
    use kernels::abi::{GemmParams, MatrixRef};
    use kernels::catalog::class::Class;
    use std::mem::offset_of;

    const H100: Facts = Facts::emulated(Class::Sm90);

    fn plan(k: usize, a_stride: i64, b: u64, c_stride: i64) -> Plan {
        let matrix = |address, row_stride| MatrixRef {
            address,
            row_stride,
        };
        let args = RawGemm {
            a: matrix(1 << 20, a_stride),
            b: matrix(b, 64),
            c: matrix(1 << 30, c_stride),
            problem: GemmProblem { m: 300, n: 200, k },
        };
        let plan = Gemm::new().plan(Some(&H100), Dtype::F16, &args);
        plan.expect("a grid")
    }

    /// A number of the product's parameter block.
    fn param(plan: &Plan, offset: usize) -> u32 {
        let product = plan.steps.last().expect("a product");
        let bytes = product.params[offset..][..4].try_into();
        u32::from_ne_bytes(bytes.expect("four bytes"))
    }

    #[test]
    fn only_what_needs_it_is_copied() {
        let c_aligned = offset_of!(GemmParams, c_aligned);
        for (plan, copied) in [
            (plan(64, 64, 1 << 21, 200), [false, false]),
            (plan(64, 65, 1 << 21, 200), [true, false]),
            (plan(64, -72, 2 + (1 << 21), 200), [false, true]),
            // What lies behind the rows must not count.
            (plan(61, 64, 1 << 21, 200), [true, true]),
            // Nothing is read.
            (plan(0, 65, 2, 200), [false, false]),
        ] {
            let product = plan.steps.last().expect("a product");
            assert_eq!(product.entry.name, plan.kernel);
            let places = [
                offset_of!(GemmParams, a.address),
                offset_of!(GemmParams, b.address),
            ];
            let found = places.map(|place| product.places.contains(&place));
            assert_eq!(found, copied);
            assert_eq!(plan.steps.len(), 1 + product.places.len());
            assert_eq!(plan.workspace_bytes > 0, copied.contains(&true));
            assert_eq!(param(&plan, c_aligned), 1);
            assert_eq!(param(&plan, offset_of!(GemmParams, k)) % 8, 0);
        }
        assert_eq!(param(&plan(64, 64, 1 << 21, 201), c_aligned), 0);
    }

    #[test]
    fn copies_have_room_for_whole_pieces() {
        let plan = plan(61, 64, 1 << 21, 200);
        assert_eq!(plan.workspace_bytes, 300 * 64 * 2 + 200 * 64 * 2);
    }

    #[test]
    fn grids_have_a_limit_and_may_be_empty() {
        let plan = |m, n| {
            let args = RawGemm::row_major(GemmProblem { m, n, k: 0 });
            let plan = Gemm::new().plan(Some(&H100), Dtype::F16, &args)?;
            Ok::<_, Error>(plan.steps.len())
        };
        assert_eq!((plan(0, 5), plan(5, 0), plan(5, 5)), (Ok(0), Ok(0), Ok(1)));
        let error = plan(1 << 30, 1 << 30);
        assert!(matches!(error, Err(Error::Grid { .. })), "{error:?}");
    }
}
