//! How the blocks of a matrix product divide the work.

use crate::catalog::Tile;

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
    /// That of the simple kernels: many warps of few registers, since nothing but other warps hides
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

    /// That of a multistage kernel: eight warps on a multiprocessor, each with 64x64 elements of C,
    /// for which it reads least from shared memory; or with 32x32, for matrices that leave few tiles.
    ///
    /// A step of 16 along k takes a warp 32 products of 6 cycles of its scheduler's tensor core, with
    /// two warps 384 cycles. Shared memory is read for 256 of these (8 warps, 64 + 64 rows of 32
    /// bytes, 128 bytes a cycle), and written for 128 by two blocks of 128x128, for 96 by one of
    /// 256x128.
    ///
    /// Losers, on an H200 (`docs/tuning.md`): 128x256x64 and 128x128x64, each with three stages.
    #[must_use]
    pub const fn multistage(rows: u32, columns: u32, depth: u32, stages: u32) -> Self {
        let side = if rows * columns < 128 * 128 { 32 } else { 64 };
        let (warps_down, warps_across) = (rows / side, columns / side);
        GemmTile {
            rows,
            columns,
            depth,
            warps_down,
            warps_across,
            stages,
            blocks_per_sm: if side == 32 {
                3
            } else {
                8 / (warps_down * warps_across)
            },
        }
    }

    /// Shared memory of a block, in bytes: the tiles of A and B of each stage, later C.
    #[must_use]
    pub const fn shared_bytes(&self) -> u32 {
        let stages = self.stages * (self.rows + self.columns) * self.depth * 2;
        let c = self.rows * self.columns * 2;
        match self.stages {
            0 => 0,
            _ if c > stages => c,
            _ => stages,
        }
    }

    /// In the terms of the table.
    #[must_use]
    pub const fn block(&self) -> Tile {
        Tile {
            q_rows: self.rows,
            keys: self.columns,
            warps: self.warps_down * self.warps_across,
            team: 1,
            stages: self.stages,
            v_slices: 1,
            q_slices: 0,
            blocks_per_sm: self.blocks_per_sm,
        }
    }
}
