//! A warpgroup's rows of a tile, and what they see of a block of keys.

use super::ROWS;
use super::job::{Job, Part, SideBlocks};
use super::kernel::{Kernel, Keys, may_have_gaps};
use crate::abi::{Coverage, ForwardParams};
use crate::attention::Visits;
use crate::attention::options::mask::{Interval, Mask, Visible, whole_blocks, whole_spans};
use crate::attention::options::score::{Corner, Score};
use crate::attention::workload::walk::{Runs, Walk};
use crate::tile::Accumulator;
use crate::tile::registers::again;
use crate::tile::whole::map_rows;
use core::ops::Range;

/// The rows of a warpgroup in its tile. Blocks of keys have the numbers of visits, of the side's.
pub struct Tile<'a, K: Kernel> {
    params: &'a ForwardParams,
    warpgroup: u32,
    /// Where its job lies in shared memory.
    job: u32,
    score: K::Score,
    visits: Visits<K::Mask>,
    side: SideBlocks<K>,
    /// Blocks that the bounds of what the rows see leave whole.
    spans: Range<u32>,
}

impl<'a, K: Kernel> Tile<'a, K> {
    /// The `part` of the job that lies at `place` in shared memory, and the walk over its blocks.
    #[inline(always)]
    pub fn new(
        params: &'a ForwardParams,
        place: u32,
        [side, warpgroup]: [u32; 2],
        job: Job,
        part: &Part<K>,
        score: K::Score,
    ) -> (Self, Walk<Keys<K>>) {
        let visits = job.visits::<K>(params, &part.work, part.work.keys(params));
        let side = SideBlocks::<K>::of(side);
        let seen = visits.of(Part::<K>::new(params, job, 0).blocks(K::BR));
        let mut own = visits.of(part.blocks(ROWS));
        if own.start >= own.end {
            own = seen.start..seen.start;
        }
        let walk = Walk::new(
            seen.start..side.count(seen.end),
            own.start..side.count(own.end),
        );
        let spans = whole_spans(part.ends(ROWS), K::BC);
        let tile = Tile {
            params,
            warpgroup,
            job: place,
            score,
            visits,
            side,
            spans,
        };
        (tile, walk)
    }

    /// The runs of own blocks `first..j`. Maxima are exact down to the last block that the first row sees, so that each row has
    /// seen a key.
    #[inline(always)]
    pub fn runs(&self, part: &Part<K>, first: u32, j: u32) -> Runs<Keys<K>> {
        let ends = part.ends(ROWS);
        let seen = ((ends[0].end() as u32).max(1) - 1) / K::BC;
        let edge = match K::SIDES {
            1 => seen,
            _ => self.side.count(seen + 1).max(1) - 1,
        };
        // With a boolean mask, blocks that it shows whole stand between others.
        let edge = match may_have_gaps::<K>() {
            true => first,
            false => edge,
        };
        Runs::new(first, j, whole_blocks(ends, K::BC).start..edge)
    }

    /// The launch's parameters.
    #[inline(always)]
    pub fn params(&self) -> &ForwardParams {
        self.params
    }

    /// The first key of a block.
    #[inline(always)]
    fn first_key(&self, j: u32) -> u32 {
        self.visits.block(self.side.block(j)) * K::BC
    }

    /// Which pairs of a block a boolean mask shows.
    #[inline(always)]
    fn coverage(&self, j: u32) -> Coverage {
        self.visits.coverage(self.side.block(j), self.warpgroup)
    }

    /// Whether a boolean mask hides a block.
    #[inline(always)]
    pub fn is_hidden(&self, j: u32) -> bool {
        may_have_gaps::<K>() && self.coverage(j) == Coverage::None
    }

    /// Whether a row may see only part of a block of a run at the edge.
    #[inline(always)]
    pub fn is_edge(&self, j: u32) -> bool {
        !may_have_gaps::<K>()
            || self.coverage(j) != Coverage::All
            || !self.spans.contains(&self.visits.block(self.side.block(j)))
    }

    /// The warp's rows of the job.
    #[inline(always)]
    fn warp_part(&self) -> Part<K> {
        // SAFETY: the job stays in its slot as long as the tile is in work.
        let job = unsafe { Job::load(self.job) };
        Part::new(self.params, job, K::tile_row())
    }

    /// The keys of a block that each of the lane's rows sees: all, unless the block `is_edge`.
    #[inline(always)]
    pub fn keys(&self, j: u32, is_edge: bool) -> [Keys<K>; 2] {
        if !is_edge {
            return [Keys::<K>::unbounded(); 2];
        }
        // Held over the tile, it spills 64 bytes with a mask at D = 128.
        let part = again(|| self.warp_part());
        let [keys] = map_rows::<_, 1>(|i| {
            let row = part.first + i as i32;
            let query = part.work.query(row.max(0) as u32);
            part.mask
                .keys_of_block(query, self.first_key(j) as i32)
                .of_coverage(self.coverage(j))
        });
        keys
    }

    /// Turns products with a block's keys into scores.
    #[inline(always)]
    pub fn apply<const NT: usize>(&self, s: &mut [Accumulator; NT], j: u32) {
        if K::Score::SCALED {
            return;
        }
        // Held over the tile, it spills 24 to 116 bytes with ALiBi, up to 960 with a bias.
        let part = again(|| self.warp_part());
        let (sequence, split) = (part.work.sequence, part.work.keys(self.params));
        let corner = Corner::new(part.first, self.first_key(j) as i32, sequence, split);
        let mut tiles = [*s];
        self.score.apply::<false, 1, NT>(&mut tiles, corner);
        [*s] = tiles;
    }
}
