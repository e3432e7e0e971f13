//! Matrix products, and how their blocks divide the work.

use super::{Accumulation, Dtype, Family, Instance, Kernel, Launch, Spec, Target};
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

/// A block's tile of C, and its steps along k.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GemmTile {
    /// Rows of C (BM).
    pub rows: u32,
    /// Columns of C (BN).
    pub columns: u32,
    /// Elements of k that a step takes (BK), a multiple of 16.
    pub depth: u32,
    /// Tiles of A and B in shared memory, one or two worked on and the others on their way; 0 in a kernel
    /// without shared memory.
    pub stages: u32,
}

/// Tiles.
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
#[rustfmt::skip]
const TILES: [(GemmKind, &[GemmTile]); 3] = [
    (GemmKind::Simple, &[tile(128, 128, 16, 0)]),
    (GemmKind::Multistage, &[
        tile(256, 128, 64, 3), tile(256, 128, 32, 4), tile(256, 128, 32, 3),
        tile(128, 256, 32, 4), tile(128, 256, 32, 3),
        tile(128, 128, 32, 3), tile(128, 128, 32, 4), tile(128, 128, 32, 5),
        tile(64, 64, 64, 4),
    ]),
    (GemmKind::Hopper, &[tile(128, 256, 64, 4), tile(128, 192, 64, 4), tile(64, 128, 64, 8)]),
];

const fn tile(rows: u32, columns: u32, depth: u32, stages: u32) -> GemmTile {
    GemmTile {
        rows,
        columns,
        depth,
        stages,
    }
}

pub(super) fn all() -> impl Iterator<Item = Kernel> {
    let tiles = TILES.into_iter();
    let tiles = tiles.flat_map(|(kind, tiles)| tiles.iter().map(move |tile| (kind, *tile)));
    tiles.flat_map(|(kind, tile)| {
        let half = (kind != GemmKind::Hopper).then_some((Dtype::F16, Accumulation::Half));
        let single = Dtype::ALL.map(|dtype| (dtype, Accumulation::Single));
        let types = single.into_iter().chain(half);
        let gemm = move |(dtype, accumulation)| Gemm {
            kind,
            dtype,
            accumulation,
            tile,
        };
        types.map(gemm).map(Gemm::kernel)
    })
}

impl Gemm {
    /// The kernel. Shared memory: the tiles of A and B of each stage; later C, or on Hopper two barriers a stage.
    fn kernel(self) -> Kernel {
        let (tile, s) = (self.tile, self.tile.stages);
        let (rows, columns, depth) = (tile.rows, tile.columns, tile.depth);
        let ring = s * (rows + columns) * depth * BYTES;
        let sums = format!("{:?}", self.accumulation);
        let types = format!("{}_{}", self.dtype.name(), self.accumulation.name());
        let size = format!("{types}_{rows}x{columns}x{depth}x{s}");
        // Warps below each other and beside each other, each with a multiple of 16 rows and columns.
        let ([wm, wn], blocks) = match self.kind {
            // Nothing but other warps hides the latency of a load: many, of few registers.
            GemmKind::Simple => ([2, 4], 2),
            GemmKind::Multistage if rows * columns < 128 * 128 => ([rows / 32, columns / 32], 3),
            GemmKind::Multistage => ([rows / 64, columns / 64], 8 * 64 * 64 / (rows * columns)),
            GemmKind::Hopper => ([rows / 16, 1], 1),
        };
        let [mt, nt, kt] = [rows / wm / 16, columns / wn / 16, depth / K];
        let (name, producers, shared_bytes, generic) = match self.kind {
            GemmKind::Simple => {
                let generic = generic! { simple: WM = wm, WN = wn, MT = mt, NT = nt };
                (format!("gemm_simple_{types}"), 0, 0, generic)
            }
            GemmKind::Multistage => {
                let generic =
                    generic! { multistage: WM = wm, WN = wn, MT = mt, NT = nt, KT = kt, S = s };
                let bytes = ring.max(rows * columns * BYTES);
                (format!("gemm_{size}"), 0, bytes, generic)
            }
            // A launch gives each of 256 threads 256 registers, and each of 384 threads 168.
            GemmKind::Hopper => {
                let taken = if rows == 64 { 256 } else { 232 };
                let generic =
                    generic! { hopper: W = wm / 4, NT = nt, S = s, GIVEN = 40, TAKEN = taken };
                (format!("gemm_hopper_{size}"), 4, ring + s * 16, generic)
            }
        };
        let (target, params, types) = match self.kind {
            GemmKind::Hopper => (Target::SM90A, "HopperGemmParams, maps", vec![]),
            _ => (Target::SM80, "GemmParams", vec![&*sums]),
        };
        let launch = Launch::new(wm * wn + producers, blocks, shared_bytes);
        let instance = Instance::new((params, "gemm"), self.dtype, &types, generic);
        let spec = Spec::new(name, target, launch, instance);
        let family = Family::Gemm(self);
        Kernel { family, spec }
    }
}
