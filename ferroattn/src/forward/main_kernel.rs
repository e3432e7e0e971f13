//! The kernel that does the work of an attention call.

use super::Problem;
use super::waves::Waves;
use crate::device::Facts;
use crate::entry::Entry;
#[cfg(doc)]
use kernels::abi::Switch;
use kernels::catalog::{Dtype, Kernel, Levels, Loop, MaskKind};

/// The kernel that does the work of an attention call, as a plan sees it.
#[derive(Clone, Copy, Debug)]
pub struct MainKernel {
    /// How to launch it.
    pub entry: Entry,
    /// Element type of q, k, v and o.
    pub dtype: Dtype,
    /// Query rows of a block (Br).
    pub q_rows: u32,
    /// Keys of a step (Bc).
    pub keys: u32,
    /// Shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// Blocks of a multiprocessor that the registers are bounded for.
    pub blocks_per_sm: u32,
    /// Whether query heads that share a key/value head share query tiles.
    pub is_grouped: bool,
    /// Whether they may share them, by [`Switch::Group`].
    pub may_group: bool,
    /// In which waves heads take turns.
    pub waves: Waves,
    /// Slices of O's columns, each with query tiles of its own.
    pub slices: u32,
    /// Sides of a block: groups of warpgroups that have the same rows, and every other block of keys.
    pub sides: u32,
    /// Boxes in which V of a step is loaded by tensor maps, each with as many keys.
    pub v_chunks: u32,
    /// Whether its blocks may take [units](kernels::abi::UnitsRef) of the keys in place of splits, and read [lengths](Switch::Lengths)
    /// themselves.
    pub takes_units: bool,
    /// Whether blocks of a [cluster](Switch::Cluster) combine the splits of a tile.
    pub may_combine: bool,
    /// Head dim of a kernel that loads by tensor maps.
    pub map_dim: Option<u32>,
    /// Whether it reads values as the first part of the keys, in boxes of a half of a step.
    pub values_in_keys: bool,
    /// Whether k and v are of e4m3.
    pub reads_e4m3: bool,
    /// Whether it multiplies e4m3.
    pub is_fp8: bool,
    /// Whether it rounds a q of 16 bits itself.
    pub rounds_q: bool,
    /// Whether rows of a warp vote on their maxima, unless [`Switch::Exact`] is on.
    pub has_votes: bool,
}

impl MainKernel {
    /// Blocks that a multiprocessor holds at once.
    pub fn resident_blocks(&self, facts: &Facts) -> u32 {
        facts.resident_blocks(self.blocks_per_sm, self.shared_bytes)
    }

    /// Query heads of a problem that share a query tile.
    pub(super) fn packed(&self, problem: &Problem) -> usize {
        if self.is_grouped { problem.group() } else { 1 }
    }
}

impl From<&'static Kernel> for MainKernel {
    /// A kernel of this crate's catalog.
    ///
    /// # Panics
    /// If it does not compute attention.
    fn from(kernel: &'static Kernel) -> Self {
        let forward = kernel.forward().expect("it computes attention");
        MainKernel {
            entry: kernel.into(),
            dtype: forward.dtype,
            q_rows: forward.tile.q_rows,
            keys: forward.tile.keys,
            shared_bytes: kernel.launch.shared_bytes,
            blocks_per_sm: kernel.launch.blocks_per_sm,
            is_grouped: forward.kind.is_grouped(),
            may_group: forward.may_group(),
            waves: match (forward.kind.mask, forward.kind.main_loop) {
                (MaskKind::Full | MaskKind::Either, _) | (_, Loop::Latent) => Waves::Heads,
                (_, Loop::Hopper | Loop::Fp8(_)) if forward.slices() == 1 => Waves::Uneven,
                _ => Waves::Even,
            },
            slices: forward.slices(),
            sides: forward.sides(),
            v_chunks: match forward.is_latent() {
                true => 2,
                false => forward.memory().map_or(1, |memory| memory.v_chunks()),
            },
            takes_units: forward.kind.is_grouped() && forward.kind.mask.has_options(),
            may_combine: matches!(forward.kind.main_loop, Loop::Decode | Loop::DecodeE4m3),
            map_dim: kernel.takes_maps().then_some(forward.dim),
            values_in_keys: forward.is_latent(),
            has_votes: !matches!(
                forward.kind.main_loop,
                Loop::Wide | Loop::Latent | Loop::Fp8(_)
            ),
            reads_e4m3: forward.reads_e4m3(),
            is_fp8: forward.kind.multiplies_e4m3(),
            rounds_q: forward.kind.main_loop == Loop::Fp8(Levels::One),
        }
    }
}
