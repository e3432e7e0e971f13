//! The walk of query rows over blocks of keys, from the last block to the first, so that masked blocks come first.
//!
//! ```text
//! tile.start .. own.start | edge | whole | edge | own.end .. tile.end
//!          passed          <------ j counts down          passed
//! ```
//!
//! A tile visits the blocks that some of its rows see. Of these a warp's or a warpgroup's rows see their own, and pass the
//! others. At an edge some row sees only part of a block; every row sees all of a whole one.

use crate::attention::options::mask::Interval;
use core::marker::PhantomData;
use core::ops::Range;

/// The blocks that a tile visits, and those that some rows of it see: their own.
#[derive(Clone, Copy, Debug)]
pub struct Walk<I> {
    start: u32,
    end: u32,
    own_start: u32,
    own_end: u32,
    keys: PhantomData<I>,
}

impl<I: Interval> Walk<I> {
    /// The walk over the visits of a `tile` by rows that see `own` of them, which may be none.
    #[inline(always)]
    pub fn new(tile: Range<u32>, own: Range<u32>) -> Self {
        Walk {
            start: tile.start,
            end: tile.end,
            own_start: own.start,
            own_end: own.end,
            keys: PhantomData,
        }
    }

    /// The visits, all of which are left at first.
    #[inline(always)]
    pub fn end(&self) -> u32 {
        self.end
    }

    /// Whether the rows pass block `j - 1` before their own ones.
    #[inline(always)]
    pub fn passes_first(&self, j: u32) -> bool {
        j > self.own_end
    }

    /// Whether the rows see block `j - 1`, after the ones that they [pass](Self::passes_first).
    #[inline(always)]
    pub fn sees(&self, j: u32) -> bool {
        j > self.own_start
    }

    /// Whether the rows pass block `j - 1` after their own ones: not where keys have no start, since the first block is then
    /// everyone's.
    #[inline(always)]
    pub fn passes_last(&self, j: u32) -> bool {
        I::HAS_START && j > self.start
    }

    /// Visits that are left to the tile before block `j`.
    #[inline(always)]
    pub fn left(&self, j: u32) -> u32 {
        j - self.start
    }

    /// The first own block.
    #[inline(always)]
    pub fn own_start(&self) -> u32 {
        self.own_start
    }
}

/// Own blocks in runs: at the edge, whole and, where keys have a start, at the other edge.
#[derive(Clone, Copy, Debug)]
pub struct Runs<I> {
    first: u32,
    edge: u32,
    whole: u32,
    keys: PhantomData<I>,
}

impl<I: Interval> Runs<I> {
    /// The runs of blocks `first..j`, of which block `j - 1` is at the edge whatever it shows: it sets the maxima. Of the
    /// others, `whole` are whole.
    #[inline(always)]
    pub fn new(first: u32, j: u32, whole: Range<u32>) -> Self {
        Runs {
            first,
            edge: whole.end.min(j.saturating_sub(1)).max(first),
            whole: whole.start.max(first),
            keys: PhantomData,
        }
    }

    /// Blocks `edge..j` are at the edge.
    #[inline(always)]
    pub fn edge(&self) -> u32 {
        self.edge
    }

    /// Blocks `whole..j`, below the ones at the edge, are whole.
    #[inline(always)]
    pub fn whole(&self) -> u32 {
        self.whole
    }

    /// Goes on to the other edge, below the whole blocks, if blocks are left there.
    #[inline(always)]
    pub fn has_other_edge(&mut self, j: u32) -> bool {
        if !I::HAS_START || j == self.first {
            return false;
        }
        self.edge = self.first;
        true
    }
}
