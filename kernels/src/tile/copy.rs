//! Copies of tiles between global and shared memory.
//!
//! [`Share`] says which chunks fall to a thread. Rows past the end of the sequence and columns past
//! the head dim read as zeros and are never stored.
//!
//! What is loaded lies in rows that start at multiples of 16 bytes; the host sees to that, with a
//! [copy](crate::attention::pack) if need be. What is stored may lie anywhere: rows that start elsewhere are
//! stored element by element, once, after the main loop.

use super::registers::opaque;
use super::{Arrangement, Element, Fixed, Operand, SharedTile};
use crate::abi::Divisor;
use crate::layout::{
    share::Share,
    swizzle::{CHUNK_BYTES, Swizzle},
};
use crate::ptx::{cp_async, global, shared};

/// Rows in global memory: those of one head or, if `PACKED`, those of a group of heads in turns:
/// every head's first, every head's second, and so on.
#[derive(Clone, Copy)]
pub struct GlobalRows<const PACKED: bool> {
    /// Address of the first head's row 0.
    pub address: u64,
    /// Bytes from a head's row to its next.
    pub row_bytes: i64,
    /// Bytes from a head to the next, if packed.
    pub head_bytes: i64,
    /// Heads of the group, if packed.
    pub group: Divisor,
    /// Rows skipped, if packed.
    pub first: u32,
    /// Elements of a row.
    pub dim: u32,
}

impl<const PACKED: bool> GlobalRows<PACKED> {
    /// Without the first `rows` rows.
    #[inline(always)]
    pub fn skip(self, rows: u32) -> Self {
        if PACKED {
            let first = self.first + rows;
            GlobalRows { first, ..self }
        } else {
            let address = self.at(rows);
            GlobalRows { address, ..self }
        }
    }

    /// Address of a row.
    #[inline(always)]
    pub fn at(&self, row: u32) -> u64 {
        let offset = if PACKED {
            let row = self.first + row;
            let (query, head) = self.group.divide(row);
            i64::from(query) * self.row_bytes + i64::from(head) * self.head_bytes
        } else {
            i64::from(row) * self.row_bytes
        };
        self.address.wrapping_add_signed(offset)
    }

    /// Address of a row, from that of the one `down` rows above it.
    #[inline(always)]
    fn below(&self, above: u64, down: u32, row: u32) -> u64 {
        if PACKED {
            self.at(row)
        } else {
            above.wrapping_add_signed(i64::from(down) * self.row_bytes)
        }
    }
}

/// One thread's share of copying tiles of rows: of every tile, the chunks at and below its first,
/// and those to their right.
#[derive(Clone, Copy)]
pub struct Copier<const DT: usize, const PACKED: bool, A: Arrangement = Fixed> {
    /// From the thread's first chunk of the tile at row 0 on.
    rows: GlobalRows<PACKED>,
    share: Share,
    /// Bytes from a tile's start to the thread's first chunk of it.
    offset: u32,
    /// Elements that exist from the thread's first on.
    columns: u32,
    arrangement: A,
}

impl<const DT: usize, const PACKED: bool> Copier<DT, PACKED> {
    /// The share of `thread` when `threads` threads copy together.
    #[inline(always)]
    pub fn new(rows: GlobalRows<PACKED>, thread: u32, threads: u32) -> Self {
        Self::arranged(rows, thread, threads, Fixed)
    }
}

impl<const DT: usize, const PACKED: bool, A: Arrangement> Copier<DT, PACKED, A> {
    /// The share of `thread` when `threads` threads copy together, for tiles of an arrangement.
    #[inline(always)]
    pub fn arranged(rows: GlobalRows<PACKED>, thread: u32, threads: u32, arrangement: A) -> Self {
        let share = Share::new(thread, threads, SharedTile::<DT>::CHUNKS);
        let right = u64::from(share.chunk * CHUNK_BYTES);
        let mut rows = rows.skip(share.row);
        rows.address = rows.address.wrapping_add(right);
        Copier {
            rows,
            share,
            offset: Self::swizzle(arrangement).offset(share.row, share.chunk),
            columns: rows.dim.saturating_sub(8 * share.chunk),
            arrangement,
        }
    }

    #[inline(always)]
    fn swizzle(arrangement: A) -> Swizzle {
        arrangement.swizzle::<DT>()
    }

    /// The share of copying the tiles that start so many columns further, a multiple of 8.
    #[inline(always)]
    pub fn skip_columns(mut self, columns: u32) -> Self {
        self.rows.address = self.rows.address.wrapping_add(2 * u64::from(columns));
        self.columns = self.columns.saturating_sub(columns);
        self
    }

    /// Starts loading `rows` rows from row `first` on into `to`; of these, `exist` exist and the
    /// others become zeros. The tile is there after a [`cp_async::wait`] and a barrier.
    ///
    /// # Safety
    /// All sharing threads make the same call, nobody uses `to` until then, and what exists is
    /// readable, in rows that start at multiples of 16 bytes.
    #[inline(always)]
    pub unsafe fn load(&self, to: SharedTile<DT, A>, first: u32, rows: u32, exist: u32) {
        let steps = rows / self.share.rows_per_step;
        self.for_each_chunk(to, first, steps, exist, |shared, global, _, exists| {
            // SAFETY: each chunk of `to` is written by one thread; what exists is readable.
            unsafe { cp_async::copy16(shared, global, if exists { 16 } else { 0 }) }
        });
    }

    /// As [`load`](Self::load) of rows that all exist or, unless `there`, of zeros, whatever `first`:
    /// without a branch, so that the copies mix with what comes after.
    ///
    /// # Safety
    /// As [`load`](Self::load).
    #[inline(always)]
    pub unsafe fn load_whole(&self, to: SharedTile<DT, A>, first: u32, rows: u32, there: bool) {
        let steps = rows / self.share.rows_per_step;
        self.for_each_chunk(to, first, steps, rows, |shared, global, _, exists| {
            // SAFETY: each chunk of `to` is written by one thread; what exists is readable.
            unsafe { cp_async::copy16(shared, global, if exists && there { 16 } else { 0 }) }
        });
    }

    /// Whether one of the chunks that this thread loaded into the `rows` rows of a tile holds an infinity
    /// or a NaN.
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

    /// Stores the first `exist` of the `rows` rows of `from` to row `first` and on, in 16-byte pieces
    /// if `aligned`: if all rows start at multiples of 16 bytes and have multiples of 8 elements.
    ///
    /// # Safety
    /// All sharing threads make the same call, `from` is written and visible to them, and what
    /// exists is writable, by nobody else.
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
        self.for_each_chunk(
            from,
            first,
            steps,
            exist,
            |shared, global, right, exists| {
                if !exists {
                    return;
                }
                // SAFETY: the caller's promise.
                unsafe {
                    let elements = shared::load_u32x4(shared);
                    if aligned {
                        global::store_u32x4(global, elements);
                    } else {
                        global::store_elements(global, elements, self.columns - 8 * right);
                    }
                }
            },
        );
    }

    /// Calls `f(shared address, global address, chunks right of the first, whether it exists)` for each
    /// of the thread's chunks of a tile. Addresses advance by additions, so that few of them are alive at
    /// a time.
    #[inline(always)]
    fn for_each_chunk(
        &self,
        tile: SharedTile<DT, A>,
        first: u32,
        steps: u32,
        exist: u32,
        mut f: impl FnMut(u32, u64, u32, bool),
    ) {
        // Opaque: an addition for each tile and a comparison for each chunk are cheaper than their
        // results in registers for good.
        let shared = tile.base + opaque(self.offset);
        let columns = opaque(self.columns);
        let mut global = self.rows.at(first);
        for step in 0..steps {
            let down = step * self.share.rows_per_step;
            for group in 0..SharedTile::<DT>::CHUNKS / self.share.lanes {
                let right = group * self.share.lanes;
                let exists = self.share.row + down < exist && 8 * right < columns;
                f(
                    Self::swizzle(self.arrangement).step(shared, down, right),
                    global + u64::from(right * CHUNK_BYTES),
                    right,
                    exists,
                );
            }
            let next = first + down + self.share.rows_per_step;
            global = self.rows.below(global, self.share.rows_per_step, next);
        }
    }
}
