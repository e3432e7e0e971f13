//! Packed sequences, copied to where each begins at a multiple of a step.
//!
//! Blocks of keys then hold keys of one sequence alone, from its first key on, whatever lies before it: sums over them have the
//! same order in every batch.
//!
//! A quarter of a warp takes a row, 16 bytes a lane at a time.

use crate::abi::{SpreadParams, first_spread_row};
use crate::layout::element::{self, CHUNK};
use crate::ptx::{global, special};

/// Lanes of a row.
const LANES: u32 = 8;

/// Copies the block's rows, four a warp, with `W` warps a block.
///
/// # Safety
/// Launched as [`SpreadParams`] and the kernel's row of the [catalog](crate::catalog) say, with readable offsets, a readable
/// tensor, and a writable copy that does not overlap it.
#[inline(always)]
pub unsafe fn spread<const W: u32>(params: &SpreadParams) {
    let br = 32 / LANES * W;
    let tiles = params.rows.div_ceil(br);
    let (head, tile) = (special::block() / tiles, special::block() % tiles);
    // SAFETY: the launch has this many threads a block.
    let thread = unsafe { special::thread(32 * W) };
    let row = tile * br + thread / LANES;
    if row >= params.rows {
        return;
    }
    // SAFETY: offsets are readable.
    let source = unsafe { source_of(params, row) };
    let chunks = params.dim.div_ceil(CHUNK);
    let copied = u64::from(head) * u64::from(params.rows) + u64::from(row);
    let to = params.copy + 16 * u64::from(chunks) * copied;
    let mut chunk = thread % LANES;
    while chunk < chunks {
        // SAFETY: a row of the tensor; this lane alone writes the chunk.
        unsafe {
            let elements = match source {
                Some(row) => load(params, head, row, chunk * CHUNK),
                None => [0; 4],
            };
            global::store_u32x4(to + 16 * u64::from(chunk), elements);
        }
        chunk += LANES;
    }
}

/// Reads eight elements of a row of the tensor from a column on, with zeros behind the last.
///
/// # Safety
/// The row exists.
#[inline(always)]
unsafe fn load(params: &SpreadParams, head: u32, row: u32, column: u32) -> [u32; 4] {
    let offset = i64::from(head) * params.tensor.head_stride
        + i64::from(row) * params.tensor.row_stride
        + i64::from(column);
    let address = element::at(params.tensor.address, offset);
    // SAFETY: the caller's promise.
    unsafe {
        match params.aligned {
            0 => global::load_first_elements(address, params.dim - column),
            _ => global::load_u32x4(address),
        }
    }
}

/// The row of the tensor that a row of the copy holds; none between sequences.
///
/// # Safety
/// Offsets are readable.
#[inline(always)]
unsafe fn source_of(params: &SpreadParams, row: u32) -> Option<u32> {
    let offset = |sequence: u32| {
        // SAFETY: the caller's promise.
        let offset = unsafe { global::load_u32(params.offsets + 4 * u64::from(sequence)) };
        (offset as i32).max(0).min(params.tensor_rows as i32) as u32
    };
    let begin = |sequence| first_spread_row(offset(sequence), sequence, params.step);
    // The last sequence that begins at the row or before it, by halving.
    let (mut low, mut high) = (0, params.sequences);
    while low < high {
        let middle = low + (high - low) / 2;
        match begin(middle) <= row {
            true => low = middle + 1,
            false => high = middle,
        }
    }
    let sequence = low.checked_sub(1)?;
    let (first, end) = (offset(sequence), offset(sequence + 1));
    let source = first + row.wrapping_sub(begin(sequence));
    (source < end).then_some(source)
}
