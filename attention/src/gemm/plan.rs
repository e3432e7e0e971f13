//! The plan of a matrix product: copies of inputs that no kernel can read in place, and the product.

use super::choice::resident_blocks;
use super::{GemmProblem, RawGemm};
use crate::device::Facts;
use crate::error::Result;
use crate::plan::{Plan, Steps, grid};
use crate::tensor::RawTensor;
use kernels::abi::{GemmParams, MatrixRef, Order, TensorRef};
use kernels::catalog::Kernel;
use std::mem::offset_of;

/// The plan for a [valid](GemmProblem::validate) problem, by a kernel; without steps if C has no elements.
pub fn plan(
    kernel: &'static Kernel,
    problem: &GemmProblem,
    args: &RawGemm,
    facts: &Facts,
) -> Result<Plan> {
    let mut steps = Steps::default();
    let &GemmProblem { m, n, k } = problem;
    if m == 0 || n == 0 {
        return Ok(steps.finish(kernel.name, 1));
    }
    let matrix = |tensor: TensorRef| MatrixRef {
        address: tensor.address,
        row_stride: tensor.row_stride,
    };
    let [a, b, c] = [args.a, args.b, args.c].map(RawTensor::<4>::from);
    let a = matrix(steps.input(a, offset_of!(GemmParams, a.address))?);
    let b = matrix(steps.input(b, offset_of!(GemmParams, b.address))?);
    let c = matrix(c.into());
    let tile = kernel.gemm().expect("it multiplies matrices").tile;
    let row_tiles = m.div_ceil(tile.rows as usize);
    let column_tiles = n.div_ceil(tile.columns as usize);
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
    steps.launch(kernel.into(), blocks, kernel.shared_bytes(), &params)?;
    Ok(steps.finish(kernel.name, 1))
}

/// Rows of tiles whose tiles take turns, column by column: with them the blocks that run together cover
/// about a square of C, which takes the fewest rows of A and B for its area.
fn group_rows(kernel: &Kernel, facts: &Facts) -> u32 {
    let running = facts.multiprocessors * resident_blocks(kernel, facts);
    let tile = kernel.gemm().expect("it multiplies matrices").tile;
    let shape = f64::from(tile.columns) / f64::from(tile.rows);
    (f64::from(running) * shape).sqrt().round().max(1.0) as u32
}

#[cfg(test)]
mod tests {
    use crate::device::Facts;
    use crate::error::Error;
    use crate::gemm::{Gemm, GemmProblem, RawGemm};
    use crate::plan::Plan;
    use crate::tensor::{Dtype, RawTensor};
    use kernels::abi::GemmParams;
    use kernels::catalog::class::Class;
    use std::mem::offset_of;

    const H100: Facts = Facts::emulated(Class::Sm90);

    fn plan(k: usize, a_stride: isize, b: u64, c_stride: isize) -> Plan {
        let matrix = |address, shape, row_stride| RawTensor {
            address,
            shape,
            strides: [row_stride, 1],
        };
        let args = RawGemm {
            a: matrix(1 << 20, [300, k], a_stride),
            b: matrix(b, [200, k], 64),
            c: matrix(1 << 30, [300, 200], c_stride),
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
