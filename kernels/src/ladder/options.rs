//! The rungs and what can be asked of them: names, options, head dims; what an option needs of shared
//! memory. Plain data and arithmetic, the same on the host and on the GPU.

use crate::abi::LadderParams;
use crate::layout::swizzle::{CHUNK_BYTES, Swizzle};

/// Query rows of a block of the naive kernels, a thread each.
pub const NAIVE_ROWS: u32 = 128;

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
}

impl Rung {
    /// All, from the first step up.
    pub const ALL: &[Rung] = &[
        Rung::Naive,
        Rung::Fa1,
        Rung::SplitKv,
        Rung::SplitQ,
        Rung::SharedKv,
        Rung::SharedQkv,
        Rung::TiledQk,
        Rung::TiledQkv,
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
        }
    }

    /// What it shows, in a line.
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

    /// Whether it has stages, swizzles, accumulators and ways to store O to choose from.
    #[must_use]
    pub const fn has_options(self) -> bool {
        !matches!(self, Rung::Naive | Rung::Fa1)
    }
}

/// Which tiles are swizzled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Swizzles {
    /// None: rows in their order.
    None,
    /// None, but rows 16 bytes apart.
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
    /// All.
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

    /// As a launch tells it: a bit for each of Q, K and V, and chunks between rows.
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
    /// Straight, 4 bytes a lane.
    Direct,
    /// By way of shared memory.
    #[default]
    Shared,
    /// Collected by shuffles, 16 bytes a lane.
    Shuffle,
}

impl OStore {
    /// All.
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

/// Where the chunks of tiles of Q, K and V lie that have rows of `row_chunks` chunks.
#[must_use]
#[inline(always)]
pub const fn swizzles(p: &LadderParams, row_chunks: u32) -> [Swizzle; 3] {
    [
        swizzle(p, row_chunks, 0),
        swizzle(p, row_chunks, 1),
        swizzle(p, row_chunks, 2),
    ]
}

/// Bytes from a row of so many columns to the next.
#[must_use]
#[inline(always)]
pub const fn pitch(p: &LadderParams, columns: u32) -> u32 {
    (columns / 8 + p.padding) * CHUNK_BYTES
}

#[inline(always)]
const fn swizzle(p: &LadderParams, row_chunks: u32, tensor: u32) -> Swizzle {
    match p.swizzled >> tensor & 1 {
        1 => Swizzle::new(row_chunks),
        _ => Swizzle::none(row_chunks + p.padding),
    }
}

/// Where things lie in the shared memory of a block whose warps form [teams](super): P, maxima, Q if it
/// stays, V's own buffer if it has one, and the ring. Offsets in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TeamsMemory {
    /// What the warps of a team exchange: four numbers of every row from each.
    pub exchange: u32,
    /// Q.
    pub q: u32,
    /// V.
    pub v: u32,
    /// The ring.
    pub ring: u32,
    /// Bytes of a buffer of the ring.
    pub buffer: u32,
    /// In such a buffer, K behind Q.
    pub k_in_buffer: u32,
    /// Windows of the head dim.
    pub k_slices: u32,
    /// Windows that the Q tile has.
    pub q_windows: u32,
}

impl TeamsMemory {
    /// For `q_rows` query rows, `keys` keys and `width` columns of V a block, and `team` warps a team.
    #[must_use]
    #[inline(always)]
    pub const fn new(p: &LadderParams, dim: u32, [q_rows, keys, width, team]: [u32; 4]) -> Self {
        let k_slices = dim.div_ceil(64 * p.windows);
        let (stays, apart) = (p.apart & 0b001 != 0, p.apart & 0b100 != 0);
        let q_windows = if stays {
            k_slices * p.windows
        } else {
            p.windows
        };
        let q_bytes = q_rows * pitch(p, 64 * q_windows);
        let k_bytes = keys * pitch(p, 64 * p.windows);
        let v_bytes = p.v_keys * pitch(p, width);
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
