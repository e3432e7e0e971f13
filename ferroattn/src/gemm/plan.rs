//! The plan of a matrix product: copies of inputs that no kernel can read in place, and the product.

use super::choice::resident_blocks;
use super::{GemmProblem, RawGemm};
use crate::device::Facts;
use crate::error::Result;
use crate::plan::{MapPlace, Plan, Steps, grid};
use crate::tensor::RawTensor;
use crate::tensor_map::tensor_map;
use kernels::abi::{GemmParams, HopperGemmParams, MatrixRef, Order, TensorRef};
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
            [group_rows(kernel, facts).min(row_tiles as u32), 1],
        ),
    };
    if kernel.takes_maps() {
        launch_by_maps(&mut steps, kernel, params, facts)?;
    } else {
        steps.launch(kernel.into(), blocks, kernel.launch.shared_bytes, &params)?;
    }
    Ok(steps.finish(kernel.name, 1))
}

/// Adds the launch of a kernel that loads by tensor maps, whose blocks take one tile after the other: as few blocks as
/// have no more tiles each than a block for each multiprocessor would.
fn launch_by_maps(
    steps: &mut Steps,
    kernel: &'static Kernel,
    gemm: GemmParams,
    facts: &Facts,
) -> Result<()> {
    let tile = kernel.gemm().expect("it multiplies matrices").tile;
    let places = std::mem::take(&mut steps.places);
    let map = |place, matrix: MatrixRef, address, rows: u32, box_rows| {
        let tensor = TensorRef {
            address: matrix.address,
            row_stride: matrix.row_stride,
            ..TensorRef::default()
        };
        let shape = [1, 1, rows as usize, gemm.k as usize];
        MapPlace {
            place,
            map: tensor_map(tensor, shape, tile.depth, box_rows),
            in_workspace: places.contains(&address),
        }
    };
    let a = offset_of!(GemmParams, a.address);
    let b = offset_of!(GemmParams, b.address);
    let maps = [
        map(
            offset_of!(HopperGemmParams, a),
            gemm.a,
            a,
            gemm.m,
            tile.rows,
        ),
        map(
            offset_of!(HopperGemmParams, b),
            gemm.b,
            b,
            gemm.n,
            tile.columns,
        ),
    ];
    let params = HopperGemmParams {
        gemm,
        tiles: gemm.order.blocks(),
        ..HopperGemmParams::default()
    };
    let tiles_of_block = params.tiles.div_ceil(facts.multiprocessors);
    let blocks = params.tiles.div_ceil(tiles_of_block);
    let step = steps.launch(
        kernel.into(),
        blocks.into(),
        kernel.launch.shared_bytes,
        &params,
    )?;
    step.maps = maps.into();
    Ok(())
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
    use crate::device::Class;
    use crate::device::Facts;
    use crate::error::Error;
    use crate::gemm::{Gemm, GemmProblem, HOPPER, MULTISTAGE, RawGemm};
    use crate::plan::Plan;
    use crate::tensor::{Dtype, RawTensor};
    use kernels::abi::{GemmParams, HopperGemmParams};
    use std::mem::offset_of;

    const H100: Facts = Facts::emulated(Class::Sm90);

    fn plan(kernel: &str, k: usize, a_stride: isize, b: u64, c_stride: isize) -> Plan {
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
        let plan = Gemm::new()
            .kernel(kernel)
            .plan(Some(&H100), Dtype::F16, &args);
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
        for (k, a_stride, b, copied) in [
            (64, 64, 1 << 21, [false, false]),
            (64, 65, 1 << 21, [true, false]),
            (64, 72, 2 + (1 << 21), [false, true]),
            // Memory behind the rows must not count.
            (61, 64, 1 << 21, [true, true]),
            // Nothing is read.
            (0, 65, 2, [false, false]),
        ] {
            for kernel in [MULTISTAGE, HOPPER] {
                let plan = plan(kernel, k, a_stride, b, 200);
                let product = plan.steps.last().expect("a product");
                assert_eq!(product.entry.name, plan.kernel);
                let maps: Vec<_> = product.maps.iter().map(|map| map.in_workspace).collect();
                let inner = if maps.is_empty() {
                    let places = [
                        offset_of!(GemmParams, a.address),
                        offset_of!(GemmParams, b.address),
                    ];
                    assert_eq!(places.map(|place| product.places.contains(&place)), copied);
                    0
                } else {
                    assert_eq!(maps, copied);
                    offset_of!(HopperGemmParams, gemm)
                };
                assert_eq!(maps.is_empty(), kernel == MULTISTAGE || k == 0);
                let copies = copied.iter().filter(|&&copied| copied).count();
                assert_eq!(plan.steps.len(), 1 + copies);
                assert_eq!(plan.workspace_bytes > 0, copies > 0);
                assert_eq!(param(&plan, inner + offset_of!(GemmParams, c_aligned)), 1);
                assert_eq!(param(&plan, inner + offset_of!(GemmParams, k)) % 8, 0);
            }
        }
        let odd_c = plan(MULTISTAGE, 64, 64, 1 << 21, 201);
        assert_eq!(param(&odd_c, offset_of!(GemmParams, c_aligned)), 0);
    }

    /// Boxes are a tile's rows of A and of B.
    #[test]
    fn maps_are_of_the_matrices() {
        let plan = plan("gemm_hopper_f16_f32_128x256x64x4", 61, 72, 1 << 21, 200);
        let step = plan.steps.last().expect("a product");
        let maps: Vec<_> = step
            .maps
            .iter()
            .map(|place| (place.place, place.map))
            .collect();
        let [(a_place, a), (b_place, b)] = maps[..] else {
            panic!("two maps: {maps:?}")
        };
        assert_eq!([a_place, b_place], [0, 128]);
        assert_eq!((a.sizes, a.box_sizes), ([64, 300, 1, 1], [64, 128, 1, 1]));
        assert_eq!((b.sizes, b.box_sizes), ([64, 200, 1, 1], [64, 256, 1, 1]));
        // Copies without gaps.
        assert_eq!((a.strides[0], b.strides[0]), (128, 128));
        assert_eq!(a.address.abs_diff(b.address), 300 * 128);
    }

    #[test]
    fn persistent_blocks_have_equal_work_or_one_tile_less() {
        for (size, blocks) in [(8192, 128), (4096, 128), (256, 2), (2176, 77)] {
            let args = RawGemm::row_major(GemmProblem {
                m: size,
                n: size,
                k: 64,
            });
            let gemm = Gemm::new().kernel("gemm_hopper_f16_f32_128x256x64x4");
            let plan = gemm.plan(Some(&H100), Dtype::F16, &args).expect("a grid");
            assert_eq!(plan.steps[0].blocks, blocks, "{size}");
        }
    }

    #[test]
    fn copies_have_room_for_whole_pieces() {
        let plan = plan(MULTISTAGE, 61, 64, 1 << 21, 200);
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
