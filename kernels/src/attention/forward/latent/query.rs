//! Q: rows of several heads, which no box of a map holds, so that the consumers copy them.

use super::part::Part;
use crate::abi::ForwardParams;
use crate::attention::options::mask::Mask;
use crate::attention::workload::heads::Heads;
use crate::layout::latent::LatentMemory;
use crate::layout::{element, fragment, rows::Rows};
use crate::ptx::{barrier, bulk, global, ldmatrix, shared};
use crate::tile::Operand;

/// Lanes of a row: their chunks lie side by side in a panel.
const LANES: u32 = 8;

/// Rows of a thread.
const ROWS: usize = (LatentMemory::ROWS * LANES / 256) as usize;

/// Chunks of a thread in a row.
const CHUNKS: usize = (LatentMemory::DIM / element::CHUNK / LANES) as usize;

/// The barrier at which consumers say that their loads of Q are under way, and its threads: theirs, and a warp that produces.
const LOADS: (u32, u32) = (12, 256 + 32);

/// Copies the thread's share of Q, negated if the scale is. Rows that do not exist become zeros. Its loads go ahead of those
/// that [wait for them](await_loads).
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
    let rows = part.work.q_rows(&params.q);
    let left = part.work.row_count_of::<M>() - part.work.first;
    let sign = if is_negative { 0x8000_8000 } else { 0 };
    let row = |i: usize| thread / LANES + 256 / LANES * i as u32;
    let column = |i: usize| (i as u32 * LANES + thread % LANES) * element::CHUNK;
    let mut chunks = [[[0; 4]; CHUNKS]; ROWS];
    // SAFETY: the caller's promise; the rows exist.
    unsafe {
        for i in 0..ROWS {
            if row(i) < left {
                let row = rows.at(part.work.first + row(i));
                for j in 0..CHUNKS {
                    chunks[i][j] = global::load_u32x4(element::at(row, column(j)));
                }
            }
        }
        barrier::arrive(LOADS.0, LOADS.1);
        for i in 0..ROWS {
            for j in 0..CHUNKS {
                let chunk = chunks[i][j].map(|pair| pair ^ sign);
                shared::store_u32x4(memory.q().chunk(row(i), column(j)), chunk);
            }
        }
    }
    bulk::fence();
}

/// Waits until loads of Q are under way: behind the loads of all stages they would come last.
///
/// # Safety
/// All lanes of the producer's warp make the call, once; all consumers [copy Q](copy_q).
#[inline(always)]
pub unsafe fn await_loads() {
    // SAFETY: the caller's promise.
    unsafe { barrier::some(LOADS.0, LOADS.1) }
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
