//! The consumers' loop over tiles and blocks of keys: Algorithm 1 of FlashAttention-2 (Dao 2023).

use super::super::begin::take_sinks;
use super::ROWS;
use super::consumer::Consumer;
use super::job::{Job, Part};
use super::kernel::{Kernel, Keys};
use super::step::{First, Rows};
use super::store::store_tile;
use super::tile::Tile;
use crate::abi::{Event, Sm90Params};
use crate::attention::options::mask::Interval;
use crate::attention::options::score::Score;
use crate::attention::workload::heads::Heads;
use crate::layout::sm90::Sm90Memory;
use crate::ptx::{bulk, mbarrier};
use crate::tile::registers::{again, opaque};
use crate::tile::wgmma::Product;
use crate::tile::{Accumulator, Ring};
use core::marker::PhantomData;

/// Computes the warpgroup's rows of the block's tiles.
///
/// # Safety
/// The conditions of [`sm90`](super::sm90), with initialised barriers, in all threads of the warpgroup.
#[inline(always)]
pub unsafe fn consume<K: Kernel, const OT: usize, const NT: usize, const NQ: u32, const S: u32>(
    launch: &Sm90Params,
    maps: u64,
    memory_of: impl Fn(u32) -> Sm90Memory,
    side: u32,
    warpgroup: u32,
    notes: u64,
) where
    [Accumulator; OT]: Product,
    [Accumulator; NT]: Product,
{
    const { assert!(!K::O_BY_MAP || NQ > K::WARPGROUPS) }
    // Two sides count blocks from 0 on.
    const { assert!(K::SIDES == 1 || !Keys::<K>::HAS_START) }
    let (params, memory) = (&launch.forward, memory_of(side));
    let mut q = Ring::<NQ>(warpgroup);
    let mut consumer = Consumer::<K, OT, NT, S> {
        memory,
        warpgroup,
        slot: warpgroup,
        block: Ring(0),
        notes,
        kernel: PhantomData,
    };
    // SAFETY: every stage is waited for before it is read, and released after. All branches but the cold ones depend on
    // the tile and the warpgroup alone; the cold ones hold instructions of a warp alone.
    unsafe {
        let next_job = |q: Ring<NQ>| {
            let slot = q.stage();
            Job::take(q, memory.q_full(slot), memory.job(slot))
        };
        // Gives the slot of the tile before back, whose O has left.
        let release_last = |q: Ring<NQ>| {
            if K::O_BY_MAP && q.0 >= K::WARPGROUPS {
                bulk::wait_read::<0>();
                let last = Ring::<NQ>(q.0 - K::WARPGROUPS);
                mbarrier::arrive(memory.q_full(last.stage()) + 8);
            }
        };
        let mut job = next_job(q);
        while job.split != Job::NONE.split {
            consumer.note(consumer.block, Event::Q);
            let slot = q.stage();
            consumer.slot = slot;
            // Not held over the tiles: at D = 128 it would spill.
            let warpgroup = q.0 % K::WARPGROUPS;
            let part = Part::<K>::new(params, job, warpgroup * ROWS);
            let (heads, split) = (part.work.heads.first(), part.work.keys(params));
            let score = K::Score::new(params, part.work.sequence.batch, heads);
            let scale = score.scale();
            let (place, numbers) = (memory.job(slot), [side, warpgroup]);
            let (tile, walk) = Tile::<K>::new(params, place, numbers, job, &part, score);
            // Gives Q and the job back, where O does not need the slot; returns the job once more.
            let release_q = || {
                // Held over the loop, it spills 8 bytes at D = 64.
                let job = again(|| Job::load(memory.job(slot)));
                if !K::O_BY_MAP {
                    mbarrier::arrive(memory.q_full(slot) + 8);
                }
                job
            };

            // Opaque in loops that pass blocks by: 16 to 88 instructions fewer.
            let mut j = walk.end();
            while walk.passes_first(j) {
                j = opaque(j - 1);
                consumer.pass();
            }
            let mut rows = Rows::<OT, NT>::new(scale);
            let row = part.first + K::warp_row() as i32;
            take_sinks::<_, K::Score, 1>(&mut rows.softmax, params, &part.work, split, row, true);
            if walk.sees(j) {
                consumer.prepare_q(params, &part, scale.negative);
                let runs = tile.runs(&part, walk.own_start(), j);
                j -= 1;
                rows.step::<First, _, _>(&mut consumer, &tile, j, || release_last(q));
                j = rows.walk(&mut consumer, &tile, runs, j);
                job = release_q();
                rows.finish(&mut consumer);
            } else {
                release_last(q);
                job = release_q();
            }
            while walk.passes_last(j) {
                j = opaque(j - 1);
                consumer.pass();
            }
            q = Ring(q.0 + K::WARPGROUPS);
            store_tile(
                launch,
                maps,
                &consumer,
                memory_of(K::SIDES),
                side,
                job,
                rows,
            );
            consumer.note(consumer.block, Event::Stored);
            job = next_job(q);
        }
        // Shared memory stays until O has left.
        release_last(q);
    }
}
