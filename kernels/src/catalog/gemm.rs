//! Matrix products, and how their blocks divide the work.

use super::collectives::{Collectives, bar, cp_async, ldmatrix, mma};
use super::{Accumulation, Dtype, Spec, generics};

/// A matrix product; a simple one where its tile has no stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gemm {
    /// Element type of A, B and C.
    pub dtype: Dtype,
    /// Type that products are summed in.
    pub accumulation: Accumulation,
    /// How a block divides the work.
    pub tile: GemmTile,
}

/// Rows, columns, depth and stages of the multistage kernels' tiles.
const MULTISTAGE: [[u32; 4]; 9] = [
    [256, 128, 64, 3],
    [256, 128, 32, 4],
    [256, 128, 32, 3],
    [128, 256, 32, 4],
    [128, 256, 32, 3],
    [128, 128, 32, 3],
    [128, 128, 32, 4],
    [128, 128, 32, 5],
    [64, 64, 64, 4],
];

/// All matrix products.
pub(super) fn all() -> impl Iterator<Item = Gemm> {
    let types = [
        (Dtype::F16, Accumulation::Single),
        (Dtype::Bf16, Accumulation::Single),
        (Dtype::F16, Accumulation::Half),
    ];
    let gemm = |(dtype, accumulation), tile| Gemm {
        dtype,
        accumulation,
        tile,
    };
    let simple = types.map(|types| gemm(types, GemmTile::SIMPLE));
    let multistage =
        types.map(|types| MULTISTAGE.map(|size| gemm(types, GemmTile::multistage(size))));
    simple.into_iter().chain(multistage.into_iter().flatten())
}

impl Spec for Gemm {
    fn name(&self) -> String {
        let types = format!("{}_{}", self.dtype.name(), self.accumulation.name());
        match self.tile.stages {
            0 => format!("gemm_simple_{types}"),
            stages => {
                let GemmTile { rows, columns, .. } = self.tile;
                format!("gemm_{types}_{rows}x{columns}x{}x{stages}", self.tile.depth)
            }
        }
    }

    fn threads(&self) -> u32 {
        32 * self.tile.warps_down * self.tile.warps_across
    }

    fn blocks_per_sm(&self) -> u32 {
        self.tile.blocks_per_sm
    }

    /// The tiles of A and B of each stage, later C.
    fn shared_bytes(&self) -> u32 {
        let GemmTile { rows, columns, .. } = self.tile;
        match self.tile.stages {
            0 => 0,
            stages => {
                let ring = stages * (rows + columns) * self.tile.depth * 2;
                ring.max(rows * columns * 2)
            }
        }
    }

    fn instance(&self) -> String {
        let (element, sums, tile) = (self.dtype, self.accumulation, self.tile);
        let [mt, nt] = tile.warp_tiles();
        let mut sizes = vec![tile.warps_down, tile.warps_across, mt, nt];
        let kernel = match tile.stages {
            0 => "simple",
            stages => {
                sizes.extend([tile.depth / 16, stages]);
                "multistage"
            }
        };
        let sizes = generics(&sizes);
        format!("(GemmParams) = gemm::{kernel}::<{element:?}, {sums:?}, {sizes}>")
    }

    /// A step: the products of each slice and, with stages, the operands of the next slice and the
    /// copies of a later tile. Before the loop the copies into all tiles but one and the first
    /// operands; barriers before, in and after it.
    fn collectives(&self) -> Collectives {
        let [mt, nt] = self.tile.warp_tiles();
        let slices = self.tile.depth / 16;
        let products = mma(slices * 2 * mt * nt);
        if self.tile.stages == 0 {
            return products;
        }
        let chunks = (self.tile.rows + self.tile.columns) * self.tile.depth / 8;
        let copies = cp_async(self.tile.stages * chunks / self.threads());
        products + ldmatrix((slices + 1) * (mt + nt)) + copies + bar(3)
    }
}

/// A block's tile of C, and its steps along k.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GemmTile {
    /// Rows of C (BM).
    pub rows: u32,
    /// Columns of C (BN).
    pub columns: u32,
    /// Elements of k that a step takes (BK), a multiple of 16.
    pub depth: u32,
    /// Warps below each other: each takes `rows / warps_down` rows, a multiple of 16.
    pub warps_down: u32,
    /// Warps beside each other: each takes `columns / warps_across` columns, a multiple of 16.
    pub warps_across: u32,
    /// Tiles of A and B in shared memory, one worked on and the others on their way; 0 in a kernel
    /// without shared memory.
    pub stages: u32,
    /// Blocks that should fit on one multiprocessor.
    pub blocks_per_sm: u32,
}

impl GemmTile {
    /// The simple kernels' tile: many warps of few registers, since nothing but other warps hides
    /// the latency of a load.
    pub const SIMPLE: Self = GemmTile {
        rows: 128,
        columns: 128,
        depth: 16,
        warps_down: 2,
        warps_across: 4,
        stages: 0,
        blocks_per_sm: 2,
    };

    /// A multistage kernel's tile: eight warps on a multiprocessor, each with 64x64 elements of C,
    /// which reads least from shared memory; 32x32 for matrices that leave few tiles.
    ///
    /// A step of 16 along k takes a warp 32 products of 6 cycles of its scheduler's tensor core, with
    /// two warps 384 cycles. Shared memory is read for 256 of these (8 warps, 64 + 64 rows of 32
    /// bytes, 128 bytes a cycle), and written for 128 by two blocks of 128x128, for 96 by one of
    /// 256x128.
    ///
    /// Losers, on an H200 (`docs/tuning.md`): 128x256x64 and 128x128x64, each with three stages.
    const fn multistage([rows, columns, depth, stages]: [u32; 4]) -> Self {
        let side = if rows * columns < 128 * 128 { 32 } else { 64 };
        let (warps_down, warps_across) = (rows / side, columns / side);
        GemmTile {
            rows,
            columns,
            depth,
            warps_down,
            warps_across,
            stages,
            blocks_per_sm: match side {
                32 => 3,
                _ => 8 / (warps_down * warps_across),
            },
        }
    }

    /// 16x16 tiles of C that a warp has, down and across.
    fn warp_tiles(&self) -> [u32; 2] {
        let down = self.rows / self.warps_down / 16;
        let across = self.columns / self.warps_across / 16;
        [down, across]
    }
}
