//! Packed sequences, copied to where each begins at a multiple of a step, and back.
//!
//! Blocks of rows then hold rows of one sequence alone, from its first one on, whatever lies before it: sums over them have the
//! same order in every batch.
//!
//! A quarter of a warp takes a row, 16 bytes a lane at a time.

use crate::abi::{SpreadParams, first_spread_row};
use crate::layout::element::{self, CHUNK};
use crate::ptx::{global, special};

/// Lanes of a row.
const LANES: u32 = 8;

/// A row of the tensor or of the copy.
struct Row {
    head: u32,
    row: u32,
    /// The lane among those of the row.
    lane: u32,
}

impl Row {
    /// The thread's row, of `rows` rows of each head.
    ///
    /// # Safety
    /// The block has `W` warps.
    #[inline(always)]
    unsafe fn of_thread<const W: u32>(rows: u32) -> Option<Self> {
        let br = 32 / LANES * W;
        let tiles = rows.div_ceil(br);
        let (head, tile) = (special::block() / tiles, special::block() % tiles);
        // SAFETY: the caller's promise.
        let thread = unsafe { special::thread(32 * W) };
        let row = tile * br + thread / LANES;
        let lane = thread % LANES;
        (row < rows).then_some(Row { head, row, lane })
    }
}

/// Copies the block's rows of the copy, four a warp, with `W` warps a block.
///
/// # Safety
/// Launched as [`SpreadParams`] and the kernel's row of the [catalog](crate::catalog) say, with readable offsets, a readable
/// tensor, and a writable copy that does not overlap it.
#[inline(always)]
pub unsafe fn spread<const W: u32>(params: &SpreadParams) {
    // SAFETY: the launch has this many threads a block.
    let Some(Row { head, row, lane }) = (unsafe { Row::of_thread::<W>(params.rows) }) else {
        return;
    };
    // SAFETY: offsets are readable.
    let source = unsafe { row_of_tensor(params, row) };
    let to = |row, chunk| copied(params, head, row, chunk);
    if params.numbers != 0 {
        if lane == 0 {
            // SAFETY: a row of the tensor; this lane alone writes the number.
            unsafe {
                let number = source.map_or(0, |row| global::load_u32(number_at(params, head, row)));
                global::store_u32(to(row, 0), number);
            }
        }
        return;
    }
    let mut chunk = lane;
    while chunk < params.dim.div_ceil(CHUNK) {
        let column = chunk * CHUNK;
        // SAFETY: a row of the tensor; this lane alone writes the chunk.
        unsafe {
            let elements = match source {
                None => [0; 4],
                Some(row) if params.aligned == 0 => {
                    global::load_first_elements(at(params, head, row, column), params.dim - column)
                }
                Some(row) => global::load_u32x4(at(params, head, row, column)),
            };
            global::store_u32x4(to(row, chunk), elements);
        }
        chunk += LANES;
    }
}

/// Writes the block's rows of the tensor from the copy, four a warp, with `W` warps a block; zeros in rows of no sequence.
///
/// # Safety
/// Launched as [`SpreadParams`] and the kernel's row of the [catalog](crate::catalog) say, for rows of the tensor, with readable
/// offsets, a writable tensor, and a readable copy that does not overlap it.
#[inline(always)]
pub unsafe fn gather<const W: u32>(params: &SpreadParams) {
    // SAFETY: the launch has this many threads a block.
    let Some(Row { head, row, lane }) = (unsafe { Row::of_thread::<W>(params.tensor_rows) }) else {
        return;
    };
    // SAFETY: offsets are readable.
    let source = unsafe { row_of_copy(params, row) };
    let mut chunk = lane;
    while chunk < params.dim.div_ceil(CHUNK) {
        let column = chunk * CHUNK;
        let to = at(params, head, row, column);
        // SAFETY: a row of the copy; this lane alone writes these elements of the tensor.
        unsafe {
            let elements = match source {
                None => [0; 4],
                Some(row) => global::load_u32x4(copied(params, head, row, chunk)),
            };
            match params.aligned {
                0 => global::store_elements(to, elements, params.dim - column),
                _ => global::store_u32x4(to, elements),
            }
        }
        chunk += LANES;
    }
}

/// Address of an element of the tensor.
#[inline(always)]
fn at(params: &SpreadParams, head: u32, row: u32, column: u32) -> u64 {
    let offset = i64::from(head) * params.tensor.head_stride
        + i64::from(row) * params.tensor.row_stride
        + i64::from(column);
    element::at(params.tensor.address, offset)
}

/// Address of a row's number, of a tensor without gaps.
#[inline(always)]
fn number_at(params: &SpreadParams, head: u32, row: u32) -> u64 {
    let row = u64::from(head) * u64::from(params.tensor_rows) + u64::from(row);
    params.tensor.address + 4 * row
}

/// Address of a chunk of a row of the copy, or of its number.
#[inline(always)]
fn copied(params: &SpreadParams, head: u32, row: u32, chunk: u32) -> u64 {
    let row = u64::from(head) * u64::from(params.rows) + u64::from(row);
    params.copy
        + match params.numbers {
            0 => 16 * (row * u64::from(params.dim.div_ceil(CHUNK)) + u64::from(chunk)),
            _ => 4 * row,
        }
}

/// An offset, moved to what is allowed.
///
/// # Safety
/// It is readable.
#[inline(always)]
unsafe fn offset(params: &SpreadParams, index: u32) -> u32 {
    // SAFETY: the caller's promise.
    let offset = unsafe { global::load_u32(params.offsets + 4 * u64::from(index)) };
    (offset as i32).max(0).min(params.tensor_rows as i32) as u32
}

/// How many of the first numbers of sequences `is_before` holds for, by halving.
#[inline(always)]
fn count(sequences: u32, is_before: impl Fn(u32) -> bool) -> u32 {
    let (mut low, mut high) = (0, sequences);
    while low < high {
        let middle = low + (high - low) / 2;
        match is_before(middle) {
            true => low = middle + 1,
            false => high = middle,
        }
    }
    low
}

/// The row of the tensor that a row of the copy holds; none between sequences.
///
/// # Safety
/// Offsets are readable.
#[inline(always)]
unsafe fn row_of_tensor(params: &SpreadParams, row: u32) -> Option<u32> {
    // SAFETY: the caller's promise.
    let offset = |index| unsafe { offset(params, index) };
    let begin = |sequence| first_spread_row(offset(sequence), sequence, params.step);
    let sequence = count(params.sequences, |sequence| begin(sequence) <= row).checked_sub(1)?;
    let source = offset(sequence) + (row - begin(sequence));
    (source < offset(sequence + 1)).then_some(source)
}

/// The row of the copy that holds a row of the tensor; none if it is of no sequence.
///
/// # Safety
/// Offsets are readable.
#[inline(always)]
unsafe fn row_of_copy(params: &SpreadParams, row: u32) -> Option<u32> {
    // SAFETY: the caller's promise.
    let offset = |index| unsafe { offset(params, index) };
    let sequence = count(params.sequences, |sequence| offset(sequence) <= row).checked_sub(1)?;
    let first = offset(sequence);
    let copied = first_spread_row(first, sequence, params.step) + row.wrapping_sub(first);
    (row < offset(sequence + 1) && copied < params.rows).then_some(copied)
}
