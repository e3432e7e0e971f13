//! The producer: a warp loads Q, K and V of the block's tiles. All lanes walk, and one starts the copies: then the assembler
//! keeps addresses in uniform registers, and needs no loop over lanes.

use super::ROWS;
use super::job::{Job, Part, SideBlocks};
use super::kernel::Kernel;
use super::watch::Watch;
use crate::abi::{Event, Sm90Params};
use crate::attention::heads::Heads;
use crate::attention::key_rows::KeyRows;
use crate::attention::score::{Corner, Score};
use crate::layout::descriptor::Panels;
use crate::layout::sm90::Sm90Memory;
use crate::ptx::{barrier, global, mbarrier, shuffle, special, tensor};
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
    let [q_map, k_map, v_map] = [maps, maps + 128, maps + 256];
    let blocks = SideBlocks::<K>::of(side);
    let width = Panels::width_for(K::D);
    // SAFETY: the barriers count what is loaded, and the stages' consumers; the boxes fit their places.
    unsafe {
        // Loads panels: so many columns from the first of `columns` on.
        let load = |to: Panels,
                    map: u64,
                    full: u32,
                    bytes: u32,
                    columns: [u32; 2],
                    place: (i32, u32, u32)| {
            let ([first, columns], (row, head, batch)) = (columns, place);
            mbarrier::arrive_expect_once(full, bytes);
            let mut panel = 0;
            while panel < columns / width {
                let (to, column) = (to.base + panel * to.panel_bytes(), first + panel * width);
                tensor::load_once(to, map, column as i32, row, head as i32, batch as i32, full);
                // Opaque: the loop stays one.
                panel = opaque(panel + 1);
            }
        };
        // One lane writes a job, before another one may arrive.
        let store = |job: Job, address: u32| {
            if special::lane() == 0 {
                job.store(address);
            }
            barrier::warp();
        };
        let mut q = Ring::<NQ>(0);
        let mut place = Ring::<S>(0);
        let mut tile = special::block();
        // There are no more blocks than tiles.
        loop {
            let job = Job::at::<K>(&params.forward, tile);
            let part = Part::<K>::new(&params.forward, job, 0);
            let (batch, head) = (part.work.sequence.batch, part.work.heads.kv_head());
            let rows = <K::Score as Score>::Keys::new(&params.forward, part.work.sequence);
            let split = part.work.keys(&params.forward);
            let visits = job.visits::<K>(&params.forward, &part.work, split);
            let place_of = |j: u32| {
                let key = part.keys + visits.block(blocks.block(j)) * K::BC;
                rows.place_in_map(key)
            };
            let score = K::Score::new(&params.forward, batch, part.work.heads.first());
            let load_k = |place: Ring<S>, j: u32| {
                K::Watch::note(notes, place.0, Event::NeedsK);
                let chunks = memory.k_chunks();
                each::<K>(chunks, |chunk| {
                    let full = memory.k_full(place.stage()) + 16 * chunk;
                    let columns = K::D / chunks;
                    let k = memory.k(place.stage()).skip_panels(chunk * columns / width);
                    place.acquire(full);
                    K::Watch::note(notes, place.0, Event::LoadsK);
                    let [row, entry] = place_of(j);
                    let bytes = memory.k_bytes() / chunks;
                    let columns = [chunk * columns, columns];
                    load(k, k_map, full, bytes, columns, (row as i32, head, entry));
                });
                let key = (visits.block(blocks.block(j)) * K::BC) as i32;
                let corner = Corner::new(part.first, key, part.work.sequence, split);
                score.prefetch(corner, [K::BR, K::BC]);
            };
            // In the order in which the consumers need them; the first K does not wait for the end of the last tile.
            let seen = visits.of(part.blocks(K::BR));
            let (start, mut j) = (seen.start, blocks.count(seen.end));
            if j > start {
                load_k(place, j - 1);
            }
            // Each warpgroup goes on when its own rows are there: they do not wait for one another.
            let mut warpgroup = 0;
            while warpgroup < K::WARPGROUPS {
                let (slot, full) = (q.stage(), memory.q_full(q.stage()));
                q.acquire(full);
                store(job, memory.job(slot));
                if K::Heads::STRIDED {
                    let row = part.first + (warpgroup * ROWS) as i32;
                    let place = (row, part.work.heads.first(), batch);
                    let (to, bytes) = (memory.q(slot), memory.q_bytes());
                    load(to, q_map, full, bytes, [0, K::D], place);
                } else {
                    // The warpgroup copies its rows itself.
                    mbarrier::arrive_once(full);
                }
                q = q.next();
                warpgroup = opaque(warpgroup + 1);
            }
            while j > start {
                j = opaque(j - 1);
                if j > start {
                    load_k(place.next(), j - 1);
                }
                K::Watch::note(notes, place.0, Event::NeedsV);
                let chunks = memory.v_chunks();
                each::<K>(chunks, |chunk| {
                    let full = memory.v_full(place.stage()) + 16 * chunk;
                    let skipped = chunk * (K::BC / chunks);
                    let v = memory.v(place.stage()).skip_rows(skipped);
                    place.acquire(full);
                    K::Watch::note(notes, place.0, Event::LoadsV);
                    let [row, entry] = place_of(j);
                    let bytes = memory.v_bytes() / chunks;
                    let columns = [part.work.heads.slice() * K::DV, K::DV];
                    let row = (row + skipped) as i32;
                    load(v, v_map, full, bytes, columns, (row, head, entry));
                });
                place = place.next();
            }
            // Blocks that are done early take more tiles, where a counter tells which are left. Asked only now: who asks
            // early takes a tile that another block could begin before.
            tile = match params.counter {
                0 => tile + special::blocks(),
                counter => {
                    let mut taken = 0;
                    if special::lane() == 0 {
                        taken = global::count(counter, params.tiles - 1);
                    }
                    special::blocks() + shuffle::first(taken)
                }
            };
            if tile >= params.tiles {
                break;
            }
        }
        let mut warpgroup = 0;
        while warpgroup < K::WARPGROUPS {
            let (slot, full) = (q.stage(), memory.q_full(q.stage()));
            q.acquire(full);
            store(Job::NONE, memory.job(slot));
            mbarrier::arrive_once(full);
            q = q.next();
            warpgroup = opaque(warpgroup + 1);
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
