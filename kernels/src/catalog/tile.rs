//! Tiles of attention kernels, and tables of them.

use crate::layout::element::BYTES;

/// How a block divides the work, in the terms of the FlashAttention papers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tile {
    /// Query rows of a block (Br), a multiple of `16 * warps / team`.
    pub q_rows: u32,
    /// Keys of one step of the main loop (Bc), a multiple of 16.
    pub keys: u32,
    /// Warps of a block; each has `q_rows * team / warps` rows.
    pub warps: u32,
    /// Warps that share rows, each with a part of the keys and of O's columns; 1 where each has its own. In Hopper
    /// kernels blocks that share rows, each with a part of O's columns.
    pub team: u32,
    /// K/V buffers in shared memory: 2, in decode kernels 2 or more, and 1 where warps share rows. The
    /// next blocks load while one is worked on.
    pub stages: u32,
    /// Slices of the keys in which V of a step passes: 1 where it passes whole.
    pub v_slices: u32,
    /// Slices of 16 elements of the head dim whose Q fragments stay in registers; the others are read
    /// from shared memory for every block.
    pub q_slices: u32,
    /// Blocks that should fit on one multiprocessor: bounds the registers (`.minnctapersm`).
    pub blocks_per_sm: u32,
}

impl Tile {
    /// A tile of one block on a multiprocessor, whose warps have rows of their own and read Q from shared memory.
    pub const fn new(q_rows: u32, keys: u32, warps: u32, stages: u32) -> Self {
        Tile {
            q_rows,
            keys,
            warps,
            team: 1,
            stages,
            v_slices: 1,
            q_slices: 0,
            blocks_per_sm: 1,
        }
    }

    /// Shared memory of a block, in bytes: the Q tile, and K and V for each stage; where warps share rows
    /// also P, and four numbers for each row and warp of a team.
    pub const fn shared_bytes(&self, dim: u32) -> u32 {
        let tiles = (self.q_rows + self.stages * 2 * self.keys) * dim * BYTES;
        match self.team {
            1 => tiles,
            team => tiles + self.q_rows * (BYTES * self.keys + 16 * team),
        }
    }
}

/// Head dims, ascending, each with its tile.
pub type Tiles<T = Tile> = &'static [(u32, T)];

/// The tile of a head dim: of the first of these tables that has one.
pub fn of_dim<T: Copy>(dim: u32, tables: &[Tiles<T>]) -> Option<T> {
    let mut rows = tables.iter().copied().flatten();
    rows.find(|(of, _)| *of == dim).map(|(_, tile)| *tile)
}
