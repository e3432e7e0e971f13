//! NaN in the place of results of values that are not finite.

use super::produce::kv_head_index;
use crate::abi::{FP8_BLOCK, Fp8Params};
use crate::attention::forward::sm90::job::Part;
use crate::attention::forward::sm90::kernel::Kernel;
use crate::attention::options::mask::{Interval, Mask};
use crate::layout::element;
use crate::layout::fp8::wrong_bits;
use crate::layout::rows::Rows;
use crate::ptx::{global, special, switch};
use crate::tile::registers::opaque;

/// NaN in f16 and bf16.
const NAN: u16 = 0x7fff;

/// Stores NaN in those columns of the warp's 16 rows where a row sees a value that is not finite. The rows are stored: held, O would take
/// the registers.
///
/// # Safety
/// The conditions of [`fp8`](super::fp8); every lane of the warp makes the same call, behind a barrier of the warp after its stores.
#[inline(always)]
pub unsafe fn spoil<K: Kernel>(launch: &Fp8Params, part: &Part<K>) {
    let seen = part.blocks_of(16, FP8_BLOCK);
    let blocks = u64::from(kv_head_index(launch, part)) * u64::from(launch.blocks);
    let columns = launch.forward.dim;
    let mut block = seen.start;
    while block < seen.end {
        let place = blocks + u64::from(block);
        // SAFETY: the caller's promise.
        if unsafe { global::load_u32(launch.wrong_blocks + 4 * place) } != 0 {
            let mut column = special::lane();
            while column < columns {
                let place = place * u64::from(columns) + u64::from(column);
                // SAFETY: a block with such values has bits for each column.
                unsafe {
                    let wrong = global::load_u32x4(launch.wrong_values + 16 * place);
                    spoil_column(launch, part, block, column, wrong);
                }
                column += 32;
            }
        }
        block = opaque(block + 1);
    }
}

/// Stores NaN in a column of those rows that see one of these values of a block.
///
/// # Safety
/// The conditions of [`spoil`]; no other lane has the column.
#[inline(always)]
unsafe fn spoil_column<K: Kernel>(
    launch: &Fp8Params,
    part: &Part<K>,
    block: u32,
    column: u32,
    wrong: [u32; 4],
) {
    let (params, work) = (&launch.forward, &part.work);
    let rows = part.rows();
    let to = work.q_rows(&params.o);
    let mut row = part.first.max(rows.start);
    while row < rows.end.min(part.first + 16) {
        let keys = part.mask.keys(work.query(row as u32));
        let keys = keys.counted_from((FP8_BLOCK * block) as i32);
        let [start, end] = [keys.start(), keys.end()].map(|key| key.max(0).min(FP8_BLOCK as i32));
        let mut sees = 0;
        for byte in 0..4 {
            sees |= wrong[byte] & wrong_bits(start as u32, end as u32, byte as u32);
        }
        if sees != 0 {
            let address = to.at(row as u32);
            // SAFETY: the caller's promise: o has the row, and the column if it is one of so many.
            unsafe {
                if switch::f32_output() {
                    if column < launch.o_columns {
                        global::store_f32(address + 4 * u64::from(column), f32::NAN);
                    }
                } else if column < to.elements() {
                    global::store_u16(element::at(address, column), NAN);
                }
            }
        }
        row = opaque(row as u32 + 1) as i32;
    }
}
