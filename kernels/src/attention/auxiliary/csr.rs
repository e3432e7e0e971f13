//! The pages of a batch in the CSR form (offsets, numbers, keys of the last page) as a table with a row for each entry, and
//! lengths.
//!
//! A warp takes a piece of a row, so that one launch reads each number once, and entries with few pages end at once.

use crate::abi::CsrParams;
use crate::ptx::{global, special};

/// The pages of a batch entry among the indices.
struct Pages {
    /// Its first one.
    first: u32,
    /// How many of them the table has room for.
    count: u32,
    /// Keys of the last of these.
    last: u32,
}

impl Pages {
    /// Offsets that fall or lie outside become the nearest ones that do not; pages that the table has no room for are left out.
    ///
    /// # Safety
    /// The batch entry exists, and its offsets and the keys of its last page are readable.
    #[inline(always)]
    unsafe fn of(params: &CsrParams, batch: u32) -> Self {
        // SAFETY: the caller's promise.
        let offset = |index: u64| unsafe { load_i32(params.indptr, index) };
        let index = u64::from(batch);
        let first = offset(index).max(0).min(params.count as i32);
        let end = offset(index + 1).max(first).min(params.count as i32);
        let there = (end - first) as u32;
        // SAFETY: as above.
        let last = unsafe { load_i32(params.last_page, index) };
        Pages {
            first: first as u32,
            count: there.min(params.most),
            last: match there > params.most {
                true => params.keys,
                false => last.max(1).min(params.keys as i32) as u32,
            },
        }
    }

    /// Keys of all of them.
    #[inline(always)]
    fn keys(&self, page: u32) -> u32 {
        match self.count {
            0 => 0,
            count => (count - 1) * page + self.last,
        }
    }
}

/// Number `index` of an array.
///
/// # Safety
/// The number is readable.
#[inline(always)]
unsafe fn load_i32(address: u64, index: u64) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { global::load_u32(address + 4 * index) as i32 }
}

/// Writes pieces of `PAGES` numbers of the table's rows, one a warp, with `W` warps a block, and the lengths.
///
/// # Safety
/// Launched as [`CsrParams`] and the kernel's row of the [catalog](crate::catalog) say, with readable offsets, numbers and keys of
/// last pages, and a writable table and lengths that overlap nothing.
#[inline(always)]
pub unsafe fn csr<const W: u32, const PAGES: u32>(params: &CsrParams) {
    // SAFETY: the launch has this many threads a block.
    let thread = unsafe { special::thread(32 * W) };
    let warp = u64::from(special::block()) * u64::from(W) + u64::from(thread / 32);
    let pieces = u64::from(params.pieces);
    let (batch, piece) = ((warp / pieces) as u32, (warp % pieces) as u32);
    if batch >= params.batch {
        return;
    }
    let lane = thread % 32;
    // SAFETY: the batch entry exists.
    let pages = unsafe { Pages::of(params, batch) };
    if piece == 0 && lane == 0 {
        // SAFETY: this lane alone writes the entry's length.
        unsafe {
            global::store_u32(
                params.lengths + 4 * u64::from(batch),
                pages.keys(params.keys),
            )
        };
    }
    let first = piece * PAGES;
    let end = pages.count.min(first + PAGES);
    let mut page = first + lane;
    while page < end {
        let place = i64::from(batch) * params.table_stride + i64::from(page);
        // SAFETY: the number lies among the indices, for the entry has this page; this lane alone writes its place in the table,
        // which has room for it.
        unsafe {
            let number = load_i32(params.indices, u64::from(pages.first + page));
            global::store_u32(params.table.wrapping_add_signed(4 * place), number as u32);
        }
        page += 32;
    }
}
