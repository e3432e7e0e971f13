//! Shared memory of the Hopper backward kernels, and where they store dS in device memory.

use super::descriptor::Panels;
use super::element::BYTES;

/// K and V of the block's keys, two stages of Q, dO, dS and row statistics, one or two of dQ's sums, and barriers.
///
/// ```text
/// K | V | Q of stage 0, 1 | dO of stage 0, 1 | dS of stage 0, 1 | dQ | zeros | lse of stage 0, 1 | delta of 0, 1 | barriers | job
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Sm90BackwardMemory {
    base: u32,
    queries: u32,
    dim: u32,
}

impl Sm90BackwardMemory {
    /// Keys of a block.
    pub const KEYS: u32 = 128;
    /// Bytes of the zeros.
    pub const ZERO_BYTES: u32 = 1024;
    /// Stages of all that is loaded, and of dS.
    pub const STAGES: u32 = 2;

    /// The memory of a block from shared address `base` on, a multiple of 1024, with so many queries a step.
    #[must_use]
    #[inline(always)]
    pub const fn new(base: u32, queries: u32, dim: u32) -> Self {
        Sm90BackwardMemory { base, queries, dim }
    }

    /// The block's keys.
    #[must_use]
    #[inline(always)]
    pub const fn k(&self) -> Panels {
        self.panels(self.base, Self::KEYS)
    }

    /// Their values.
    #[must_use]
    #[inline(always)]
    pub const fn v(&self) -> Panels {
        self.panels(self.base + self.k_bytes(), Self::KEYS)
    }

    /// Q of a stage.
    #[must_use]
    #[inline(always)]
    pub const fn q(&self, stage: u32) -> Panels {
        let base = self.base + 2 * self.k_bytes();
        self.panels(base + stage * self.q_bytes(), self.queries)
    }

    /// dO of a stage.
    #[must_use]
    #[inline(always)]
    pub const fn d_o(&self, stage: u32) -> Panels {
        self.q(Self::STAGES + stage)
    }

    /// dS of a stage: a row for each query, and a panel of 64 keys for each warpgroup.
    #[must_use]
    #[inline(always)]
    pub const fn ds(&self, stage: u32) -> Panels {
        Panels {
            base: self.d_o(Self::STAGES).base + stage * self.queries * Self::KEYS * BYTES,
            rows: self.queries,
            width: 64,
        }
    }

    /// Stages of what the block adds to dQ. With two, consumers go on while an addition waits for its turn; steps of 128
    /// queries leave 112 bytes too few.
    #[must_use]
    #[inline(always)]
    pub const fn dq_stages(&self) -> u32 {
        if self.queries > 64 { 1 } else { 2 }
    }

    /// The block's part of dQ in a stage, of each of two warpgroups.
    #[must_use]
    #[inline(always)]
    pub const fn dq(&self, stage: u32, warpgroup: u32) -> u32 {
        self.ds(Self::STAGES).base + (2 * stage + warpgroup) * self.dq_bytes()
    }

    /// Zeros: 8 rows of a panel, which a descriptor without strides repeats.
    #[must_use]
    #[inline(always)]
    pub const fn zeros(&self) -> u32 {
        self.dq(self.dq_stages(), 0)
    }

    /// lse of the queries of a stage.
    #[must_use]
    #[inline(always)]
    pub const fn lse(&self, stage: u32) -> u32 {
        self.zeros() + Self::ZERO_BYTES + stage * self.rows_bytes()
    }

    /// delta of the queries of a stage.
    #[must_use]
    #[inline(always)]
    pub const fn delta(&self, stage: u32) -> u32 {
        self.lse(Self::STAGES + stage)
    }

    /// The barrier that says that K and V have landed.
    #[must_use]
    #[inline(always)]
    pub const fn k_full(&self) -> u32 {
        self.delta(Self::STAGES)
    }

    /// The barrier of a stage that says that Q and lse have landed; the next one says that they are read.
    #[must_use]
    #[inline(always)]
    pub const fn q_full(&self, stage: u32) -> u32 {
        self.k_full() + 16 + stage * 16
    }

    /// The barrier of dO and delta, like [`q_full`](Self::q_full).
    #[must_use]
    #[inline(always)]
    pub const fn d_o_full(&self, stage: u32) -> u32 {
        self.q_full(Self::STAGES + stage)
    }

    /// The barrier of a stage that says that dS is written.
    #[must_use]
    #[inline(always)]
    pub const fn ds_full(&self, stage: u32) -> u32 {
        self.d_o_full(Self::STAGES) + stage * 8
    }

    /// The number of the block's job.
    #[must_use]
    #[inline(always)]
    pub const fn job(&self) -> u32 {
        self.ds_full(Self::STAGES)
    }

    /// Bytes of all.
    #[must_use]
    #[inline(always)]
    pub const fn bytes(&self) -> u32 {
        self.job() + 16 - self.base
    }

    /// Bytes of K, or of V.
    #[must_use]
    #[inline(always)]
    pub const fn k_bytes(&self) -> u32 {
        Self::KEYS * self.dim * BYTES
    }

    /// Bytes of Q of a stage, or of dO.
    #[must_use]
    #[inline(always)]
    pub const fn q_bytes(&self) -> u32 {
        self.queries * self.dim * BYTES
    }

    /// Bytes of lse of a stage, or of delta.
    #[must_use]
    #[inline(always)]
    pub const fn rows_bytes(&self) -> u32 {
        self.queries * 4
    }

    /// Bytes of a warpgroup's half of the sums of dQ.
    #[must_use]
    #[inline(always)]
    pub const fn dq_bytes(&self) -> u32 {
        self.queries * self.dim * 2
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

/// Where dS lies in device memory: for each head, block of queries and tile of 128 keys its image in shared memory, a
/// panel for each 64 keys.
#[derive(Clone, Copy, Debug)]
pub struct DsImage {
    address: u64,
    /// Blocks of queries of a head.
    blocks: u32,
    key_tiles: u32,
    queries: u32,
}

impl DsImage {
    /// The images from `address` on, of heads with so many padded rows and keys each, in blocks of `queries`.
    #[must_use]
    #[inline(always)]
    pub const fn new(address: u64, [padded_rows, keys]: [u32; 2], queries: u32) -> Self {
        DsImage {
            address,
            blocks: padded_rows / queries,
            key_tiles: keys.div_ceil(Sm90BackwardMemory::KEYS),
            queries,
        }
    }

    /// Address of a panel.
    #[must_use]
    #[inline(always)]
    pub const fn panel(&self, head: u32, block: u32, key_tile: u32, panel: u32) -> u64 {
        let block = head as u64 * self.blocks as u64 + block as u64;
        let tile = block * self.key_tiles as u64 + key_tile as u64;
        self.address + (2 * tile + panel as u64) * self.panel_bytes() as u64
    }

    /// Bytes of a panel.
    #[must_use]
    #[inline(always)]
    pub const fn panel_bytes(&self) -> u32 {
        self.queries * 64 * BYTES
    }
}

/// Shared memory of a job of queries: stages of dS of 128 queries and of K of 128 keys, zeros, and barriers.
#[derive(Clone, Copy, Debug)]
pub struct Sm90QueryMemory {
    base: u32,
    dim: u32,
    /// Queries of a block of dS.
    queries: u32,
    stages: u32,
}

impl Sm90QueryMemory {
    /// The memory from shared address `base` on, a multiple of 1024.
    #[must_use]
    #[inline(always)]
    pub const fn new(base: u32, dim: u32, queries: u32, stages: u32) -> Self {
        Sm90QueryMemory {
            base,
            dim,
            queries,
            stages,
        }
    }

    /// Bytes of dS of a stage.
    pub const DS_BYTES: u32 = 128 * 128 * BYTES;

    /// Bytes of K of a stage.
    #[must_use]
    #[inline(always)]
    pub const fn k_bytes(&self) -> u32 {
        128 * self.dim * BYTES
    }

    /// The 64 queries of a warpgroup in dS of a stage, and the first row of them.
    #[must_use]
    #[inline(always)]
    pub const fn ds(&self, stage: u32, warpgroup: u32) -> (Panels, u32) {
        let base = self.base + stage * Self::DS_BYTES;
        let (base, row) = match self.queries {
            128 => (base, 64 * warpgroup),
            _ => (base + warpgroup * Self::DS_BYTES / 2, 0),
        };
        (
            Panels {
                base,
                rows: self.queries,
                width: 64,
            },
            row,
        )
    }

    /// K of a stage.
    #[must_use]
    #[inline(always)]
    pub const fn k(&self, stage: u32) -> Panels {
        Panels {
            base: self.base + self.stages * Self::DS_BYTES + stage * self.k_bytes(),
            rows: 128,
            width: Panels::width_for(self.dim),
        }
    }

    /// Zeros, as in [`Sm90BackwardMemory`].
    #[must_use]
    #[inline(always)]
    pub const fn zeros(&self) -> u32 {
        self.k(self.stages).base
    }

    /// The barrier of a stage that says that dS and K have landed; the next one says that they are read.
    #[must_use]
    #[inline(always)]
    pub const fn full(&self, stage: u32) -> u32 {
        self.zeros() + Sm90BackwardMemory::ZERO_BYTES + stage * 16
    }

    /// Bytes of all.
    #[must_use]
    #[inline(always)]
    pub const fn bytes(&self) -> u32 {
        self.full(self.stages) - self.base
    }
}

/// Shared memory of a job of keys of wide heads: K and V of 64 keys, two stages of Q and dO of 64 queries and
/// their statistics, P on its way from one warpgroup to the other, dS, zeros, and barriers.
#[derive(Clone, Copy, Debug)]
pub struct Sm90WideMemory {
    base: u32,
    dim: u32,
}

impl Sm90WideMemory {
    /// Stages of Q and dO.
    pub const STAGES: u32 = 2;

    /// The memory from shared address `base` on, a multiple of 1024.
    #[must_use]
    #[inline(always)]
    pub const fn new(base: u32, dim: u32) -> Self {
        Sm90WideMemory { base, dim }
    }

    /// K (0) or V (1).
    #[must_use]
    #[inline(always)]
    pub const fn keys(&self, which: u32) -> Panels {
        self.panels(which)
    }

    /// Q (0) or dO (1) of a stage.
    #[must_use]
    #[inline(always)]
    pub const fn queries(&self, which: u32, stage: u32) -> Panels {
        self.panels(2 + 2 * stage + which)
    }

    /// Bytes of each of these tiles.
    #[must_use]
    #[inline(always)]
    pub const fn tile_bytes(&self) -> u32 {
        64 * self.dim * BYTES
    }

    /// P in f32, 128 bytes of each thread.
    #[must_use]
    #[inline(always)]
    pub const fn p(&self) -> u32 {
        self.panels(2 + 2 * Self::STAGES).base
    }

    /// dS: a row for each query.
    #[must_use]
    #[inline(always)]
    pub const fn ds(&self) -> Panels {
        Panels {
            base: self.p() + 128 * 128,
            rows: 64,
            width: 64,
        }
    }

    /// Zeros, as in [`Sm90BackwardMemory`].
    #[must_use]
    #[inline(always)]
    pub const fn zeros(&self) -> u32 {
        self.ds().base + self.ds().panel_bytes()
    }

    /// lse (0) or delta (1) of a stage.
    #[must_use]
    #[inline(always)]
    pub const fn rows(&self, which: u32, stage: u32) -> u32 {
        self.zeros() + Sm90BackwardMemory::ZERO_BYTES + (2 * stage + which) * 256
    }

    /// The barrier that says that K (0) or V (1) has landed.
    #[must_use]
    #[inline(always)]
    pub const fn keys_full(&self, which: u32) -> u32 {
        self.rows(0, Self::STAGES) + which * 8
    }

    /// The barrier that says that Q and lse (0) or dO and delta (1) of a stage have landed; the next one says that they are
    /// read.
    #[must_use]
    #[inline(always)]
    pub const fn queries_full(&self, which: u32, stage: u32) -> u32 {
        self.keys_full(2) + (2 * stage + which) * 16
    }

    /// The number of the block's job.
    #[must_use]
    #[inline(always)]
    pub const fn job(&self) -> u32 {
        self.queries_full(0, Self::STAGES)
    }

    /// Bytes of all.
    #[must_use]
    #[inline(always)]
    pub const fn bytes(&self) -> u32 {
        self.job() + 16 - self.base
    }

    #[inline(always)]
    const fn panels(&self, tile: u32) -> Panels {
        Panels {
            base: self.base + tile * self.tile_bytes(),
            rows: 64,
            width: Panels::width_for(self.dim),
        }
    }
}
