//! Q: rows of several heads, which no box of a map holds, so that the consumers copy them.

use super::part::Part;
use crate::abi::ForwardParams;
use crate::attention::options::mask::Mask;
use crate::attention::workload::heads::Heads;
use crate::layout::latent::LatentMemory;
use crate::layout::{element, fragment, rows::Rows};
use crate::ptx::{bulk, global, ldmatrix, shared};
use crate::tile::Operand;

/// Chunks that a thread loads at once.
const AT_ONCE: usize = 9;

/// Copies the thread's share of Q, negated if the scale is. Rows that do not exist become zeros.
///
/// # Safety
/// The threads `0..256` of the block make the same call; q is readable. Products may read Q after a barrier of these threads.
#[inline(always)]
pub unsafe fn copy_q<M: Mask, H: Heads>(
    params: &ForwardParams,
    part: &Part<M, H>,
    memory: LatentMemory,
    thread: u32,
    is_negative: bool,
) {
    const CHUNKS: u32 = LatentMemory::DIM / element::CHUNK;
    const { assert!((LatentMemory::ROWS * CHUNKS).is_multiple_of(256 * AT_ONCE as u32)) }
    let rows = part.work.q_rows(&params.q);
    let left = part.work.row_count_of::<M>() - part.work.first;
    let sign = if is_negative { 0x8000_8000 } else { 0 };
    let mut chunk = thread;
    while chunk < LatentMemory::ROWS * CHUNKS {
        let place = |i: usize| {
            let chunk = chunk + 256 * i as u32;
            (chunk / CHUNKS, chunk % CHUNKS * element::CHUNK)
        };
        let mut chunks = [[0; 4]; AT_ONCE];
        // SAFETY: the caller's promise; the rows exist.
        unsafe {
            for i in 0..AT_ONCE {
                let (row, column) = place(i);
                if row < left {
                    let address = element::at(rows.at(part.work.first + row), column);
                    chunks[i] = global::load_u32x4(address).map(|pair| pair ^ sign);
                }
            }
            for i in 0..AT_ONCE {
                let (row, column) = place(i);
                shared::store_u32x4(memory.q().chunk(row, column), chunks[i]);
            }
        }
        chunk += 256 * AT_ONCE as u32;
    }
    bulk::fence();
}

/// The last slices of the 16 rows of Q of a warp, as operands.
///
/// # Safety
/// Every lane of the warp makes the same call; Q is written, and visible.
#[inline(always)]
pub unsafe fn load_q<const QT: usize>(memory: LatentMemory, thread: u32) -> [Operand; QT] {
    let (row, chunk) = fragment::ldmatrix_rows_first(thread % 32);
    let row = thread / 32 % 4 * 16 + row;
    let first = LatentMemory::DIM - element::K * QT as u32;
    let mut slices = [Operand::ZERO; QT];
    for qt in 0..QT {
        let column = first + element::K * qt as u32 + element::CHUNK * chunk;
        // SAFETY: the caller's promise; the address lies in Q.
        slices[qt] = Operand(unsafe { ldmatrix::x4(memory.q().chunk(row, column)) });
    }
    slices
}
