//! Matrix products, and how their blocks divide the work.

use super::{Accumulation, Dtype, Feature, Instance, Launch, Spec};
use crate::generic;
use crate::layout::element::{BYTES, K};

/// A matrix product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gemm {
    /// How operands reach the tensor cores.
    pub kind: GemmKind,
    /// Element type of A, B and C.
    pub dtype: Dtype,
    /// Type that products are summed in.
    pub accumulation: Accumulation,
    /// How a block divides the work.
    pub tile: GemmTile,
}

/// How operands reach the tensor cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GemmKind {
    /// Straight from global memory, without stages.
    Simple,
    /// By `cp.async` through stages in shared memory.
    Multistage,
    /// By TMA through stages, on Hopper alone.
    Hopper,
}

/// Rows, columns, depth and stages of tiles.
#[rustfmt::skip]
const TILES: [(GemmKind, &[[u32; 4]]); 3] = [
    (GemmKind::Simple, &[[128, 128, 16, 0]]),
    (GemmKind::Multistage, &[
        [256, 128, 64, 3], [256, 128, 32, 4], [256, 128, 32, 3],
        [128, 256, 32, 4], [128, 256, 32, 3],
        [128, 128, 32, 3], [128, 128, 32, 4], [128, 128, 32, 5],
        [64, 64, 64, 4],
    ]),
    (GemmKind::Hopper, &[[128, 256, 64, 4], [128, 192, 64, 4], [64, 128, 64, 8]]),
];

/// All matrix products.
pub(super) fn all() -> impl Iterator<Item = Gemm> {
    let tiles = TILES.into_iter();
    let tiles = tiles.flat_map(|(kind, sizes)| sizes.iter().map(move |sizes| (kind, *sizes)));
    tiles.flat_map(|(kind, sizes)| {
        let half = (kind != GemmKind::Hopper).then_some((Dtype::F16, Accumulation::Half));
        let single = Dtype::ALL.map(|dtype| (dtype, Accumulation::Single));
        let types = single.into_iter().chain(half);
        types.map(move |(dtype, accumulation)| Gemm {
            kind,
            dtype,
            accumulation,
            tile: GemmTile::new(kind, sizes),
        })
    })
}

impl Spec for Gemm {
    fn name(&self) -> String {
        let types = format!("{}_{}", self.dtype.name(), self.accumulation.name());
        let tile = self.tile;
        let (rows, columns, depth, stages) = (tile.rows, tile.columns, tile.depth, tile.stages);
        let tile = format!("{types}_{rows}x{columns}x{depth}x{stages}");
        match self.kind {
            GemmKind::Simple => format!("gemm_simple_{types}"),
            GemmKind::Multistage => format!("gemm_{tile}"),
            GemmKind::Hopper => format!("gemm_hopper_{tile}"),
        }
    }

    fn features(&self) -> &'static [Feature] {
        match self.kind {
            GemmKind::Hopper => &[Feature::TensorMaps, Feature::Wgmma],
            _ => &[],
        }
    }

    /// Shared memory: the tiles of A and B of each stage; later C, or on Hopper two barriers a stage.
    fn launch(&self) -> Launch {
        let tile = self.tile;
        let warps = tile.warps_down * tile.warps_across;
        let ring = tile.stages * (tile.rows + tile.columns) * tile.depth * BYTES;
        let (warps, shared_bytes) = match self.kind {
            GemmKind::Simple => (warps, 0),
            GemmKind::Multistage => (warps, ring.max(tile.rows * tile.columns * BYTES)),
            // A warpgroup more produces.
            GemmKind::Hopper => (warps + 4, ring + tile.stages * 16),
        };
        Launch::new(warps, tile.blocks_per_sm, shared_bytes)
    }

    /// A launch of Hopper's kernels gives each of 256 threads 256 registers, and each of 384 threads 168.
    fn instance(&self) -> Instance {
        let tile = self.tile;
        let (wm, wn, s) = (tile.warps_down, tile.warps_across, tile.stages);
        let [mt, nt, kt] = [tile.rows / wm / 16, tile.columns / wn / 16, tile.depth / K];
        let taken = if tile.rows == 64 { 256 } else { 232 };
        let generic = match self.kind {
            GemmKind::Simple => generic! { simple: WM = wm, WN = wn, MT = mt, NT = nt },
            GemmKind::Multistage => {
                generic! { multistage: WM = wm, WN = wn, MT = mt, NT = nt, KT = kt, S = s }
            }
            GemmKind::Hopper => {
                generic! { hopper: W = wm / 4, NT = nt, S = s, GIVEN = 40, TAKEN = taken }
            }
        };
        let sums = format!("{:?}", self.accumulation);
        let (params, types) = match self.kind {
            GemmKind::Hopper => ("HopperGemmParams", vec![]),
            _ => ("GemmParams", vec![&*sums]),
        };
        Instance::new((params, "gemm"), self.dtype, &types, generic)
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
    /// Tiles of A and B in shared memory, one or two worked on and the others on their way; 0 in a kernel
    /// without shared memory.
    pub stages: u32,
    /// Blocks that should fit on one multiprocessor.
    pub blocks_per_sm: u32,
}

impl GemmTile {
    /// The simple kernels have many warps of few registers, since nothing but other warps hides the latency of a load.
    ///
    /// Multistage kernels have eight warps on a multiprocessor, each with 64x64 elements of C, which reads least from shared
    /// memory: 256 cycles of the 384 that the products of a step of 16 take. It is written for 128 by two blocks of 128x128,
    /// and for 96 by one of 256x128. Matrices that leave few tiles have 32x32 a warp.
    ///
    /// Hopper's warpgroups have 64 rows each and all columns. The largest tile reads least; the others are for matrices that
    /// leave a part of the GPU idle with it. A stage is 64 columns deep, a panel of 128 bytes a row.
    ///
    /// Losers, on an H200 (`docs/tuning.md`): multistage 128x256x64 and 128x128x64, each with three stages; Hopper's
    /// 256x128x64 x4, 192x192x64 x4, 192x128x64 x4, 128x128x64 x4, 128x64x64 x8, 64x256x64 x4.
    const fn new(kind: GemmKind, [rows, columns, depth, stages]: [u32; 4]) -> Self {
        let ([warps_down, warps_across], blocks_per_sm) = match kind {
            GemmKind::Simple => ([2, 4], 2),
            GemmKind::Multistage if rows * columns < 128 * 128 => ([rows / 32, columns / 32], 3),
            GemmKind::Multistage => ([rows / 64, columns / 64], 8 * 64 * 64 / (rows * columns)),
            GemmKind::Hopper => ([rows / 16, 1], 1),
        };
        GemmTile {
            rows,
            columns,
            depth,
            warps_down,
            warps_across,
            stages,
            blocks_per_sm,
        }
    }
}
