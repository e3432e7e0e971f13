//! Who the thread is, the job of its block, and the query tile of a step.

use super::kernel::Kernel;
use super::memory::Memory;
use crate::abi::{BackwardParams, ForwardParams};
use crate::attention::backward::job::{Job, Step};
use crate::attention::options::mask::{Interval, Mask};
use crate::attention::options::score::Corner;
use crate::ptx::{barrier, shared, special};
use crate::tile::SharedTile;
use crate::tile::registers::opaque_in;
use crate::tile::whole::map_rows;

/// A block, seen by one of its threads.
pub struct Block<'a, K, const MT: usize, const DT: usize, const NT: usize> {
    /// Parameters of the launch.
    pub params: &'a BackwardParams,
    /// Those that the forward pass has, too.
    pub forward: &'a ForwardParams,
    /// Shared memory.
    pub memory: Memory<K, DT, NT>,
}

/// The query tile of a step.
#[derive(Clone, Copy)]
pub struct QueryTile<const DT: usize> {
    /// Step.
    pub step: Step,
    /// Stage of Q, dO and dS: steps take the two in turns.
    pub stage: u32,
    /// First query.
    pub first: u32,
    /// Whether a query does not see all keys.
    pub masked: bool,
    /// Side of the warp.
    pub side: u32,
    /// Right factor of the warp's first product: Q on side 0, dO on side 1.
    pub near: SharedTile<DT>,
    /// Right factor of its second product: dO on side 0, Q on side 1.
    pub far: SharedTile<DT>,
    /// Address of the row statistics: lse on side 0, delta on side 1.
    pub rows: u32,
}

impl<'a, K: Kernel, const MT: usize, const DT: usize, const NT: usize> Block<'a, K, MT, DT, NT> {
    /// Queries of a step (Br).
    pub const BR: u32 = 16 * NT as u32;

    /// The block of a launch.
    #[inline(always)]
    pub fn new(params: &'a BackwardParams) -> Self {
        Block {
            params,
            forward: &params.forward,
            memory: Memory::new(),
        }
    }

    /// The thread, read where it is used, in each step and, by another number of the step, once more: held, it spills 48 bytes at
    /// D = 128.
    #[inline(always)]
    pub fn thread(&self, step: u32) -> u32 {
        // SAFETY: the launch has this many threads a block.
        opaque_in(unsafe { special::thread(K::THREADS) }, step)
    }

    /// The warp.
    #[inline(always)]
    pub fn warp(&self, step: u32) -> u32 {
        self.thread(step) / 32
    }

    /// The side of the warp.
    #[inline(always)]
    pub fn side(&self, step: u32) -> u32 {
        // By a constant: of a variable the compiler asks whether it is 0, and may rotate the loop that begins with the question.
        self.warp(step) / K::PAIRS
    }

    /// The warp's pair.
    #[inline(always)]
    pub fn pair(&self, step: u32) -> u32 {
        self.warp(step) % K::PAIRS
    }

    /// The first of the warp's keys in the block.
    #[inline(always)]
    pub fn warp_key(&self, step: u32) -> u32 {
        self.pair(step) * 16 * MT as u32
    }

    /// The warp's rows of K or V, later of dV or dK.
    #[inline(always)]
    pub fn own(&self, step: u32) -> SharedTile<DT> {
        let row = self.side(step) * K::BC + self.warp_key(step);
        self.memory.k.skip(row)
    }

    /// The warp's rows of dS, where before P passes from lane to lane.
    #[inline(always)]
    pub fn passed(&self, tile: QueryTile<DT>) -> SharedTile<NT> {
        let row = self.warp_key(tile.step.head);
        self.memory.ds(tile.stage).skip(row)
    }

    /// Finds the block's job, for all threads.
    ///
    /// # Safety
    /// All threads of the block make the same call, before all others that use the job.
    #[inline(always)]
    pub unsafe fn take_job(&self) {
        // SAFETY: the caller's promise.
        unsafe {
            if self.thread(0) == 0 {
                let (sizes, descends) = ([K::BC, Self::BR], K::Mask::descends());
                let job = Job::<K::Mask>::at(self.forward, special::block(), sizes, descends);
                shared::store_u32x4(self.memory.job, job.words());
            }
            barrier::block();
        }
    }

    /// The block's job, read where it is used.
    #[inline(always)]
    pub fn job(&self) -> Job<K::Mask> {
        // SAFETY: `take_job` has written it.
        let words = unsafe { shared::load_u32x4(self.memory.job) };
        Job::of(self.forward, words, K::BC, Self::BR)
    }

    /// Whether a query sees one of the keys. Without a window the last one sees them all.
    #[inline(always)]
    pub fn sees(&self) -> bool {
        !<K::Mask as Mask>::Keys::HAS_START || {
            let job = self.job();
            job.first < job.end
        }
    }

    /// Whether the job has a step.
    #[inline(always)]
    pub fn more(&self, step: Step) -> bool {
        step.head < self.forward.group.value && self.sees()
    }

    /// The first query of a step. The job is read only where it matters.
    #[inline(always)]
    pub fn first_query(&self, step: Step) -> u32 {
        match K::Mask::HAS_HEADS {
            true => self.job().query_tile(step) * Self::BR,
            false => step.tile * Self::BR,
        }
    }

    /// Whether a query of a tile does not see all keys: one beyond the last is seen by none.
    #[inline(always)]
    pub fn masked(&self, first: u32) -> bool {
        self.job().masks(first, [K::BC, Self::BR])
    }

    /// The query tile of a step.
    #[inline(always)]
    pub fn query_tile(&self, step: Step) -> QueryTile<DT> {
        let stage = step.number(&self.job()) % 2;
        let first = self.first_query(step);
        let masked = self.masked(first);
        let side = self.side(first);
        let q = self.memory.q(stage);
        QueryTile {
            step,
            stage,
            first,
            masked,
            side,
            near: q.skip(side * Self::BR),
            far: q.skip((1 - side) * Self::BR),
            rows: self.memory.statistics(stage) + side * 4 * Self::BR,
        }
    }

    /// The queries that see each of the lane's keys in `N` tiles of 16 from number `first` on, counted from the tile's first one.
    #[inline(always)]
    pub fn seen<const N: usize>(
        &self,
        tile: QueryTile<DT>,
        first: usize,
    ) -> [[<K::Mask as Mask>::Queries; 2]; N] {
        let job = self.job().of_head(self.forward, tile.step.head);
        let key = job.first_key + self.warp_key(tile.step.head) + 16 * first as u32;
        map_rows(|i| job.queries(key + i).counted_from(tile.first as i32))
    }

    /// The tile's first query and the warp's first key.
    #[inline(always)]
    pub fn corner(&self, job: &Job<K::Mask>, tile: QueryTile<DT>) -> Corner {
        let key = job.first_key + self.warp_key(tile.step.head);
        let whole = job.sequence.whole();
        Corner::new(tile.first as i32, key as i32, job.sequence, whole)
    }
}
