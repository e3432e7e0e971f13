//! The block's rows, and what they see.

use super::MT;
use crate::abi::ForwardParams;
use crate::attention::forward::begin;
use crate::attention::options::mask::{Mask, Visible, seen_blocks, whole_blocks};
use crate::attention::options::score::Score;
use crate::attention::workload::heads::Heads;
use crate::attention::workload::sequence::Split;
use crate::attention::workload::walk::Walk;
use crate::attention::{Visits, WorkTile};
use crate::tile::whole::map_rows;
use core::ops::Range;

/// The block's rows, and what they see. Blocks of `bc` keys have the numbers of visits.
pub struct Tile<'a, M: Mask, H> {
    pub params: &'a ForwardParams,
    pub work: WorkTile<H>,
    pub split: Split,
    mask: M,
    visits: Visits<M>,
    pub br: u32,
    pub bc: u32,
    /// Blocks that every row sees whole.
    whole: Range<u32>,
}

impl<'a, M: Mask, H: Heads> Tile<'a, M, H> {
    /// The tile, and the walk of its rows over the blocks that some row sees.
    #[inline(always)]
    pub fn new<C: Score>(params: &'a ForwardParams, br: u32, bc: u32) -> (Self, Walk<M::Keys>) {
        let work = WorkTile::<H>::of_block::<C>(params, br);
        let (first, split) = (work.first, work.keys(params));
        let mask = work.mask::<M>(params, split);
        let ends = begin::ends(&work, &mask, first, br);
        let visits = work.visits::<M>(params, split, first / br, bc);
        let seen = visits.of(seen_blocks(ends, bc));
        let tile = Tile {
            params,
            work,
            split,
            mask,
            visits,
            br,
            bc,
            whole: whole_blocks(ends, bc),
        };
        (tile, Walk::new(seen.clone(), seen))
    }

    /// The first key of a block.
    #[inline(always)]
    pub fn first_key(&self, j: u32) -> u32 {
        self.visits.block(j) * self.bc
    }

    /// Whether a row may see only part of a block.
    #[inline(always)]
    pub fn is_edge(&self, j: u32) -> bool {
        !self.whole.contains(&j)
    }

    /// The keys of block `j` that each of the lane's rows from `row` on sees, counted from the block's key `key`.
    #[inline(always)]
    pub fn keys(&self, row: u32, j: u32, key: u32) -> [[M::Keys; 2]; MT] {
        let first_key = key as i32;
        map_rows(|i| {
            let query = self.work.query(self.work.first + row + i);
            let keys = self.mask.keys_of_block(query, first_key);
            keys.of_coverage(self.visits.coverage(j, 0))
        })
    }
}
