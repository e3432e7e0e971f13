//! The producer: a warp loads Q, K and V of the block's tiles. All lanes walk, and one starts the copies.

use super::ROWS;
use super::query::stages_of_q;
use crate::abi::{FP8_BLOCK, Fp8Params};
use crate::attention::forward::sm90::job::{Job, Part};
use crate::attention::forward::sm90::kernel::Kernel;
use crate::attention::forward::sm90::produce::{load_panels, next_tile};
use crate::attention::workload::heads::Heads;
use crate::layout::fp8::{Fp8Memory, PAIR, transposed_rows};
use crate::ptx::{barrier, bulk, global, mbarrier, shared, special};
use crate::tile::Ring;
use crate::tile::registers::opaque;

/// Loads Q, K and V of the block's tiles.
///
/// # Safety
/// The conditions of [`fp8`](super::fp8), with initialised barriers, in one warp of the block, all lanes.
#[inline(always)]
pub unsafe fn produce<K: Kernel, const NQ: u32, const S: u32>(
    params: &Fp8Params,
    maps: u64,
    memory: Fp8Memory,
    is_wide: bool,
) {
    let producer = Producer { maps, memory };
    // SAFETY: the barriers count what is loaded, and the stages' consumers; the boxes fit their places.
    unsafe {
        let mut q = Ring::<NQ>(0);
        let mut place = Ring::<S>(0);
        let mut tile = special::block();
        // There are no more blocks than tiles.
        loop {
            let job = Job::at::<K>(&params.forward, tile);
            let part = Part::<K>::new(&params.forward, job, 0);
            // Opaque counters: loops stay loops, 8 to 72 instructions fewer each.
            let mut number = 0;
            while number < stages_of_q::<K>(is_wide) {
                producer.load_wide_q::<K, S>(place, number, &part);
                place = place.next();
                number = opaque(number + 1);
            }
            // A wide Q is the caller's; the launches before rounded the rest.
            barrier::launches();
            let mut warpgroup = 0;
            while warpgroup < K::WARPGROUPS {
                if is_wide {
                    producer.give_job(q, job);
                    mbarrier::arrive_once(memory.q_full(q.stage()));
                } else {
                    producer.load_q::<K, NQ>(params, q, warpgroup, job, &part);
                }
                q = q.next();
                warpgroup = opaque(warpgroup + 1);
            }
            let seen = part.blocks(K::BR);
            let kv_head = kv_head_index(params, &part);
            let mut is_wrong = 0;
            let mut j = seen.end;
            while j > seen.start {
                j = opaque(j - 1);
                is_wrong |= producer.load_keys::<K, S>(params, place, j * K::BC, &part, kv_head);
                place = place.next();
            }
            // The number of the tile.
            let end = Ring::<1>(q.0 / K::WARPGROUPS - 1);
            producer.load_columns(params, end, kv_head, is_wrong);
            tile = next_tile(params.counter, params.tiles, tile);
            if tile >= params.tiles {
                break;
            }
        }
        let mut warpgroup = 0;
        while warpgroup < K::WARPGROUPS {
            producer.give_job(q, Job::NONE);
            mbarrier::arrive_once(memory.q_full(q.stage()));
            q = q.next();
            warpgroup = opaque(warpgroup + 1);
        }
    }
}

/// The number of the part's key/value head among those of all batch entries.
#[inline(always)]
pub fn kv_head_index<K: Kernel>(params: &Fp8Params, part: &Part<K>) -> u32 {
    let (kv_heads, _) = params.forward.group.divide(params.forward.heads);
    part.work.sequence.batch * kv_heads + part.work.heads.kv_head()
}

/// The producer of a block.
struct Producer {
    /// Address of the tensor maps of q, k and v.
    maps: u64,
    memory: Fp8Memory,
}

/// The functions share their conditions: all lanes of the producer's warp make the same calls; the barriers are initialised.
impl Producer {
    /// Writes a job for the consumers of a slot.
    #[inline(always)]
    unsafe fn give_job<const NQ: u32>(&self, q: Ring<NQ>, job: Job) {
        let (full, place) = (self.memory.q_full(q.stage()), self.memory.job(q.stage()));
        // SAFETY: the caller's promise.
        unsafe { job.give(q, full, place) }
    }

    /// Q of a warpgroup, the scales of its rows, and its job.
    #[inline(always)]
    unsafe fn load_q<K: Kernel, const NQ: u32>(
        &self,
        params: &Fp8Params,
        q: Ring<NQ>,
        warpgroup: u32,
        job: Job,
        part: &Part<K>,
    ) {
        let (memory, slot) = (self.memory, q.stage());
        let full = memory.q_full(slot);
        let first = part.first + (warpgroup * ROWS) as i32;
        let place = (first, part.work.heads.first(), part.work.sequence.batch);
        let last = part.work.row_count::<K::Score>() as i32 - 1;
        // SAFETY: the caller's promise; q has a scale for each row. Every lane writes two, before one may arrive.
        unsafe {
            let scales = [0, 32].map(|skip| {
                let row = first + (special::lane() + skip) as i32;
                let row = row.min(last).max(0) as u32;
                let place = part.work.lse(&params.forward, row) - params.forward.lse;
                global::load_f32(params.q_scales + place)
            });
            self.give_job(q, job);
            for i in 0..2 {
                let to = memory.row_scales(slot) + 4 * (special::lane() + 32 * i as u32);
                shared::store_f32(to, scales[i]);
            }
            barrier::warp();
            mbarrier::arrive_expect_once(full, memory.q_bytes());
            load_panels(memory.q(slot), self.maps, full, [0, K::D / PAIR], place);
        }
    }

    /// Wide Q of two warpgroups, of the tile's stage number `number` of it.
    #[inline(always)]
    unsafe fn load_wide_q<K: Kernel, const S: u32>(
        &self,
        place: Ring<S>,
        number: u32,
        part: &Part<K>,
    ) {
        let (memory, stage) = (self.memory, place.stage());
        let full = memory.full(stage);
        let (head, entry) = (part.work.heads.first(), part.work.sequence.batch);
        // SAFETY: the caller's promise.
        unsafe {
            place.acquire(full);
            mbarrier::arrive_expect_once(full, memory.stage_bytes());
            let mut half = 0;
            while half < 2 {
                let row = part.first + ((2 * number + half) * ROWS) as i32;
                let to = memory.wide_q(stage, half);
                load_panels(to, self.maps, full, [0, K::D], (row, head, entry));
                half = opaque(half + 1);
            }
        }
    }

    /// K and V of the block from `key` on, and the scale of its keys. Gives whether values are not finite.
    #[inline(always)]
    unsafe fn load_keys<K: Kernel, const S: u32>(
        &self,
        params: &Fp8Params,
        place: Ring<S>,
        key: u32,
        part: &Part<K>,
        kv_head: u32,
    ) -> u32 {
        let (memory, stage) = (self.memory, place.stage());
        let full = memory.full(stage);
        let (head, entry) = (part.work.heads.kv_head(), part.work.sequence.batch);
        // SAFETY: the caller's promise. One lane writes the scale, before another one may arrive.
        unsafe {
            let first = u64::from(kv_head) * u64::from(params.blocks);
            let block = 4 * (first + u64::from(key / FP8_BLOCK));
            let scale = global::load_f32(params.key_scales + block);
            let is_wrong = global::load_u32(params.wrong_blocks + block);
            place.acquire(full);
            if special::lane() == 0 {
                shared::store_f32(memory.key_scale(stage), scale);
            }
            barrier::warp();
            mbarrier::arrive_expect_once(full, memory.stage_bytes());
            let (k, v) = (memory.k(stage), memory.v(stage));
            let rows = (key as i32, head, entry);
            load_panels(k, self.maps + 128, full, [0, K::D / PAIR], rows);
            let (columns, rows) = ([key / PAIR, K::BC / PAIR], (0, head, entry));
            load_panels(v, self.maps + 256, full, columns, rows);
            is_wrong
        }
    }

    /// The columns of V for the tile's end, and whether its values are not finite. Behind the tile's last keys, the tile before is done: one slot
    /// serves all.
    #[inline(always)]
    unsafe fn load_columns(&self, params: &Fp8Params, end: Ring<1>, kv_head: u32, is_wrong: u32) {
        let (memory, full) = (self.memory, self.memory.columns_full());
        let bytes = 8 * transposed_rows(params.forward.dim);
        let from = params.columns + u64::from(kv_head) * u64::from(bytes);
        // SAFETY: the caller's promise. One lane writes, before another one may arrive.
        unsafe {
            end.acquire(full);
            if special::lane() == 0 {
                shared::store_u32(memory.wrong(), is_wrong);
            }
            barrier::warp();
            mbarrier::arrive_expect_once(full, bytes);
            bulk::load_once(memory.columns(), from, bytes, full);
        }
    }
}
