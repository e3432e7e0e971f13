//! Which rows and keys a block has.

use crate::abi::{ForwardParams, MAX_SEQLEN};
use crate::attention::WorkTile;
use crate::attention::forward::begin;
use crate::attention::options::mask::{Mask, seen_blocks, whole_blocks};
use crate::attention::options::score::Score;
use crate::attention::workload::heads::Heads;
use crate::attention::workload::sequence::Split;
use crate::layout::latent::LatentMemory;
use core::hint::assert_unchecked;
use core::ops::Range;

/// Keys of a pair of stages, one of each warpgroup: a step of the schedule.
pub const PAIR: u32 = 2 * LatentMemory::KEYS;

/// The block's tile, and the keys of its split or unit.
pub struct Part<M, H> {
    /// The rows.
    pub work: WorkTile<H>,
    /// The keys.
    pub split: Split,
    /// Which keys the queries see.
    pub mask: M,
}

impl<M: Mask, H: Heads> Part<M, H> {
    /// The part of this block; none if there are fewer units.
    #[inline(always)]
    pub fn new<C: Score>(params: &ForwardParams) -> Option<Self> {
        let work = WorkTile::<H>::of_unit::<C>(params, LatentMemory::ROWS);
        let split = work.keys_of_unit::<C>(params)?;
        // Else the mask checks the order of its bounds, and panics: the assembler then ignores the consumers' registers.
        // SAFETY: a launch has no longer sequence.
        unsafe { assert_unchecked(split.keys <= MAX_SEQLEN) }
        let mask = M::new(params, work.sequence, split);
        Some(Part { work, split, mask })
    }

    /// The pairs of stages of which some row sees a key, and those that every row sees whole.
    #[inline(always)]
    pub fn pairs(&self) -> [Range<u32>; 2] {
        let ends = begin::ends(&self.work, &self.mask, self.work.first, LatentMemory::ROWS);
        [seen_blocks(ends, PAIR), whole_blocks(ends, PAIR)]
    }
}
