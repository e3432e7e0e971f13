//! Which blocks a tile visits.

use crate::abi::{BlockMapRef, Coverage};
use crate::attention::options::mask::Mask;
use crate::attention::options::seen::has_mask;
use crate::ptx::global;
use core::marker::PhantomData;
use core::ops::Range;

/// The blocks that a tile visits, in order: all that its rows see or, with a boolean mask, those that the mask's
/// [map](BlockMapRef) has.
#[derive(Clone, Copy)]
pub struct Visits<M> {
    /// Address of the rank of the first block.
    ranks: u64,
    /// Address of the tile's first shown block.
    shown: u64,
    /// The number of the first block.
    before: u32,
    /// The last place of a number.
    last: u32,
    mask: PhantomData<M>,
}

impl<M: Mask> Visits<M> {
    /// The visits of a head's tile. Blocks count from number `before` of the `blocks` blocks of the head.
    #[inline(always)]
    pub fn new(
        map: &BlockMapRef,
        [batch, head, tile]: [u32; 3],
        [before, blocks]: [u32; 2],
    ) -> Self {
        let mut visits = Visits {
            ranks: 0,
            shown: 0,
            before: 0,
            last: 0,
            mask: PhantomData,
        };
        if M::HAS_HEADS && has_mask() {
            let [batch, head, tile] = [batch, head, tile].map(u64::from);
            let tile = batch * map.batch_tiles + head * map.head_tiles + tile;
            let address = map.address + BlockMapRef::tile_bytes(blocks) * tile;
            visits.ranks = address + 4 * u64::from(before);
            visits.shown = address + BlockMapRef::rank_bytes(blocks);
            visits.before = before;
            visits.last = blocks - 1;
        }
        visits
    }

    /// The numbers of the visits to blocks that rows see.
    #[inline(always)]
    pub fn of(self, seen: Range<u32>) -> Range<u32> {
        if M::HAS_HEADS && has_mask() {
            // SAFETY: a launch with a mask has a map with a rank for each block, and one more.
            let rank = |block: u32| unsafe { global::load_u32(self.ranks + 4 * u64::from(block)) };
            return rank(seen.start)..rank(seen.end);
        }
        seen
    }

    /// The block of a visit, or of any one if there is no such visit.
    #[inline(always)]
    pub fn block(self, visit: u32) -> u32 {
        if M::HAS_HEADS && has_mask() {
            // SAFETY: the map has this place.
            let number = unsafe { global::load_u32(self.place(visit)) };
            return number.wrapping_sub(self.before);
        }
        visit
    }

    /// Which pairs of a part of the tile the boolean mask shows in a visited block.
    #[inline(always)]
    pub fn coverage(self, visit: u32, part: u32) -> Coverage {
        if M::HAS_HEADS && has_mask() {
            // SAFETY: the map has this place.
            let coverages = unsafe { global::load_u32(self.place(visit) + 4) };
            return Coverage::of_bits(coverages >> (2 * part));
        }
        Coverage::All
    }

    #[inline(always)]
    fn place(self, visit: u32) -> u64 {
        // The map has as many places as blocks.
        self.shown + 8 * u64::from(visit.min(self.last))
    }
}
