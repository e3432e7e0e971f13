//! Which tile a block computes, and what its rows see.

use super::kernel::{Kernel, Keys};
use crate::abi::{ForwardParams, MAX_SEQLEN, QueryTile};
use crate::attention::options::mask::{Mask, seen_blocks};
use crate::attention::workload::alternate::tile_head;
use crate::attention::workload::heads::Heads;
use crate::attention::workload::sequence::{Sequence, Split};
use crate::attention::workload::tile::{has_packed_tiles, load_packed_tile};
use crate::attention::{Visits, WorkTile};
use crate::ptx::{barrier, shared, special};
use crate::tile::Ring;
use core::hint::assert_unchecked;
use core::marker::PhantomData;
use core::ops::Range;

/// Which tile a block computes. The producer decides, and the consumers read it from shared memory: where a tile
/// lies takes divisions, and the results would take their registers.
#[derive(Clone, Copy)]
pub struct Job {
    /// The split of the keys.
    pub split: u32,
    /// The batch entry or, of packed queries, the number of the tile.
    batch: u32,
    /// The number of the tile's heads in the batch entry.
    head: u32,
    /// The first row. Tiles end at the last row, so that the first one may start before the first row that exists: the tile that
    /// lacks rows is the one with the fewest keys.
    first: i32,
}

impl Job {
    /// No tile is left.
    pub const NONE: Self = Job {
        split: u32::MAX,
        batch: 0,
        head: 0,
        first: 0,
    };

    /// The job at a place of the order.
    #[inline(always)]
    pub fn at<K: Kernel>(params: &ForwardParams, place: u32) -> Self {
        let (split, tile, head) = params.order.place_in_uneven(place);
        let (batch, head) = tile_head::<K::Mask>(params, head);
        if has_packed_tiles::<K::Score>() {
            let QueryTile {
                first, start, end, ..
            } = load_packed_tile(params, tile);
            let rows = end - start;
            // A tile without rows lies before the first one.
            let tiles = rows.max(1).div_ceil(K::BR);
            return Job {
                split,
                batch: tile,
                head,
                first: (first + rows) as i32 - (tiles * K::BR) as i32,
            };
        }
        let rows = K::Heads::new(params, head).row_count(Sequence::new(params, batch).queries);
        Job {
            split,
            batch,
            head,
            first: (tile * K::BR + rows) as i32 - (rows.div_ceil(K::BR) * K::BR) as i32,
        }
    }

    /// The blocks of keys that the tile visits, on `split`, which is the work's.
    #[inline(always)]
    pub fn visits<K: Kernel>(
        self,
        params: &ForwardParams,
        work: &WorkTile<K::Heads>,
        split: Split,
    ) -> Visits<K::Mask> {
        let rows = work.row_count::<K::Score>();
        let tile = (self.first - rows as i32) as u32;
        let tile = tile.wrapping_add(rows.div_ceil(K::BR) * K::BR) / K::BR;
        work.visits(params, split, tile, K::BC)
    }

    /// Reads a job from shared memory.
    ///
    /// # Safety
    /// Another [`store`](Self::store) wrote it there, visible to this thread.
    #[inline(always)]
    pub unsafe fn load(address: u32) -> Self {
        // SAFETY: the caller's promise.
        let [split, batch, head, first] = unsafe { shared::load_u32x4(address) };
        let first = first as i32;
        Job {
            split,
            batch,
            head,
            first,
        }
    }

    /// Writes the job to shared memory.
    ///
    /// # Safety
    /// `address` is a multiple of 16 in the block's shared memory, and no other thread uses these 16 bytes.
    #[inline(always)]
    pub unsafe fn store(self, address: u32) {
        // SAFETY: the caller's promise.
        unsafe {
            shared::store_u32x4(
                address,
                [self.split, self.batch, self.head, self.first as u32],
            );
        }
    }
}

impl Job {
    /// Writes the job for the consumers of a slot of Q, once that is free: to `place`, where `full` is the slot's first barrier.
    ///
    /// # Safety
    /// All lanes of the producer's warp make the same call; the barriers are initialised, and only such calls write there.
    #[inline(always)]
    pub unsafe fn give<const NQ: u32>(self, q: Ring<NQ>, full: u32, place: u32) {
        // SAFETY: the caller's promise. One lane writes a job, before another one may arrive.
        unsafe {
            q.acquire(full);
            if special::lane() == 0 {
                self.store(place);
            }
            barrier::warp();
        }
    }

    /// Waits for Q in a slot; gives the job that came with it, by [`give`](Self::give) with these places.
    ///
    /// # Safety
    /// The barriers are initialised, and the producer gives a job for the slot.
    #[inline(always)]
    pub unsafe fn take<const NQ: u32>(q: Ring<NQ>, full: u32, place: u32) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            q.wait(full);
            Job::load(place)
        }
    }
}

/// A tile, its mask, and the rows that a block or a warpgroup has of it.
pub struct Part<K: Kernel> {
    /// The tile; its own first row is not used.
    pub work: WorkTile<K::Heads>,
    /// Which keys its queries see.
    pub mask: K::Mask,
    /// The first row.
    pub first: i32,
    /// Keys before the split.
    pub keys: u32,
}

impl<K: Kernel> Part<K> {
    /// The rows of a job from row `skip` of its tile on.
    #[inline(always)]
    pub fn new(params: &ForwardParams, job: Job, skip: u32) -> Self {
        let work = WorkTile::new::<K::Score>(params, job.split, job.batch, job.head, 0);
        let split = work.keys(params);
        // Else the mask checks the order of its bounds, and the code that both roles then share makes the assembler
        // ignore the consumers' registers.
        // SAFETY: a launch has no longer sequence.
        unsafe { assert_unchecked(split.keys <= MAX_SEQLEN) }
        Part {
            mask: work.mask(params, split),
            first: job.first + skip as i32,
            keys: split.first,
            work,
        }
    }

    /// The rows of the tile that exist.
    #[inline(always)]
    pub fn rows(&self) -> Range<i32> {
        self.work.first_row::<K::Score>()..self.work.row_count::<K::Score>() as i32
    }

    /// The keys that the first and the last of `count` rows see, among rows that exist.
    #[inline(always)]
    pub fn ends(&self, count: u32) -> [Keys<K>; 2] {
        let last = self.first + count as i32 - 1;
        [self.keys_of(self.first), self.keys_of(last)]
    }

    /// The keys of a row, or of the first row if it lies before it.
    #[inline(always)]
    fn keys_of(&self, row: i32) -> Keys<K> {
        let row = row.max(self.work.first_row::<K::Score>());
        self.mask.keys(self.work.query(row as u32))
    }

    /// The blocks that some of the first `count` rows see: none if no such row exists.
    #[inline(always)]
    pub fn blocks(&self, count: u32) -> Range<u32> {
        self.blocks_of(count, K::BC)
    }

    /// [`blocks`](Self::blocks) of `size` keys.
    #[inline(always)]
    pub fn blocks_of(&self, count: u32, size: u32) -> Range<u32> {
        match self.first + count as i32 > self.work.first_row::<K::Score>() {
            true => seen_blocks(self.ends(count), size),
            false => 0..0,
        }
    }
}

/// The blocks of keys that a side takes: numbers `side`, `side + SIDES`, and so on.
pub struct SideBlocks<K> {
    side: u32,
    kernel: PhantomData<K>,
}

impl<K: Kernel> SideBlocks<K> {
    /// The blocks of a side.
    #[inline(always)]
    pub fn of(side: u32) -> Self {
        SideBlocks {
            side,
            kernel: PhantomData,
        }
    }

    /// How many of the first `blocks` blocks it takes.
    #[inline(always)]
    pub fn count(&self, blocks: u32) -> u32 {
        match K::SIDES {
            1 => blocks,
            sides => (blocks + sides - 1 - self.side) / sides,
        }
    }

    /// The number among all blocks of its block number `j`.
    #[inline(always)]
    pub fn block(&self, j: u32) -> u32 {
        match K::SIDES {
            1 => j,
            sides => sides * j + self.side,
        }
    }
}
