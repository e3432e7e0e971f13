//! Which rows and keys a block has.

use crate::abi::{ForwardParams, MAX_SEQLEN};
use crate::attention::WorkTile;
use crate::attention::forward::begin;
use crate::attention::options::mask::{Mask, seen_blocks, whole_blocks};
use crate::attention::options::score::Score;
use crate::attention::workload::heads::Heads;
use crate::attention::workload::sequence::Split;
use crate::layout::latent::LatentMemory;
use crate::ptx::{shuffle, vote};
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
    ///
    /// # Safety
    /// All threads of the block make the same call, each with its number.
    #[inline(always)]
    pub unsafe fn new<C: Score>(params: &ForwardParams, thread: u32) -> Option<Self> {
        let mut work = WorkTile::<H>::of_block::<C>(params, LatentMemory::ROWS);
        // SAFETY: the caller's promise.
        let split = unsafe { work.take_keys::<C>(params, thread) };
        // A vote: else the assembler takes warps for divergent behind a branch on what was loaded.
        // SAFETY: the caller's promise.
        if unsafe { vote::any(split.is_none()) } {
            return None;
        }
        // SAFETY: no lane has none. A launch has no longer sequence: else the mask checks the order of its bounds, and panics; the
        // assembler then ignores the consumers' registers.
        let split = unsafe {
            let split = split.unwrap_unchecked();
            assert_unchecked(split.keys <= MAX_SEQLEN);
            split
        };
        let mask = M::new(params, work.sequence, split);
        Some(Part { work, split, mask })
    }

    /// The pairs of stages of which some row sees a key, and those that every row sees whole: numbers of which the assembler knows that
    /// all lanes have them.
    ///
    /// # Safety
    /// All lanes of the warp make the same call.
    #[inline(always)]
    pub unsafe fn pairs(&self) -> [Range<u32>; 2] {
        let ends = begin::ends(&self.work, &self.mask, self.work.first, LatentMemory::ROWS);
        let (seen, whole) = (seen_blocks(ends, PAIR), whole_blocks(ends, PAIR));
        // SAFETY: the caller's promise.
        let first = |number| unsafe { shuffle::first(number) };
        [
            first(seen.start)..first(seen.end),
            first(whole.start)..first(whole.end),
        ]
    }
}
