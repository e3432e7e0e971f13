//! Copies of tiles between global and shared memory.
//!
//! [`Share`] says which chunks a thread copies. Rows past the end of the sequence and columns past
//! the head dim read as zeros and are never stored.
//!
//! Rows that a kernel loads start at multiples of 16 bytes; the host makes an aligned
//! [copy](crate::attention::auxiliary::pack) of others. Rows that it stores may start anywhere: unaligned rows leave
//! element by element, once, after the main loop.

use super::registers::opaque;
use super::{Arrangement, Element, Fixed, Operand, SharedTile};
use crate::layout::element::{BYTES, CHUNK};
use crate::layout::{rows::Rows, share::Share, swizzle::CHUNK_BYTES};
use crate::ptx::{cp_async, global, shared};

/// Rows whose pages are read together: a copy that waits for each of them takes as long as all these loads.
const AHEAD: usize = 4;

/// One thread's share of copying tiles: in every tile the thread's first chunk, chunks below it, and chunks to
/// their right.
#[derive(Clone, Copy)]
pub struct Copier<const DT: usize, R: Rows, A: Arrangement = Fixed> {
    /// Where the thread's first chunk of the tile at row 0 lies, and the rows after it.
    rows: R,
    share: Share,
    /// Bytes from a tile's start to the thread's first chunk of it.
    offset: u32,
    /// Elements of a row from the thread's first one to the end.
    columns: u32,
    arrangement: A,
}

impl<const DT: usize, R: Rows> Copier<DT, R> {
    /// The share of `thread` when `threads` threads copy together.
    #[inline(always)]
    pub fn new(rows: R, thread: u32, threads: u32) -> Self {
        Self::arranged(rows, thread, threads, Fixed)
    }
}

impl<const DT: usize, R: Rows, A: Arrangement> Copier<DT, R, A> {
    /// The share of `thread` when `threads` threads copy together, for tiles of an arrangement.
    #[inline(always)]
    pub fn arranged(rows: R, thread: u32, threads: u32, arrangement: A) -> Self {
        let share = Share::new(thread, threads, SharedTile::<DT>::CHUNKS);
        let rows = rows
            .skip(share.row)
            .skip_bytes(u64::from(share.chunk * CHUNK_BYTES));
        Copier {
            rows,
            share,
            offset: arrangement.swizzle::<DT>().offset(share.row, share.chunk),
            columns: rows.elements().saturating_sub(CHUNK * share.chunk),
            arrangement,
        }
    }

    /// The share of copying the tiles `columns` columns to the right, whole chunks.
    #[inline(always)]
    pub fn skip_columns(mut self, columns: u32) -> Self {
        self.rows = self.rows.skip_bytes(u64::from(BYTES) * u64::from(columns));
        self.columns = self.columns.saturating_sub(columns);
        self
    }

    /// Starts to load `rows` rows from row `first` on into `to`: `exist` of them exist, the others become
    /// zeros. The tile is there after a [`cp_async::wait`] and a barrier.
    ///
    /// # Safety
    /// All sharing threads make the same call, and no thread uses `to` until then. The rows that exist are
    /// readable and start at multiples of 16 bytes.
    #[inline(always)]
    pub unsafe fn load(&self, to: SharedTile<DT, A>, first: u32, rows: u32, exist: u32) {
        let steps = rows / self.share.rows_per_step;
        self.for_each_chunk(to, first, steps, exist, |shared, global, _, exists| {
            // SAFETY: one thread writes each chunk of `to`; chunks that exist are readable.
            unsafe { cp_async::copy16(shared, global, if exists { 16 } else { 0 }) }
        });
    }

    /// [`load`](Self::load) of rows that all exist or, unless `there`, of zeros. It has no branch, so that the
    /// assembler mixes the copies with the instructions after them.
    ///
    /// # Safety
    /// The conditions of [`load`](Self::load).
    #[inline(always)]
    pub unsafe fn load_whole(&self, to: SharedTile<DT, A>, first: u32, rows: u32, there: bool) {
        let steps = rows / self.share.rows_per_step;
        self.for_each_chunk(to, first, steps, rows, |shared, global, _, exists| {
            // SAFETY: one thread writes each chunk of `to`; chunks that exist are readable.
            unsafe { cp_async::copy16(shared, global, if exists && there { 16 } else { 0 }) }
        });
    }

    /// Whether the chunks that this thread loaded into the `rows` rows of a tile hold an infinity or a NaN.
    ///
    /// # Safety
    /// This thread's copies have landed.
    #[inline(always)]
    pub unsafe fn loaded_non_finite<E: Element>(&self, tile: SharedTile<DT, A>, rows: u32) -> bool {
        let steps = rows / self.share.rows_per_step;
        let mut found = 0;
        self.for_each_chunk(tile, 0, steps, rows, |shared, _, _, _| {
            // SAFETY: the caller's promise.
            found |= Operand(unsafe { shared::load_u32x4(shared) }).non_finite::<E>();
        });
        found != 0
    }

    /// Stores the first `exist` of the `rows` rows of `from` to the rows from `first` on. `aligned` says that all
    /// rows start at multiples of 16 bytes and have whole chunks of elements: they leave in 16-byte pieces.
    ///
    /// # Safety
    /// All sharing threads make the same call, `from` is written and visible to them, and the rows that exist are
    /// writable by these threads alone.
    #[inline(always)]
    pub unsafe fn store(
        &self,
        from: SharedTile<DT, A>,
        first: u32,
        rows: u32,
        exist: u32,
        aligned: bool,
    ) {
        let steps = rows / self.share.rows_per_step;
        let store = |shared: u32, global: u64, right: u32, exists: bool| {
            if !exists {
                return;
            }
            // SAFETY: the caller's promise.
            unsafe {
                let elements = shared::load_u32x4(shared);
                if aligned {
                    global::store_u32x4(global, elements);
                } else {
                    global::store_elements(global, elements, self.columns - CHUNK * right);
                }
            }
        };
        self.for_each_chunk(from, first, steps, exist, store);
    }

    /// Calls `f(shared address, global address, chunks right of the first, whether it exists)` for each
    /// of the thread's chunks of a tile. Addresses advance by additions, so that few registers hold them.
    #[inline(always)]
    fn for_each_chunk(
        &self,
        tile: SharedTile<DT, A>,
        first: u32,
        steps: u32,
        exist: u32,
        mut f: impl FnMut(u32, u64, u32, bool),
    ) {
        // Opaque: an addition a tile and a comparison a chunk are cheaper than registers for their results. Held, the first takes
        // 2 registers or 14 instructions more, the other spills 16 to 80 bytes at D = 128.
        let shared = tile.base + opaque(self.offset);
        let columns = opaque(self.columns);
        let mut global = self.rows.at(first);
        let mut pages = [0; AHEAD];
        for step in 0..steps {
            let down = step * self.share.rows_per_step;
            let ahead = step as usize % AHEAD;
            if ahead == 0 {
                for i in 0..AHEAD as u32 {
                    let down = down + i * self.share.rows_per_step;
                    pages[i as usize] = self.rows.page(first + down);
                }
            }
            let row = self.rows.in_page(global, pages[ahead], first + down);
            for group in 0..SharedTile::<DT>::CHUNKS / self.share.lanes {
                let right = group * self.share.lanes;
                let exists = self.share.row + down < exist && CHUNK * right < columns;
                f(
                    self.arrangement.swizzle::<DT>().step(shared, down, right),
                    row + u64::from(right * CHUNK_BYTES),
                    right,
                    exists,
                );
            }
            let next = first + down + self.share.rows_per_step;
            global = self.rows.below(global, self.share.rows_per_step, next);
        }
    }
}
