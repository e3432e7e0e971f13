//! Shared memory of the Hopper forward kernel.

use super::descriptor::Panels;
use super::element::BYTES;

/// Slots of 64 rows of Q, K and V for each stage, barriers, and for each slot of Q the tile that it belongs to.
///
/// ```text
/// Q | K of stage 0, 1, ... | V of stage 0, 1, ... | zeros | barriers | jobs
/// ```
///
/// K and V of a single stage pass in chunks, each with barriers of its own: K in chunks of columns, V in chunks of keys.
/// So the next block's first chunk loads while the last one of this block is in use.
#[derive(Clone, Copy, Debug)]
pub struct Sm90Memory {
    base: u32,
    q_rows: u32,
    keys: u32,
    dim: u32,
    columns: u32,
    stages: u32,
    /// Tiles of V that would fill the place of K.
    k_tiles: u32,
    k_chunks: u32,
    v_chunks: u32,
}

impl Sm90Memory {
    /// Bytes of the zeros: 8 rows of a panel, which a descriptor without strides repeats.
    pub const ZERO_BYTES: u32 = 1024;

    /// The memory of a block from shared address `base` on, a multiple of 1024. `columns`, which divide `dim`, are the
    /// columns of V that the block reads.
    #[must_use]
    #[inline(always)]
    pub const fn new(base: u32, [q_rows, keys, dim, columns]: [u32; 4], stages: u32) -> Self {
        Sm90Memory {
            base,
            q_rows,
            keys,
            dim,
            columns,
            stages,
            k_tiles: stages * dim / columns,
            k_chunks: Self::k_chunks_of(stages, dim),
            v_chunks: Self::v_chunks_of(stages),
        }
    }

    /// Chunks of K of a stage, of so many stages.
    #[must_use]
    #[inline(always)]
    pub const fn k_chunks_of(stages: u32, dim: u32) -> u32 {
        if stages == 1 { dim / 128 } else { 1 }
    }

    /// Chunks of V of a stage, of so many stages.
    #[must_use]
    #[inline(always)]
    pub const fn v_chunks_of(stages: u32) -> u32 {
        if stages == 1 { 2 } else { 1 }
    }

    /// Chunks of K of a stage.
    #[must_use]
    #[inline(always)]
    pub const fn k_chunks(&self) -> u32 {
        self.k_chunks
    }

    /// Chunks of V of a stage.
    #[must_use]
    #[inline(always)]
    pub const fn v_chunks(&self) -> u32 {
        self.v_chunks
    }

    /// Bytes from a side's memory to the next one's, where sides share a block.
    #[must_use]
    #[inline(always)]
    pub const fn side_bytes(&self) -> u32 {
        self.bytes().next_multiple_of(1024)
    }

    /// Bytes by which a warpgroup passes its part of O, m and l to another side.
    #[must_use]
    #[inline(always)]
    pub const fn exchange_bytes(dim: u32) -> u32 {
        128 * (4 * dim / 2 + 16)
    }

    /// The first address.
    #[must_use]
    #[inline(always)]
    pub const fn base(&self) -> u32 {
        self.base
    }

    /// The 64 rows of Q in a slot.
    #[must_use]
    #[inline(always)]
    pub const fn q(&self, slot: u32) -> Panels {
        self.panels(self.base + slot * self.q_bytes(), 64)
    }

    /// K of a stage.
    #[must_use]
    #[inline(always)]
    pub const fn k(&self, stage: u32) -> Panels {
        let q_bytes = self.q_rows * self.dim * BYTES;
        let base = self.base + q_bytes + stage * self.k_bytes();
        self.panels(base, self.keys)
    }

    /// V of a stage.
    #[must_use]
    #[inline(always)]
    pub const fn v(&self, stage: u32) -> Panels {
        let q_bytes = self.q_rows * self.dim * BYTES;
        let base = self.base + q_bytes + (self.k_tiles + stage) * self.v_bytes();
        self.panels(base, self.keys)
    }

    /// Bytes of a slot of Q.
    #[must_use]
    #[inline(always)]
    pub const fn q_bytes(&self) -> u32 {
        64 * self.dim * BYTES
    }

    /// Bytes of K of a stage.
    #[must_use]
    #[inline(always)]
    pub const fn k_bytes(&self) -> u32 {
        self.keys * self.dim * BYTES
    }

    /// Bytes of V of a stage.
    #[must_use]
    #[inline(always)]
    pub const fn v_bytes(&self) -> u32 {
        self.keys * self.columns * BYTES
    }

    /// The zeros.
    #[must_use]
    #[inline(always)]
    pub const fn zeros(&self) -> u32 {
        self.v(self.stages).base
    }

    /// The barrier of a slot of Q that says that it has landed; the next one says that it is read.
    #[must_use]
    #[inline(always)]
    pub const fn q_full(&self, slot: u32) -> u32 {
        self.zeros() + Self::ZERO_BYTES + slot * 16
    }

    /// The barrier of K of a stage, or of its first chunk, like [`q_full`](Self::q_full); every chunk's barriers are 16 bytes.
    #[must_use]
    #[inline(always)]
    pub const fn k_full(&self, stage: u32) -> u32 {
        self.q_full(self.q_rows / 64) + stage * 16
    }

    /// The barrier of V of a stage, like [`k_full`](Self::k_full).
    #[must_use]
    #[inline(always)]
    pub const fn v_full(&self, stage: u32) -> u32 {
        self.k_full(self.stages * self.k_chunks + stage)
    }

    /// Chunks of all stages of K and V.
    #[must_use]
    #[inline(always)]
    pub const fn chunks(&self) -> u32 {
        self.stages * (self.k_chunks + self.v_chunks)
    }

    /// Four numbers that say to which tile a slot of Q belongs.
    #[must_use]
    #[inline(always)]
    pub const fn job(&self, slot: u32) -> u32 {
        self.v_full(self.stages * self.v_chunks) + slot * 16
    }

    /// Bytes of all.
    #[must_use]
    #[inline(always)]
    pub const fn bytes(&self) -> u32 {
        self.job(self.q_rows / 64) - self.base
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
