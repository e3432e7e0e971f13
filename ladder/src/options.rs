//! The rungs with their names, options and head dims, and where things lie in shared memory: plain data and
//! arithmetic, the same on the host and on the GPU.

use crate::params::Options;
use kernels::layout::descriptor::Panels;
use kernels::layout::swizzle::{CHUNK_BYTES, Swizzle};

/// A kernel of the ladder, by the name that users know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rung {
    /// Scores, softmax and output in three passes.
    Naive,
    /// FlashAttention-1.
    Fa1,
    /// Warps that split the keys of a block.
    SplitKv,
    /// Warps that split the queries of a block.
    SplitQ,
    /// One ring of buffers for K and V.
    SharedKv,
    /// One ring of buffers for Q, K and V.
    SharedQkv,
    /// Q and K in slices of the head dim.
    TiledQk,
    /// V in slices too.
    TiledQkv,
    /// Hopper's products.
    Wgmma,
    /// Hopper's copies.
    Tma,
    /// Warpgroups that load, and others that multiply.
    Specialised,
    /// Warpgroups that take turns.
    PingPong,
}

impl Rung {
    /// All rungs, from the first step up.
    pub const ALL: &[Rung] = &[
        Rung::Naive,
        Rung::Fa1,
        Rung::SplitKv,
        Rung::SplitQ,
        Rung::SharedKv,
        Rung::SharedQkv,
        Rung::TiledQk,
        Rung::TiledQkv,
        Rung::Wgmma,
        Rung::Tma,
        Rung::Specialised,
        Rung::PingPong,
    ];

    /// The name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Rung::Naive => "naive",
            Rung::Fa1 => "fa1",
            Rung::SplitKv => "split-kv",
            Rung::SplitQ => "split-q",
            Rung::SharedKv => "shared-kv",
            Rung::SharedQkv => "shared-qkv",
            Rung::TiledQk => "tiled-qk",
            Rung::TiledQkv => "tiled-qkv",
            Rung::Wgmma => "wgmma",
            Rung::Tma => "tma",
            Rung::Specialised => "specialised",
            Rung::PingPong => "ping-pong",
        }
    }

    /// The rung's lesson, in a line.
    #[must_use]
    pub const fn lesson(self) -> &'static str {
        match self {
            Rung::Naive => "three passes, S in global memory: the O(N²) baseline",
            Rung::Fa1 => {
                "FlashAttention-1: outer loop over keys; O, m and l rescaled in global memory"
            }
            Rung::SplitKv => {
                "warps split the keys of a block: maxima, P and sums go through shared memory"
            }
            Rung::SplitQ => "FlashAttention-2: warps split the queries; K and V in buffers apart",
            Rung::SharedKv => "K and V take turns in the same buffers",
            Rung::SharedQkv => "Q is read to registers, and K and V take its place",
            Rung::TiledQk => "Q and K in slices of the head dim: their shared memory is constant",
            Rung::TiledQkv => "V in slices of the keys as well",
            Rung::Wgmma => "Hopper: warpgroups multiply by wgmma, straight from shared memory",
            Rung::Tma => "Hopper: one thread loads by TMA",
            Rung::Specialised => "Hopper: one warpgroup loads, others multiply",
            Rung::PingPong => "Hopper: two warpgroups take turns at the softmax",
        }
    }

    /// The largest head dim.
    #[must_use]
    pub const fn max_dim(self) -> u32 {
        match self {
            Rung::Naive | Rung::TiledQk | Rung::TiledQkv => 1024,
            _ => 256,
        }
    }

    /// Whether it is for Hopper (compute capability 9.0) alone.
    #[must_use]
    pub const fn is_for_hopper(self) -> bool {
        matches!(
            self,
            Rung::Wgmma | Rung::Tma | Rung::Specialised | Rung::PingPong
        )
    }

    /// Whether stages, swizzles, accumulators and the way to store O can be chosen.
    #[must_use]
    pub const fn has_options(self) -> bool {
        !matches!(self, Rung::Naive | Rung::Fa1) && !self.is_for_hopper()
    }
}

/// Which tiles are swizzled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Swizzles {
    /// No tile: chunks in their order.
    None,
    /// No tile, but 16 bytes are free after each row.
    Pad,
    /// Q.
    Q,
    /// Q and K.
    Qk,
    /// Q, K and V.
    #[default]
    Qkv,
}

impl Swizzles {
    /// Every choice.
    pub const ALL: &[Swizzles] = &[
        Swizzles::None,
        Swizzles::Pad,
        Swizzles::Q,
        Swizzles::Qk,
        Swizzles::Qkv,
    ];

    /// The name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Swizzles::None => "none",
            Swizzles::Pad => "pad",
            Swizzles::Q => "q",
            Swizzles::Qk => "qk",
            Swizzles::Qkv => "qkv",
        }
    }

    /// [`Options::swizzled`] and [`Options::padding`].
    #[must_use]
    pub const fn bits_and_padding(self) -> (u32, u32) {
        match self {
            Swizzles::None => (0, 0),
            Swizzles::Pad => (0, 1),
            Swizzles::Q => (0b1, 0),
            Swizzles::Qk => (0b11, 0),
            Swizzles::Qkv => (0b111, 0),
        }
    }
}

/// How O leaves the registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum OStore {
    /// From registers, 4 bytes a lane.
    Direct,
    /// Through shared memory, 16 bytes a lane.
    #[default]
    Shared,
    /// Collected by shuffles, 16 bytes a lane.
    Shuffle,
}

impl OStore {
    /// Every way.
    pub const ALL: &[OStore] = &[OStore::Direct, OStore::Shared, OStore::Shuffle];

    /// The name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            OStore::Direct => "direct",
            OStore::Shared => "shared",
            OStore::Shuffle => "shuffle",
        }
    }
}

/// Query rows of a block of the naive kernels, a thread each.
pub const NAIVE_ROWS: u32 = 128;

/// A launch of the naive kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum NaivePass {
    /// S.
    Scores,
    /// P and lse.
    Softmax,
    /// O.
    Output,
}

/// Where the chunks of tiles of Q, K and V lie, in rows of `row_chunks` chunks.
#[must_use]
#[inline(always)]
pub const fn swizzles(options: &Options, row_chunks: u32) -> [Swizzle; 3] {
    [
        swizzle(options, row_chunks, 0),
        swizzle(options, row_chunks, 1),
        swizzle(options, row_chunks, 2),
    ]
}

/// Bytes from one row of `columns` columns to the next.
#[must_use]
#[inline(always)]
pub const fn pitch(options: &Options, columns: u32) -> u32 {
    (columns / 8 + options.padding) * CHUNK_BYTES
}

#[inline(always)]
const fn swizzle(options: &Options, row_chunks: u32, tensor: u32) -> Swizzle {
    match options.swizzled >> tensor & 1 {
        1 => Swizzle::new(row_chunks),
        _ => Swizzle::none(row_chunks + options.padding),
    }
}

/// Shared memory of a block of warpgroups: Q, the stages that K and V pass through, barriers.
#[derive(Clone, Copy, Debug)]
pub struct HopperMemory {
    base: u32,
    warpgroups: u32,
    keys: u32,
    dim: u32,
    stages: u32,
}

impl HopperMemory {
    /// For `warpgroups` warpgroups that multiply, and tiles of `keys` keys and `dim` columns, from shared address
    /// `base` on, a multiple of 1024.
    #[must_use]
    #[inline(always)]
    pub const fn new(base: u32, warpgroups: u32, [keys, dim]: [u32; 2], stages: u32) -> Self {
        HopperMemory {
            base,
            warpgroups,
            keys,
            dim,
            stages,
        }
    }

    /// The 64 rows of Q of a warpgroup.
    #[must_use]
    #[inline(always)]
    pub const fn q(&self, warpgroup: u32) -> Panels {
        self.panels(self.base + warpgroup * self.q_bytes(), 64)
    }

    /// The tile of a stage.
    #[must_use]
    #[inline(always)]
    pub const fn tile(&self, stage: u32) -> Panels {
        let stages = self.base + self.warpgroups * self.q_bytes();
        self.panels(stages + stage * self.tile_bytes(), self.keys)
    }

    /// Bytes of a warpgroup's Q.
    #[must_use]
    #[inline(always)]
    pub const fn q_bytes(&self) -> u32 {
        64 * self.dim * 2
    }

    /// Bytes of a tile.
    #[must_use]
    #[inline(always)]
    pub const fn tile_bytes(&self) -> u32 {
        self.keys * self.dim * 2
    }

    /// The barrier that says that the tile of a stage has landed; the next one says that it is read.
    #[must_use]
    #[inline(always)]
    pub const fn full(&self, stage: u32) -> u32 {
        self.tile(self.stages).base + 16 * stage
    }

    /// The barrier that says that Q has landed.
    #[must_use]
    #[inline(always)]
    pub const fn q_full(&self) -> u32 {
        self.full(self.stages)
    }

    /// Bytes of all.
    #[must_use]
    #[inline(always)]
    pub const fn bytes(&self) -> u32 {
        self.q_full() + 16 - self.base
    }

    #[inline(always)]
    const fn panels(&self, base: u32, rows: u32) -> Panels {
        Panels {
            base,
            rows,
            width: Panels::width_for(self.dim),
        }
    }
}

/// Shared memory of a block whose warps form teams: P, maxima, Q if it stays, V if it has a place of its own, and
/// the ring. Offsets in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TeamsMemory {
    /// Four numbers of every row from each warp of a team.
    pub exchange: u32,
    /// Q.
    pub q: u32,
    /// V.
    pub v: u32,
    /// The ring.
    pub ring: u32,
    /// Bytes of a buffer of the ring.
    pub buffer: u32,
    /// K in such a buffer, behind Q.
    pub k_in_buffer: u32,
    /// Slices of the head dim that K passes in.
    pub k_slices: u32,
    /// Windows of the Q tile.
    pub q_windows: u32,
}

impl TeamsMemory {
    /// For `q_rows` query rows, `keys` keys and `width` columns of V in a block, and `team` warps in a team.
    #[must_use]
    #[inline(always)]
    pub const fn new(options: &Options, dim: u32, [q_rows, keys, width, team]: [u32; 4]) -> Self {
        let k_slices = dim.div_ceil(64 * options.windows);
        let (stays, apart) = (options.apart & 0b001 != 0, options.apart & 0b100 != 0);
        let q_windows = if stays {
            k_slices * options.windows
        } else {
            options.windows
        };
        let q_bytes = q_rows * pitch(options, 64 * q_windows);
        let k_bytes = keys * pitch(options, 64 * options.windows);
        let v_bytes = options.v_keys * pitch(options, width);
        let exchange = 2 * q_rows * keys;
        let q = exchange + 16 * q_rows * team;
        let v = if stays { q + q_bytes } else { q };
        let k_in_buffer = if stays { 0 } else { q_bytes };
        let k_slice = k_in_buffer + k_bytes;
        TeamsMemory {
            exchange,
            q,
            v,
            ring: if apart { v + v_bytes } else { v },
            buffer: if apart || k_slice > v_bytes {
                k_slice
            } else {
                v_bytes
            },
            k_in_buffer,
            k_slices,
            q_windows,
        }
    }
}
