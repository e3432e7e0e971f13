//! The compiled kernels of the ladder, and which one computes what.

use super::options::{NAIVE_ROWS, Rung, TeamsMemory, pitch};
use crate::abi::LadderParams;
use crate::catalog::collectives::{BARRIER, Collectives, Parts};
use crate::catalog::{Accumulation, Dtype, Family, Forward, Kernel, Kind, MAX_HEAD_DIM, Tile};
use std::sync::LazyLock;

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

impl Shape {
    /// Of `naive`.
    #[must_use]
    pub fn naive() -> Self {
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
    pub fn fa1(dim: u32) -> Self {
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
    pub fn rows(acc: Accumulation, dim: u32, q: Q) -> Self {
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
    pub fn teams(acc: Accumulation, team: u32, o_tiles: u32) -> Self {
        Shape {
            main_loop: Loop::Teams,
            acc,
            m_tiles: if team == 4 && o_tiles <= 2 { 4 } else { 2 },
            n_tiles: if team == 1 && o_tiles <= 4 { 4 } else { 2 },
            o_tiles,
            team,
        }
    }

    fn warps(self) -> u32 {
        if self.team == 1 || self.m_tiles == 4 {
            4
        } else {
            8
        }
    }

    /// How it divides the work.
    #[must_use]
    pub fn tile(self) -> Tile {
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
    pub fn shared_bytes(self, p: &LadderParams, dim: u32) -> u32 {
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
    pub fn head_dim(self) -> u32 {
        match self.main_loop {
            Loop::Naive => MAX_HEAD_DIM,
            _ => 16 * self.o_tiles * self.team,
        }
    }

    /// The kernel's name.
    #[must_use]
    pub fn name(self, dtype: Dtype) -> String {
        let types = match self.acc {
            Accumulation::Single => dtype.name().to_owned(),
            Accumulation::Half => format!("{}acc", dtype.name()),
        };
        let dim = self.head_dim();
        match self.main_loop {
            Loop::Naive => format!("naive_{types}"),
            Loop::Fa1 => format!("fa1_{types}_d{dim}"),
            Loop::Rows => format!("split_q_{types}_d{dim}"),
            Loop::RowsInRegisters => format!("shared_qkv_{types}_d{dim}"),
            Loop::Teams => format!("teams_{types}_t{}_o{}", self.team, self.o_tiles),
        }
    }

    /// What the kernel's entry point calls.
    pub(crate) fn instance(self, element: Dtype) -> String {
        let Shape {
            acc,
            m_tiles,
            n_tiles,
            o_tiles,
            team,
            ..
        } = self;
        let (warps, q_slices) = (self.warps(), self.tile().q_slices);
        let kernel = match self.main_loop {
            Loop::Naive => format!("naive::naive::<{element:?}>"),
            Loop::Fa1 => format!("fa1::fa1::<{element:?}, {warps}, {o_tiles}, {n_tiles}>"),
            Loop::Rows | Loop::RowsInRegisters => format!(
                "rows::rows::<{element:?}, {acc:?}, {warps}, {m_tiles}, {o_tiles}, {n_tiles}, {q_slices}>"
            ),
            Loop::Teams => format!(
                "teams::teams::<{element:?}, {acc:?}, {warps}, {team}, {m_tiles}, {n_tiles}, {}, {o_tiles}>",
                n_tiles * team
            ),
        };
        format!("(ForwardParams) = ladder::{kernel}")
    }

    /// How often each instruction of a whole warp stands in the kernel.
    pub(crate) fn collectives(self, parts: &Parts) -> Collectives {
        match self.main_loop {
            Loop::Naive => Collectives::NONE,
            Loop::Fa1 => fa1(parts),
            Loop::Rows | Loop::RowsInRegisters => rows(parts, self),
            Loop::Teams => teams(parts),
        }
    }
}

/// Copies of K, V and Q, and a masked step of the causal code whether causal or not.
fn fa1(parts: &Parts) -> Collectives {
    let copies = parts.copies(2 * parts.tile.keys);
    let step = parts.scores() + parts.maxima() + parts.product_masked_by_slices();
    copies + parts.around() + step + BARRIER
}

/// Before the first step a copy, and another for each wait in the loops, two a step: masked steps, of the
/// causal code whether causal or not, and others, where kernels that sum in f16 follow every maximum.
fn rows(parts: &Parts, shape: Shape) -> Collectives {
    let copy = parts.copies(parts.tile.keys);
    let wait = BARRIER + BARRIER + copy;
    let step = wait + wait + parts.scores();
    let masked = step + parts.maxima() + parts.product_masked_by_slices();
    let softmax = match shape.acc {
        Accumulation::Single => parts.softmax(),
        Accumulation::Half => parts.maxima(),
    };
    let unmasked = step + softmax + parts.product();
    copy + parts.around() + BARRIER + masked + unmasked + o_store(parts.mt * parts.dt)
}

/// A wait for a slice of K, then for one of V; between, and at the end, what a team exchanges; P is read
/// from shared memory. Copies are loops over counts that the launch says.
fn teams(parts: &Parts) -> Collectives {
    const WINDOW: u32 = 4;
    const KEYS: u32 = 2;
    let (mt, nt, ot) = (parts.mt, parts.nt, parts.ot);
    let waits = BARRIER + BARRIER + BARRIER + BARRIER;
    let exchanges = match parts.tile.team {
        1 => Collectives::NONE,
        _ => BARRIER + BARRIER,
    };
    let scores = Collectives {
        mma: 2 * mt * nt * WINDOW,
        ldmatrix: (mt + nt) * WINDOW,
        ..Collectives::NONE
    };
    let product = Collectives {
        mma: 2 * mt * KEYS * ot,
        ldmatrix: KEYS * (mt + ot),
        ..Collectives::NONE
    };
    let look = Collectives {
        ldmatrix: KEYS * ot,
        redux: 1,
        ..Collectives::NONE
    };
    let softmax = parts.maxima() + parts.maxima();
    let products = scores + product + look + parts.guarded();
    waits + exchanges + softmax + products + o_store(mt * ot)
}

/// O by shuffles, four for each 16x16 tile, or by way of shared memory.
fn o_store(tiles: u32) -> Collectives {
    let shuffles = Collectives {
        shfl: 4 * tiles,
        ..Collectives::NONE
    };
    shuffles + BARRIER + BARRIER
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
        let Family::Forward(Forward {
            kind: Kind::Ladder(shape),
            dtype: element,
            dim: most,
            ..
        }) = kernel.family
        else {
            return false;
        };
        // Warps that split the keys are four; tiles have as few warps a team as hold O.
        let team = match rung {
            Rung::SplitKv => shape.team == 4 && shape.o_tiles <= 4,
            _ => shape.team != 4 || shape.o_tiles > 4,
        };
        (shape.main_loop, element, shape.acc) == (main_loop, dtype, acc)
            && dim <= most.min(rung.max_dim())
            && team
    };
    let kernel = KERNELS
        .iter()
        .filter(serves)
        .min_by_key(|k| k.forward().map(|forward| forward.dim))?;
    let keys = kernel.forward()?.tile.keys;
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
pub static KERNELS: LazyLock<Vec<Kernel>> = LazyLock::new(|| {
    let types = [
        (Dtype::F16, Accumulation::Single),
        (Dtype::F16, Accumulation::Half),
        (Dtype::Bf16, Accumulation::Single),
    ];
    let shapes = |acc| {
        let rows = [32, 64, 96, 128, 256];
        let rows = [Q::Shared, Q::Registers].map(|q| rows.map(|dim| Shape::rows(acc, dim, q)));
        let teams = TEAMS.map(|(team, o_tiles)| Shape::teams(acc, team, o_tiles));
        rows.concat().into_iter().chain(teams)
    };
    let whole = [64, 128, 256].map(Shape::fa1);
    let whole = [Shape::naive()].into_iter().chain(whole);
    let whole = Dtype::ALL
        .into_iter()
        .flat_map(|dtype| whole.clone().map(move |shape| (dtype, shape)));
    let tiled = types
        .into_iter()
        .flat_map(|(dtype, acc)| shapes(acc).map(move |shape| (dtype, shape)));
    whole
        .chain(tiled)
        .map(|(dtype, shape)| {
            Kernel::new(Family::Forward(Forward {
                kind: Kind::Ladder(shape),
                dtype,
                dim: shape.head_dim(),
                tile: shape.tile(),
            }))
        })
        .collect()
});

/// Warps of a team, and slices of O of each.
const TEAMS: [(u32, u32); 10] = [
    (1, 4),
    (1, 8),
    (2, 8),
    (4, 1),
    (4, 2),
    (4, 4),
    (4, 6),
    (4, 8),
    (8, 6),
    (8, 8),
];

/// Bytes that these kernels may spill: what they are told at run time, and the look for infinities in V
/// under any mask, take registers. Teams that compute the addresses of their copies again for each spill
/// next to nothing, and are a tenth slower.
pub const MOST_SPILLS: u32 = 160;
