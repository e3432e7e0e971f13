//! What a block computes: a tile of queries, the keys of a split, and which of them the queries see.

use core::hint::assert_unchecked;
use kernels::abi::{ForwardParams, MAX_SEQLEN};
use kernels::attention::WorkTile;
use kernels::attention::options::mask::{Either, Mask, seen_blocks, whole_blocks};
use kernels::attention::options::score::Scaled;
use kernels::attention::workload::heads::OneHead;
use kernels::attention::workload::sequence::Split;

/// A block's work: a tile of queries, on a split of the keys.
pub struct Work {
    /// The tile.
    pub place: WorkTile<OneHead>,
    /// The keys.
    pub split: Split,
    /// Which of them a query sees.
    pub mask: Either,
    /// Blocks of keys that some row sees.
    pub blocks: u32,
    /// Blocks of keys that all rows see whole: the first ones.
    pub whole: u32,
}

/// This block's tile of `br` queries, and its split of the keys.
#[inline(always)]
pub fn tile_and_keys(p: &ForwardParams, br: u32) -> (WorkTile<OneHead>, Split) {
    let place = WorkTile::of_block::<Scaled>(p, br);
    let split = place.keys(p);
    (place, split)
}

impl Work {
    /// This block's, in tiles of `br` queries and blocks of `bc` keys.
    #[inline(always)]
    pub fn of_block(p: &ForwardParams, br: u32, bc: u32) -> Self {
        let (place, split) = tile_and_keys(p, br);
        // Else the mask checks the order of its bounds: in Hopper's kernels, a panic in the code of both roles would make
        // the assembler ignore the consumers' registers.
        // SAFETY: a launch has no longer sequence.
        unsafe { assert_unchecked(split.keys <= MAX_SEQLEN) }
        Work::new(p, place, split, [br, bc])
    }

    /// A tile's, of `br` queries, on a split in blocks of `bc` keys.
    #[inline(always)]
    pub fn new(
        p: &ForwardParams,
        place: WorkTile<OneHead>,
        split: Split,
        [br, bc]: [u32; 2],
    ) -> Self {
        let mask = Either::new(p, place.sequence, split);
        let last = (place.first + br).min(p.seqlen_q) as i32 - 1;
        let ends = [place.first as i32, last].map(|row| mask.keys(row));
        Work {
            blocks: seen_blocks(ends, bc).end,
            whole: whole_blocks(ends, bc).end,
            place,
            split,
            mask,
        }
    }
}
