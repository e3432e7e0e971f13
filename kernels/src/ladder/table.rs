//! The compiled kernels of the ladder, and which one computes what.

use super::options::{Rung, TeamsMemory, pitch};
use crate::abi::LadderParams;
use crate::catalog::{Accumulation, Arch, Dtype, Family, Kernel, MAX_HEAD_DIM, Tile};

/// What a kernel of the ladder is an instance of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// The main loop.
    pub main_loop: Loop,
    /// What products are summed in.
    pub acc: Accumulation,
    /// 16-row tiles of a warp.
    pub m_tiles: u32,
    /// 16-wide slices of a key block that a warp computes scores of.
    pub n_tiles: u32,
    /// 16-wide slices of O's columns that a warp has.
    pub o_tiles: u32,
    /// Warps that share query rows.
    pub team: u32,
}

/// The main loops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Loop {
    /// `naive`.
    Naive,
    /// `fa1`.
    Fa1,
    /// `split-q` and `shared-kv`.
    Rows,
    /// `shared-qkv`.
    RowsInRegisters,
    /// `split-kv`, `tiled-qk` and `tiled-qkv`.
    Teams,
}

/// Where Q is in the main loop of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Q {
    /// In shared memory.
    Shared,
    /// In registers.
    Registers,
}

/// Query rows of a block of the naive kernels, a thread each.
pub const NAIVE_ROWS: u32 = 128;

impl Shape {
    /// Of `naive`.
    #[must_use]
    pub const fn naive() -> Self {
        Shape {
            main_loop: Loop::Naive,
            acc: Accumulation::Single,
            m_tiles: 0,
            n_tiles: 0,
            o_tiles: 0,
            team: 1,
        }
    }

    /// Of `fa1`.
    #[must_use]
    pub const fn fa1(dim: u32) -> Self {
        Shape {
            main_loop: Loop::Fa1,
            m_tiles: 1,
            n_tiles: if dim <= 128 { 2 } else { 1 },
            o_tiles: dim / 16,
            ..Self::naive()
        }
    }

    /// Of the main loop of rows. Two 16-row tiles a warp, so that every fragment of K and V feeds two
    /// products, as long as O, S and Q leave registers for it.
    #[must_use]
    pub const fn rows(acc: Accumulation, dim: u32, q: Q) -> Self {
        let (m_tiles, n_tiles) = match (dim, q) {
            (32 | 64, _) => (2, 4),
            (96 | 128, Q::Shared) => (2, 2),
            (96 | 128, Q::Registers) => (1, 4),
            (_, Q::Shared) => (1, 2),
            (_, Q::Registers) => (1, 1),
        };
        Shape {
            main_loop: match q {
                Q::Shared => Loop::Rows,
                Q::Registers => Loop::RowsInRegisters,
            },
            acc,
            m_tiles,
            n_tiles,
            o_tiles: dim / 16,
            team: 1,
        }
    }

    /// Of the main loop of teams: 32 rows for each team, or 64 where O takes few registers, which leaves
    /// one team to a block; 32 keys for each warp, or 64 for one alone with few columns of O.
    #[must_use]
    pub const fn teams(acc: Accumulation, team: u32, o_tiles: u32) -> Self {
        Shape {
            main_loop: Loop::Teams,
            acc,
            m_tiles: if team == 4 && o_tiles <= 2 { 4 } else { 2 },
            n_tiles: if team == 1 && o_tiles <= 4 { 4 } else { 2 },
            o_tiles,
            team,
        }
    }

    const fn warps(self) -> u32 {
        if self.team == 1 || self.m_tiles == 4 {
            4
        } else {
            8
        }
    }

    /// How it divides the work.
    #[must_use]
    pub const fn tile(self) -> Tile {
        let warps = self.warps();
        let (q_rows, keys, q_slices) = match self.main_loop {
            Loop::Naive => (NAIVE_ROWS, 32, 0),
            _ => (
                16 * self.m_tiles * (warps / self.team),
                16 * self.n_tiles * self.team,
                match self.main_loop {
                    Loop::RowsInRegisters => self.o_tiles,
                    _ => 0,
                },
            ),
        };
        Tile {
            q_rows,
            keys,
            warps,
            team: self.team,
            stages: 1,
            v_slices: 1,
            q_slices,
            blocks_per_sm: if warps == 4 { 2 } else { 1 },
        }
    }

    /// Shared memory of a block, in bytes.
    #[must_use]
    pub const fn shared_bytes(self, p: &LadderParams, dim: u32) -> u32 {
        let (tile, columns) = (self.tile(), 16 * self.o_tiles * self.team);
        let tiles = match self.main_loop {
            Loop::Naive => return 0,
            Loop::Fa1 => return tile.shared_bytes(columns),
            Loop::Rows | Loop::RowsInRegisters => {
                let q = tile.q_rows * pitch(p, columns);
                let ring = p.buffers * tile.keys * pitch(p, columns);
                match self.main_loop {
                    Loop::Rows => q + ring,
                    _ if q > ring => q,
                    _ => ring,
                }
            }
            Loop::Teams => {
                let sizes = [tile.q_rows, tile.keys, columns, self.team];
                let memory = TeamsMemory::new(p, dim, sizes);
                memory.ring + p.buffers * memory.buffer
            }
        };
        // On its way out, O takes their place.
        let o = tile.q_rows * columns.next_multiple_of(64) * 2;
        if tiles > o { tiles } else { o }
    }

    /// The largest head dim.
    #[must_use]
    pub const fn head_dim(self) -> u32 {
        match self.main_loop {
            Loop::Naive => MAX_HEAD_DIM,
            _ => 16 * self.o_tiles * self.team,
        }
    }
}

/// Calls `$with!` with every kernel: name and element type; head dim; where Q is; or the warps of a team and
/// the slices of O of each.
macro_rules! all_ladder_kernels {
    ($with:ident) => {
        $with! {
            naive {
                naive_f16 => F16;
                naive_bf16 => Bf16;
            }
            fa1 {
                fa1_f16_d64 => F16, 64;
                fa1_f16_d128 => F16, 128;
                fa1_f16_d256 => F16, 256;
                fa1_bf16_d64 => Bf16, 64;
                fa1_bf16_d128 => Bf16, 128;
                fa1_bf16_d256 => Bf16, 256;
            }
            rows {
                split_q_f16_d32 => F16, Single, 32, Shared;
                split_q_f16_d64 => F16, Single, 64, Shared;
                split_q_f16_d96 => F16, Single, 96, Shared;
                split_q_f16_d128 => F16, Single, 128, Shared;
                split_q_f16_d256 => F16, Single, 256, Shared;
                shared_qkv_f16_d32 => F16, Single, 32, Registers;
                shared_qkv_f16_d64 => F16, Single, 64, Registers;
                shared_qkv_f16_d96 => F16, Single, 96, Registers;
                shared_qkv_f16_d128 => F16, Single, 128, Registers;
                shared_qkv_f16_d256 => F16, Single, 256, Registers;
                split_q_f16acc_d32 => F16, Half, 32, Shared;
                split_q_f16acc_d64 => F16, Half, 64, Shared;
                split_q_f16acc_d96 => F16, Half, 96, Shared;
                split_q_f16acc_d128 => F16, Half, 128, Shared;
                split_q_f16acc_d256 => F16, Half, 256, Shared;
                shared_qkv_f16acc_d32 => F16, Half, 32, Registers;
                shared_qkv_f16acc_d64 => F16, Half, 64, Registers;
                shared_qkv_f16acc_d96 => F16, Half, 96, Registers;
                shared_qkv_f16acc_d128 => F16, Half, 128, Registers;
                shared_qkv_f16acc_d256 => F16, Half, 256, Registers;
                split_q_bf16_d32 => Bf16, Single, 32, Shared;
                split_q_bf16_d64 => Bf16, Single, 64, Shared;
                split_q_bf16_d96 => Bf16, Single, 96, Shared;
                split_q_bf16_d128 => Bf16, Single, 128, Shared;
                split_q_bf16_d256 => Bf16, Single, 256, Shared;
                shared_qkv_bf16_d32 => Bf16, Single, 32, Registers;
                shared_qkv_bf16_d64 => Bf16, Single, 64, Registers;
                shared_qkv_bf16_d96 => Bf16, Single, 96, Registers;
                shared_qkv_bf16_d128 => Bf16, Single, 128, Registers;
                shared_qkv_bf16_d256 => Bf16, Single, 256, Registers;
            }
            teams {
                teams_f16_t1_o4 => F16, Single, 1, 4;
                teams_f16_t1_o8 => F16, Single, 1, 8;
                teams_f16_t2_o8 => F16, Single, 2, 8;
                teams_f16_t4_o1 => F16, Single, 4, 1;
                teams_f16_t4_o2 => F16, Single, 4, 2;
                teams_f16_t4_o4 => F16, Single, 4, 4;
                teams_f16_t4_o6 => F16, Single, 4, 6;
                teams_f16_t4_o8 => F16, Single, 4, 8;
                teams_f16_t8_o6 => F16, Single, 8, 6;
                teams_f16_t8_o8 => F16, Single, 8, 8;
                teams_f16acc_t1_o4 => F16, Half, 1, 4;
                teams_f16acc_t1_o8 => F16, Half, 1, 8;
                teams_f16acc_t2_o8 => F16, Half, 2, 8;
                teams_f16acc_t4_o1 => F16, Half, 4, 1;
                teams_f16acc_t4_o2 => F16, Half, 4, 2;
                teams_f16acc_t4_o4 => F16, Half, 4, 4;
                teams_f16acc_t4_o6 => F16, Half, 4, 6;
                teams_f16acc_t4_o8 => F16, Half, 4, 8;
                teams_f16acc_t8_o6 => F16, Half, 8, 6;
                teams_f16acc_t8_o8 => F16, Half, 8, 8;
                teams_bf16_t1_o4 => Bf16, Single, 1, 4;
                teams_bf16_t1_o8 => Bf16, Single, 1, 8;
                teams_bf16_t2_o8 => Bf16, Single, 2, 8;
                teams_bf16_t4_o1 => Bf16, Single, 4, 1;
                teams_bf16_t4_o2 => Bf16, Single, 4, 2;
                teams_bf16_t4_o4 => Bf16, Single, 4, 4;
                teams_bf16_t4_o6 => Bf16, Single, 4, 6;
                teams_bf16_t4_o8 => Bf16, Single, 4, 8;
                teams_bf16_t8_o6 => Bf16, Single, 8, 6;
                teams_bf16_t8_o8 => Bf16, Single, 8, 8;
            }
        }
    };
}
#[cfg(target_arch = "nvptx64")]
pub(crate) use all_ladder_kernels;

const fn kernel(name: &'static str, dtype: Dtype, shape: Shape) -> Kernel {
    Kernel {
        name,
        arch: Arch::Sm80,
        family: Family::Ladder(shape),
        dtype,
        head_dim: shape.head_dim(),
        tile: shape.tile(),
    }
}

macro_rules! rows {
    (
        naive { $($naive:ident => $naive_element:ident;)* }
        fa1 { $($fa1:ident => $fa1_element:ident, $fa1_dim:literal;)* }
        rows { $($rows:ident => $rows_element:ident, $rows_sums:ident, $rows_dim:literal, $q:ident;)* }
        teams { $($teams:ident => $teams_element:ident, $teams_sums:ident, $team:literal, $o_tiles:literal;)* }
    ) => {
        &[
            $(kernel(stringify!($naive), Dtype::$naive_element, Shape::naive()),)*
            $(kernel(stringify!($fa1), Dtype::$fa1_element, Shape::fa1($fa1_dim)),)*
            $(kernel(
                stringify!($rows),
                Dtype::$rows_element,
                Shape::rows(Accumulation::$rows_sums, $rows_dim, Q::$q),
            ),)*
            $(kernel(
                stringify!($teams),
                Dtype::$teams_element,
                Shape::teams(Accumulation::$teams_sums, $team, $o_tiles),
            ),)*
        ]
    };
}

/// What a launch of a kernel of the ladder needs at least.
pub const LEAST: LadderParams = LadderParams {
    buffers: 1,
    swizzled: 0,
    padding: 0,
    o_store: 0,
    windows: 1,
    v_keys: 32,
    apart: 0,
    pass: 0,
};

/// Stages of a rung, and the launches that have them, the better one first if there are two, of the kernel
/// for a dtype, accumulator and head dim; `None` if there is no such kernel.
#[must_use]
pub fn variants(
    rung: Rung,
    dtype: Dtype,
    acc: Accumulation,
    dim: u32,
    stages: u32,
) -> Option<(&'static Kernel, [Option<LadderParams>; 2])> {
    let main_loop = match rung {
        Rung::Naive => Loop::Naive,
        Rung::Fa1 => Loop::Fa1,
        Rung::SplitQ | Rung::SharedKv => Loop::Rows,
        Rung::SharedQkv => Loop::RowsInRegisters,
        Rung::SplitKv | Rung::TiledQk | Rung::TiledQkv => Loop::Teams,
    };
    let serves = |kernel: &&Kernel| {
        let Family::Ladder(shape) = kernel.family else {
            return false;
        };
        // Warps that split the keys are four; tiles have as few warps a team as hold O.
        let team = match rung {
            Rung::SplitKv => shape.team == 4 && shape.o_tiles <= 4,
            _ => shape.team != 4 || shape.o_tiles > 4,
        };
        (shape.main_loop, kernel.dtype, shape.acc) == (main_loop, dtype, acc)
            && dim <= kernel.head_dim.min(rung.max_dim())
            && team
    };
    let kernel = KERNELS.iter().filter(serves).min_by_key(|k| k.head_dim)?;
    let keys = kernel.tile.keys;
    let one = |params| [Some(params), None];
    let ring = |buffers| LadderParams { buffers, ..LEAST };
    let params = match rung {
        Rung::Naive | Rung::Fa1 => one(LEAST),
        Rung::SplitQ => one(ring(2 * stages)),
        Rung::SharedKv | Rung::SharedQkv | Rung::TiledQkv => one(ring(stages)),
        // K and V whole where they fit, else in slices.
        Rung::SplitKv => {
            let whole = LadderParams {
                windows: dim.div_ceil(64),
                v_keys: keys,
                apart: 0b001,
                ..ring(2 * stages)
            };
            let sliced = LadderParams {
                windows: 1,
                v_keys: 32,
                ..whole
            };
            [Some(whole), Some(sliced)]
        }
        // V whole where it fits, else 64 keys of it.
        Rung::TiledQk => [
            Some(LadderParams {
                v_keys: keys,
                apart: 0b100,
                ..ring(stages)
            }),
            (keys > 64).then_some(LadderParams {
                v_keys: 64,
                ..ring(stages)
            }),
        ],
    };
    Some((kernel, params))
}

/// Every kernel of the ladder.
pub const KERNELS: &[Kernel] = all_ladder_kernels!(rows);
