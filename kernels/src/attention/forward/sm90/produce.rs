//! The producer: a warp loads Q, K and V of the block's tiles. All lanes walk, and one starts the copies: then the assembler
//! keeps addresses in uniform registers, and needs no loop over lanes.

use super::ROWS;
use super::job::{Job, Part, SideBlocks};
use super::kernel::Kernel;
use super::watch::Watch;
use crate::abi::{Event, ForwardParams, Sm90Params};
use crate::attention::Visits;
use crate::attention::options::score::{Corner, Score};
use crate::attention::workload::heads::Heads;
use crate::attention::workload::key_rows::{Boxes, KeyRows};
use crate::attention::workload::sequence::Split;
use crate::layout::descriptor::Panels;
use crate::layout::sm90::Sm90Memory;
use crate::ptx::{global, mbarrier, shuffle, special, tensor};
use crate::tile::Ring;
use crate::tile::registers::opaque;

/// Loads Q, K and V of the block's tiles for a side of it.
///
/// # Safety
/// The conditions of [`sm90`](super::sm90), with initialised barriers, in one warp of the block, all lanes.
#[inline(always)]
pub unsafe fn produce<K: Kernel, const NQ: u32, const S: u32>(
    params: &Sm90Params,
    maps: u64,
    memory: Sm90Memory,
    notes: u64,
    side: u32,
) {
    let producer = Producer::<K> {
        maps,
        memory,
        notes,
        blocks: SideBlocks::of(side),
    };
    // SAFETY: the barriers count what is loaded, and the stages' consumers; the boxes fit their places.
    unsafe {
        let mut q = Ring::<NQ>(0);
        let mut place = Ring::<S>(0);
        let mut tile = special::block();
        // There are no more blocks than tiles.
        loop {
            let job = Job::at::<K>(&params.forward, tile);
            let part = Part::<K>::new(&params.forward, job, 0);
            let source = producer.source(&params.forward, job, &part);
            // In the order in which the consumers need them; the first K does not wait for the end of the last tile.
            let seen = source.visits.of(part.blocks(K::BR));
            let (start, mut j) = (seen.start, producer.blocks.count(seen.end));
            if j > start {
                producer.load_k(place, j - 1, &source);
            }
            // Each warpgroup goes on when its own rows are there: they do not wait for one another.
            // Opaque counters: loops stay loops, 8 to 150 instructions fewer each.
            let mut warpgroup = 0;
            while warpgroup < K::WARPGROUPS {
                producer.load_q(q, warpgroup, job, &part);
                q = q.next();
                warpgroup = opaque(warpgroup + 1);
            }
            while j > start {
                j = opaque(j - 1);
                if j > start {
                    producer.load_k(place.next(), j - 1, &source);
                }
                producer.load_v(place, j, &source);
                place = place.next();
            }
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

/// The tile after `tile`, of so many. Blocks that are done early take more tiles, where a counter tells which are left. Asked only then: who
/// asks early takes a tile that another block could begin before.
///
/// # Safety
/// All lanes of the warp make the same call; the counter is writable.
#[inline(always)]
pub unsafe fn next_tile(counter: u64, tiles: u32, tile: u32) -> u32 {
    match counter {
        0 => tile + special::blocks(),
        counter => {
            let mut taken = 0;
            // SAFETY: the caller's promise.
            unsafe {
                if special::lane() == 0 {
                    taken = global::count(counter, tiles - 1);
                }
                special::blocks() + shuffle::first(taken)
            }
        }
    }
}

/// The producer of a side.
struct Producer<K> {
    /// Address of the tensor maps of q, k and v.
    maps: u64,
    memory: Sm90Memory,
    /// Where its watch notes.
    notes: u64,
    blocks: SideBlocks<K>,
}

/// Loads panels: so many columns from the first of `columns` on, from a row, head and entry of a map.
///
/// # Safety
/// All lanes of the producer's warp make the same call. The panels are free, and the barrier `full` expects their bytes.
#[inline(always)]
pub unsafe fn load_panels(
    to: Panels,
    map: u64,
    full: u32,
    [first, columns]: [u32; 2],
    (row, head, entry): (i32, u32, u32),
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut panel = 0;
        while panel < columns / to.width {
            let (place, column) = (to.base + panel * to.panel_bytes(), first + panel * to.width);
            tensor::load_once(
                place,
                map,
                column as i32,
                row,
                head as i32,
                entry as i32,
                full,
            );
            // Opaque: the loop stays one, with one load in place of several.
            panel = opaque(panel + 1);
        }
    }
}

/// Where K and V of a tile come from.
struct Source<'a, K: Kernel> {
    part: &'a Part<K>,
    split: Split,
    visits: Visits<K::Mask>,
    rows: <K::Score as Score>::Keys,
    score: K::Score,
}

/// The functions share their conditions: all lanes of the producer's warp make the same calls; the barriers are initialised.
impl<K: Kernel> Producer<K> {
    /// The source of a job's K and V.
    #[inline(always)]
    fn source<'a>(&self, params: &ForwardParams, job: Job, part: &'a Part<K>) -> Source<'a, K> {
        let (sequence, split) = (part.work.sequence, part.work.keys(params));
        Source {
            part,
            split,
            visits: job.visits::<K>(params, &part.work, split),
            rows: <K::Score as Score>::Keys::new(params, part.work.of_keys()),
            score: K::Score::new(params, sequence.batch, part.work.heads.first()),
        }
    }

    /// The first key of block `j`, in its split.
    #[inline(always)]
    fn first_key(&self, j: u32, source: &Source<K>) -> u32 {
        source.visits.block(self.blocks.block(j)) * K::BC
    }

    /// Loads panels of `keys` keys in their boxes: one or, of pages, several.
    #[inline(always)]
    unsafe fn load_keys(
        &self,
        to: Panels,
        map: u64,
        full: u32,
        columns: [u32; 2],
        (boxes, keys): (Boxes, u32),
        source: &Source<K>,
    ) {
        // Pages have 8 keys or more, and each lane knows a box.
        const { assert!(K::BC <= 8 * 32) }
        let head = source.part.work.heads.kv_head();
        let load = |number: u32, skipped: u32| {
            // SAFETY: the caller's promise.
            unsafe {
                let [row, entry] = boxes.place::<<K::Score as Score>::Keys>(number);
                let (to, place) = (to.skip_rows(skipped), (row as i32, head, entry));
                load_panels(to, map, full, columns, place)
            }
        };
        load(0, 0);
        let (mut number, mut skipped) = (1, boxes.keys);
        while skipped < keys {
            load(number, skipped);
            (number, skipped) = (number + 1, skipped + boxes.keys);
        }
    }

    /// Writes a job for the consumers of a slot.
    #[inline(always)]
    unsafe fn give_job<const NQ: u32>(&self, q: Ring<NQ>, job: Job) {
        let (full, place) = (self.memory.q_full(q.stage()), self.memory.job(q.stage()));
        // SAFETY: the caller's promise.
        unsafe { job.give(q, full, place) }
    }

    /// Q of a warpgroup, and its job.
    #[inline(always)]
    unsafe fn load_q<const NQ: u32>(&self, q: Ring<NQ>, warpgroup: u32, job: Job, part: &Part<K>) {
        let (slot, full) = (q.stage(), self.memory.q_full(q.stage()));
        // SAFETY: the caller's promise.
        unsafe {
            self.give_job(q, job);
            if K::Heads::are_strided() {
                let row = part.first + (warpgroup * ROWS) as i32;
                let place = (row, part.work.heads.first(), part.work.sequence.batch);
                mbarrier::arrive_expect_once(full, self.memory.q_bytes());
                load_panels(self.memory.q(slot), self.maps, full, [0, K::D], place);
            } else {
                // The warpgroup copies its rows itself.
                mbarrier::arrive_once(full);
            }
        }
    }

    /// K of block `j`, in chunks of columns.
    #[inline(always)]
    unsafe fn load_k<const S: u32>(&self, place: Ring<S>, j: u32, source: &Source<K>) {
        let memory = self.memory;
        // SAFETY: the caller's promise.
        unsafe {
            K::Watch::note(self.notes, place.0, Event::NeedsK);
            let chunks = memory.k_chunks();
            let columns = K::D / chunks;
            let key = source.part.keys + self.first_key(j, source);
            each::<K>(chunks, |chunk| {
                let full = memory.k_full(place.stage()) + 16 * chunk;
                let panels = chunk * columns / Panels::width_for(K::D);
                let to = memory.k(place.stage()).skip_panels(panels);
                place.acquire(full);
                // Page numbers are read now: read while the stage is in use, they cost 0.5 % (`docs/diary.md`).
                let boxes = source.rows.boxes(key, K::BC);
                K::Watch::note(self.notes, place.0, Event::LoadsK);
                let (map, columns) = (self.maps + 128, [chunk * columns, columns]);
                mbarrier::arrive_expect_once(full, memory.k_bytes() / chunks);
                self.load_keys(to, map, full, columns, (boxes, K::BC), source);
            });
            let key = self.first_key(j, source) as i32;
            let corner = Corner::new(
                source.part.first,
                key,
                source.part.work.sequence,
                source.split,
            );
            source.score.prefetch(corner, [K::BR, K::BC]);
        }
    }

    /// V of block `j`, in chunks of keys.
    #[inline(always)]
    unsafe fn load_v<const S: u32>(&self, place: Ring<S>, j: u32, source: &Source<K>) {
        let (memory, heads) = (self.memory, source.part.work.heads);
        // SAFETY: the caller's promise.
        unsafe {
            K::Watch::note(self.notes, place.0, Event::NeedsV);
            let chunks = memory.v_chunks();
            let first = source.part.keys + self.first_key(j, source);
            each::<K>(chunks, |chunk| {
                let full = memory.v_full(place.stage()) + 16 * chunk;
                let skipped = chunk * (K::BC / chunks);
                let to = memory.v(place.stage()).skip_rows(skipped);
                let (key, keys) = (first + skipped, K::BC / chunks);
                place.acquire(full);
                let boxes = source.rows.boxes(key, keys);
                K::Watch::note(self.notes, place.0, Event::LoadsV);
                let (map, columns) = (self.maps + 256, [heads.slice() * K::DV, K::DV]);
                mbarrier::arrive_expect_once(full, memory.v_bytes() / chunks);
                self.load_keys(to, map, full, columns, (boxes, keys), source);
            });
        }
    }
}

/// Calls `f` with the number of each chunk of a stage.
#[inline(always)]
fn each<K: Kernel>(count: u32, f: impl Fn(u32)) {
    f(0);
    // A loop of one step would change how the compiler orders the instructions of kernels without chunks.
    if K::CHUNKS {
        for chunk in 1..count {
            f(chunk);
        }
    }
}
