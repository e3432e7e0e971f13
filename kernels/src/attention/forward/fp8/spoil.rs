//! NaN in the place of results of values that are not finite.

use crate::abi::{FP8_BLOCK, Fp8Params};
use crate::attention::forward::sm90::job::Part;
use crate::attention::forward::sm90::kernel::Kernel;
use crate::attention::options::mask::{Interval, Mask};
use crate::layout::fp8::wrong_bits;
use crate::ptx::{global, shuffle, special, vote};
use crate::tile::Accumulator;
use crate::tile::registers::fence;
use crate::tile::whole::map_rows;
use core::hint::cold_path;

/// Puts NaN into those columns of the warp's 16 rows of O where a row sees a value that is not finite.
///
/// # Safety
/// The conditions of [`fp8`](super::fp8); every lane of the warp makes the same call.
#[inline(always)]
pub unsafe fn spoil<K: Kernel, const OT: usize>(
    launch: &Fp8Params,
    part: &Part<K>,
    kv_head: u32,
    o: &mut [Accumulator; OT],
) {
    let seen = part.blocks_of(16, FP8_BLOCK);
    let blocks = u64::from(kv_head) * u64::from(launch.blocks);
    // The assembler does not know that the rows are of one warp.
    // SAFETY: every lane is here.
    let [mut first, end] = [seen.start, seen.end].map(|block| unsafe { shuffle::first(block) });
    while first < end {
        let block = first + special::lane();
        // SAFETY: the caller's promise; all lanes vote.
        unsafe {
            let address = launch.wrong_blocks + 4 * (blocks + u64::from(block));
            let is_wrong = block < end && global::load_u32(address) != 0;
            let mut wrong = vote::ballot(is_wrong);
            while wrong != 0 {
                cold_path();
                let block = first + wrong.trailing_zeros();
                spoil_by(launch, part, blocks, block, o);
                wrong &= wrong - 1;
            }
        }
        first += 32;
    }
}

/// Puts NaN where rows see such a value of a block; the head's blocks are those from number `blocks` on.
///
/// # Safety
/// The conditions of [`spoil`], with such values in the block.
#[inline(always)]
unsafe fn spoil_by<K: Kernel, const OT: usize>(
    launch: &Fp8Params,
    part: &Part<K>,
    blocks: u64,
    block: u32,
    o: &mut [Accumulator; OT],
) {
    let [seen] = map_rows::<_, 1>(|row| {
        let row = (part.first + row as i32).max(0) as u32;
        let keys = part.mask.keys(part.work.query(row));
        let keys = keys.counted_from((FP8_BLOCK * block) as i32);
        let [start, end] = [keys.start(), keys.end()].map(|key| key.max(0).min(FP8_BLOCK as i32));
        [0, 1, 2, 3].map(|byte| wrong_bits(start as u32, end as u32, byte))
    });
    let columns = launch.forward.dim;
    let of_block = (blocks + u64::from(block)) * u64::from(columns);
    for dt in 0..OT {
        // SAFETY: the caller's promise. Else the assembler reads all columns ahead: at D = 128 with sums outside 8 to 16 instructions more.
        unsafe { fence() }
        for i in 0..4 {
            let (half, odd) = (i / 2, i % 2);
            let column = (16 * dt + 8 * half + odd) as u32 + 2 * (special::lane() % 4);
            if column < columns {
                let address = launch.wrong_values + 16 * (of_block + u64::from(column));
                // SAFETY: the caller's promise.
                let wrong = unsafe { global::load_u32x4(address) };
                for r in 0..2 {
                    let mut sees = 0;
                    for byte in 0..4 {
                        sees |= wrong[byte] & seen[r][byte];
                    }
                    let o = &mut o[dt].0[4 * half + 2 * r + odd];
                    *o = if sees == 0 { *o } else { f32::NAN };
                }
            }
        }
    }
}
