//! The producer: a warp loads the keys. All lanes walk, and one starts the copies.

use super::part::{PAIR, Part};
use super::query::await_loads;
use crate::abi::{ForwardParams, Sm90Params};
use crate::attention::options::mask::Mask;
use crate::attention::options::score::Score;
use crate::attention::workload::heads::Heads;
use crate::attention::workload::key_rows::KeyRows;
use crate::layout::latent::LatentMemory;
use crate::ptx::{mbarrier, tensor};
use crate::tile::Ring;
use crate::tile::registers::opaque;
use core::mem::offset_of;

/// Loads the keys that the block's rows see, stage by stage.
///
/// # Safety
/// The conditions of [`latent`](super::latent), with initialised barriers, in one warp of the block, all lanes.
#[inline(always)]
pub unsafe fn produce<M: Mask, H: Heads, C: Score, const S: u32>(
    params: &ForwardParams,
    part: &Part<M, H>,
    maps: u64,
    memory: LatentMemory,
) {
    const KEYS: u32 = LatentMemory::KEYS;
    let map = maps + offset_of!(Sm90Params, k) as u64;
    let rows = C::Keys::new(params, part.work.of_keys());
    let head = part.work.heads.kv_head();
    // SAFETY: the caller's promise.
    let [pairs, _] = unsafe { part.pairs() };
    let first_key = part.split.first + PAIR * pairs.start;
    // SAFETY: all consumers arrive.
    unsafe { await_loads() }
    let mut block = Ring::<S>(0);
    while block.0 < 2 * (pairs.end - pairs.start) {
        let full = memory.full(block.stage());
        let to = memory.keys(block.stage());
        // While the stage is in use.
        let boxes = rows.boxes(first_key + KEYS * block.0, KEYS);
        // SAFETY: the caller's promise; the boxes fit their places, and the barrier expects their bytes.
        unsafe {
            block.acquire(full);
            mbarrier::arrive_expect_once(full, LatentMemory::STAGE_BYTES);
            let (mut number, mut skipped) = (0, 0);
            while skipped < KEYS {
                let [row, entry] = boxes.place::<C::Keys>(number).map(|of| of as i32);
                let to = to.skip_rows(skipped);
                let mut panel = 0;
                while panel < LatentMemory::DIM / to.width {
                    let column = (panel * to.width) as i32;
                    let to = to.skip_panels(panel).base;
                    tensor::load_once(to, map, column, row, head as i32, entry, full);
                    // Opaque: the loop stays one, with one load in place of nine.
                    panel = opaque(panel + 1);
                }
                (number, skipped) = (number + 1, skipped + boxes.keys);
            }
        }
        block = block.next();
    }
}
