//! The compiled kernels of the ladder, and which one computes what.

use crate::options::{HopperMemory, NAIVE_ROWS, Rung, TeamsMemory, pitch};
use crate::params::Options;
use crate::timeline::TIMELINES;
use kernels::catalog::{
    Accumulation, Code, Dtype, Instance, Launch, MAX_HEAD_DIM, Spec, Target, Tile,
};
use kernels::generic;
use std::sync::LazyLock;

impl Rung {
    /// PTX target of its kernels.
    #[must_use]
    pub fn target(self) -> Target {
        match self.is_for_hopper() {
            true => Target::SM90A,
            false => Target::SM80,
        }
    }
}

/// The axes of a kernel of the ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// The main loop.
    pub main_loop: Loop,
    /// Element type of q, k, v and o.
    pub dtype: Dtype,
    /// The type that products are summed in.
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
    /// One of the rungs for Hopper.
    Hopper(Rung),
}

/// Where Q is in the main loop of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Q {
    Shared,
    Registers,
}

impl Shape {
    fn naive(dtype: Dtype) -> Self {
        Shape {
            main_loop: Loop::Naive,
            dtype,
            acc: Accumulation::Single,
            m_tiles: 0,
            n_tiles: 0,
            o_tiles: 0,
            team: 1,
        }
    }

    fn fa1(dtype: Dtype, dim: u32) -> Self {
        Shape {
            main_loop: Loop::Fa1,
            m_tiles: 1,
            n_tiles: if dim <= 128 { 2 } else { 1 },
            o_tiles: dim / 16,
            ..Self::naive(dtype)
        }
    }

    /// Two 16-row tiles a warp, so that every fragment of K and V feeds two products, as long as O, S and Q
    /// leave registers for it.
    fn rows((dtype, acc): (Dtype, Accumulation), dim: u32, q: Q) -> Self {
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
            ..Self::naive(dtype)
        }
    }

    /// 32 rows for each team, or 64 where O takes few registers and a block has one team; 32 keys for each
    /// warp, or 64 for a warp alone with few columns of O.
    fn teams((dtype, acc): (Dtype, Accumulation), (team, o_tiles): (u32, u32)) -> Self {
        Shape {
            main_loop: Loop::Teams,
            acc,
            m_tiles: if team == 4 && o_tiles <= 2 { 4 } else { 2 },
            n_tiles: if team == 1 && o_tiles <= 4 { 4 } else { 2 },
            o_tiles,
            team,
            ..Self::naive(dtype)
        }
    }

    /// Two warpgroups of 64 rows. At D = 64 two blocks share a multiprocessor.
    fn hopper(rung: Rung, dtype: Dtype, dim: u32) -> Self {
        Shape {
            main_loop: Loop::Hopper(rung),
            m_tiles: 1,
            n_tiles: if dim == 128 { 8 } else { 4 },
            o_tiles: dim / 16,
            ..Self::naive(dtype)
        }
    }

    /// How a block divides the work.
    #[must_use]
    pub fn tile(&self) -> Tile {
        let warps = match self.main_loop {
            Loop::Hopper(Rung::Wgmma | Rung::Tma) => 4 * Self::WARPGROUPS,
            Loop::Hopper(_) => 4 * (Self::WARPGROUPS + 1),
            _ if self.team == 1 || self.m_tiles == 4 => 4,
            _ => 8,
        };
        let (q_rows, keys) = match self.main_loop {
            Loop::Naive => (NAIVE_ROWS, 32),
            Loop::Hopper(_) => (64 * Self::WARPGROUPS, 16 * self.n_tiles),
            _ => (
                16 * self.m_tiles * (warps / self.team),
                16 * self.n_tiles * self.team,
            ),
        };
        Tile {
            q_rows,
            keys,
            warps,
            team: self.team,
            stages: if self.is_hopper() { 4 } else { 1 },
            v_slices: 1,
            q_slices: match self.main_loop {
                Loop::RowsInRegisters => self.o_tiles,
                _ => 0,
            },
            blocks_per_sm: match self.is_hopper() {
                true if self.o_tiles <= 4 => 2,
                false if warps == 4 => 2,
                _ => 1,
            },
        }
    }

    /// Shared memory of a block with these options, in bytes.
    #[must_use]
    pub fn shared_bytes_with(&self, options: &Options, dim: u32) -> u32 {
        let (tile, columns) = (self.tile(), 16 * self.o_tiles * self.team);
        let tiles = match self.main_loop {
            Loop::Naive => return 0,
            Loop::Hopper(_) => {
                let sizes = [tile.keys, columns];
                return HopperMemory::new(0, Self::WARPGROUPS, sizes, tile.stages).bytes();
            }
            Loop::Fa1 => return tile.shared_bytes(columns),
            Loop::Rows | Loop::RowsInRegisters => {
                let q = tile.q_rows * pitch(options, columns);
                let ring = options.buffers * tile.keys * pitch(options, columns);
                match self.main_loop {
                    Loop::Rows => q + ring,
                    _ => q.max(ring),
                }
            }
            Loop::Teams => {
                let sizes = [tile.q_rows, tile.keys, columns, self.team];
                let memory = TeamsMemory::new(options, dim, sizes);
                memory.ring + options.buffers * memory.buffer
            }
        };
        // On its way out, O takes their place.
        tiles.max(tile.q_rows * columns.next_multiple_of(64) * 2)
    }

    /// Warpgroups that multiply, in the rungs for Hopper.
    const WARPGROUPS: u32 = 2;

    /// Whether it is a rung for Hopper.
    fn is_hopper(&self) -> bool {
        matches!(self.main_loop, Loop::Hopper(_))
    }

    /// Registers of a thread that loads and of one that multiplies: together no more than a launch gives.
    fn registers(&self) -> [u32; 2] {
        match self.tile().blocks_per_sm {
            2 => [24, 104],
            _ => [40, 232],
        }
    }

    /// The largest head dim.
    #[must_use]
    pub fn dim(&self) -> u32 {
        match self.main_loop {
            Loop::Naive => MAX_HEAD_DIM,
            _ => 16 * self.o_tiles * self.team,
        }
    }
}

/// Bytes that a thread may spill, stored and loaded: what the launch decides, and the look for infinities in V
/// under any mask, take registers. Teams that compute the addresses of their copies again each time spill
/// almost nothing, but are a tenth slower.
const MOST_SPILLS: u32 = 160;

impl Shape {
    fn name(&self) -> String {
        let types = match self.acc {
            Accumulation::Single => self.dtype.name().to_owned(),
            Accumulation::Half => format!("{}acc", self.dtype.name()),
        };
        let dim = self.dim();
        match self.main_loop {
            Loop::Naive => format!("naive_{types}"),
            Loop::Hopper(rung) => format!("{}_{types}_d{dim}", rung.name().replace('-', "_")),
            Loop::Fa1 => format!("fa1_{types}_d{dim}"),
            Loop::Rows => format!("split_q_{types}_d{dim}"),
            Loop::RowsInRegisters => format!("shared_qkv_{types}_d{dim}"),
            Loop::Teams => format!("teams_{types}_t{}_o{}", self.team, self.o_tiles),
        }
    }

    /// What its entry point calls.
    fn instance(&self) -> Instance {
        let Shape {
            m_tiles: mt,
            n_tiles: nt,
            o_tiles: ot,
            team,
            ..
        } = self;
        let Tile {
            warps,
            q_slices,
            stages,
            ..
        } = self.tile();
        let sums = [&*format!("{:?}", self.acc)];
        let types = match self.main_loop {
            Loop::Rows | Loop::RowsInRegisters | Loop::Teams => &sums[..],
            _ => &[],
        };
        let (module, generic) = match self.main_loop {
            Loop::Hopper(rung) => {
                let (w, s, [given, taken]) = (Self::WARPGROUPS, stages, self.registers());
                let generic = match rung {
                    Rung::Wgmma => generic! { wgmma: W = w, DT = ot, NT = nt, S = s },
                    Rung::Tma => generic! { tma: W = w, DT = ot, NT = nt, S = s },
                    _ => {
                        let turns = rung == Rung::PingPong;
                        generic! { specialised: TURNS = turns, W = w, DT = ot, NT = nt, S = s, GIVEN = given, TAKEN = taken }
                    }
                };
                ("hopper", generic)
            }
            Loop::Naive => ("naive", generic! { naive: }),
            Loop::Fa1 => ("fa1", generic! { fa1: W = warps, DT = ot, NT = nt }),
            Loop::Rows | Loop::RowsInRegisters => {
                let generic =
                    generic! { rows: W = warps, MT = mt, DT = ot, NT = nt, QT = q_slices };
                ("rows", generic)
            }
            Loop::Teams => {
                let kt = nt * team;
                let generic =
                    generic! { teams: W = warps, T = team, MT = mt, NT = nt, KT = kt, OT = ot };
                ("teams", generic)
            }
        };
        let params = match self.main_loop {
            Loop::Hopper(rung) if rung != Rung::Wgmma => "Sm90Params, maps",
            _ => "LadderParams",
        };
        Instance::new((params, module), self.dtype, types, generic)
    }

    /// The specification.
    fn spec(&self) -> Spec {
        let tile = self.tile();
        let bytes = self.shared_bytes_with(&Options::LEAST, self.dim());
        let launch = Launch::new(tile.warps, tile.blocks_per_sm, bytes);
        let target = match self.main_loop {
            Loop::Hopper(rung) => rung.target(),
            _ => Target::SM80,
        };
        let code = Code {
            copies_vary: self.main_loop == Loop::Teams,
            most_spills: if self.is_hopper() { 0 } else { MOST_SPILLS },
            ..Code::default()
        };
        Spec {
            code,
            ..Spec::new(self.name(), target, launch, self.instance())
        }
    }
}

/// A compiled kernel of the ladder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The axes.
    pub shape: Shape,
    /// The specification.
    pub spec: Spec,
}

/// Every kernel of the ladder.
pub static KERNELS: LazyLock<Vec<Kernel>> = LazyLock::new(|| {
    let mut shapes = Vec::new();
    for dtype in Dtype::ALL {
        shapes.push(Shape::naive(dtype));
        shapes.extend([64, 128, 256].map(|dim| Shape::fa1(dtype, dim)));
    }
    for types in [
        (Dtype::F16, Accumulation::Single),
        (Dtype::F16, Accumulation::Half),
        (Dtype::Bf16, Accumulation::Single),
    ] {
        for q in [Q::Shared, Q::Registers] {
            shapes.extend([32, 64, 96, 128, 256].map(|dim| Shape::rows(types, dim, q)));
        }
        shapes.extend(TEAMS.map(|team| Shape::teams(types, team)));
    }
    for &rung in Rung::ALL.iter().filter(|rung| rung.is_for_hopper()) {
        for dtype in Dtype::ALL {
            shapes.extend([64, 128, 256].map(|dim| Shape::hopper(rung, dtype, dim)));
        }
    }
    let kernel = |shape: Shape| Kernel {
        shape,
        spec: shape.spec(),
    };
    shapes.into_iter().map(kernel).collect()
});

/// The specifications of all kernels of this crate, with [`TIMELINES`].
#[must_use]
pub fn specs() -> Vec<&'static Spec> {
    let kernels = KERNELS.iter().map(|kernel| &kernel.spec);
    let timelines = TIMELINES.iter().map(|timeline| &timeline.spec);
    kernels.chain(timelines).collect()
}

/// The kernel of a name.
#[must_use]
pub fn named(name: &str) -> Option<&'static Kernel> {
    KERNELS.iter().find(|kernel| kernel.spec.name == name)
}

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

/// The kernel of a rung for a dtype, accumulator and head dim, and the options that give it `stages` stages, the
/// better ones first. `None` if there is no such kernel.
#[must_use]
pub fn variants(
    rung: Rung,
    dtype: Dtype,
    acc: Accumulation,
    dim: u32,
    stages: u32,
) -> Option<(&'static Kernel, [Option<Options>; 2])> {
    let main_loop = match rung {
        Rung::Naive => Loop::Naive,
        Rung::Fa1 => Loop::Fa1,
        Rung::SplitQ | Rung::SharedKv => Loop::Rows,
        Rung::SharedQkv => Loop::RowsInRegisters,
        Rung::SplitKv | Rung::TiledQk | Rung::TiledQkv => Loop::Teams,
        Rung::Wgmma | Rung::Tma | Rung::Specialised | Rung::PingPong => Loop::Hopper(rung),
    };
    let serves = |kernel: &&Kernel| {
        let shape = kernel.shape;
        // Four warps split the keys; tiles have as few warps a team as hold O.
        let team = match rung {
            Rung::SplitKv => shape.team == 4 && shape.o_tiles <= 4,
            _ => shape.team != 4 || shape.o_tiles > 4,
        };
        (shape.main_loop, shape.dtype, shape.acc) == (main_loop, dtype, acc)
            && dim <= shape.dim().min(rung.max_dim())
            && team
    };
    let kernel = KERNELS
        .iter()
        .filter(serves)
        .min_by_key(|k| k.shape.dim())?;
    let keys = kernel.shape.tile().keys;
    let ring = |buffers| Options {
        buffers,
        ..Options::LEAST
    };
    let options = match rung {
        Rung::SplitQ => [Some(ring(2 * stages)), None],
        Rung::SharedKv | Rung::SharedQkv | Rung::TiledQkv => [Some(ring(stages)), None],
        // K and V whole where they fit, else in slices.
        Rung::SplitKv => {
            let whole = Options {
                windows: dim.div_ceil(64),
                v_keys: keys,
                apart: 0b001,
                ..ring(2 * stages)
            };
            let sliced = Options {
                windows: 1,
                v_keys: 32,
                ..whole
            };
            [Some(whole), Some(sliced)]
        }
        // V whole where it fits, else 64 keys of it.
        Rung::TiledQk => [
            Some(Options {
                v_keys: keys,
                apart: 0b100,
                ..ring(stages)
            }),
            (keys > 64).then_some(Options {
                v_keys: 64,
                ..ring(stages)
            }),
        ],
        _ => [Some(Options::LEAST), None],
    };
    Some((kernel, options))
}
