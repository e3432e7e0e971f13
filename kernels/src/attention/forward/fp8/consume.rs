//! The consumers' loop over tiles and blocks of keys: Algorithm 1 of FlashAttention-2 (Dao 2023).

use super::ROWS;
use super::outer::Outer;
use super::query::is_wide;
use super::softmax::Softmax;
use super::step::{Consumer, Edge, First, Rows, Start, Whole};
use super::store::store;
use crate::abi::Fp8Params;
use crate::attention::SoftmaxScale;
use crate::attention::forward::sm90::job::{Job, Part};
use crate::attention::forward::sm90::kernel::Kernel;
use crate::attention::forward::sm90::tile::Tile;
use crate::attention::options::score::Score;
use crate::attention::workload::heads::Heads;
use crate::layout::fp8::Fp8Memory;
use crate::ptx::mbarrier;
use crate::tile::fp8::Products;
use crate::tile::registers::{again, opaque};
use crate::tile::{HalfAccumulator, Operand, Ring};
use core::marker::PhantomData;

/// Computes the warpgroup's rows of the block's tiles.
///
/// # Safety
/// The conditions of [`fp8`](super::fp8), with initialised barriers, in all threads of the warpgroup.
#[inline(always)]
pub unsafe fn consume<
    K: Kernel,
    U: Outer<OT>,
    const OT: usize,
    const NT: usize,
    const PT: usize,
    const QT: usize,
    const QR: u32,
    const NQ: u32,
    const S: u32,
>(
    launch: &Fp8Params,
    memory: Fp8Memory,
    warpgroup: u32,
) where
    [HalfAccumulator; NT]: Products,
    [HalfAccumulator; OT]: Products,
{
    let params = &launch.forward;
    let mut q = Ring::<NQ>(warpgroup);
    let mut consumer = Consumer::<K, QT, QR, S> {
        memory,
        slot: warpgroup,
        q: [Operand::ZERO; QT],
        block: Ring(0),
        kernel: PhantomData,
    };
    // SAFETY: every stage is waited for before it is read, and released after. All branches but the cold ones depend on
    // the tile and the warpgroup alone; the cold ones hold instructions of a warp alone.
    unsafe {
        let next_job = |q: Ring<NQ>| {
            let slot = q.stage();
            Job::take(q, memory.q_full(slot), memory.job(slot))
        };
        let mut job = next_job(q);
        while job.split != Job::NONE.split {
            let slot = q.stage();
            consumer.slot = slot;
            // Not held over the tiles.
            let warpgroup = q.0 % K::WARPGROUPS;
            let scales = match is_wide::<U, OT>(launch) {
                true => consumer.round_q(launch, warpgroup),
                false => consumer.load_q(),
            };
            let part = Part::<K>::new(params, job, warpgroup * ROWS);
            let score = K::Score::new(params, part.work.sequence.batch, part.work.heads.first());
            let factors = scales.map(|scale| SoftmaxScale::new(params.scale).log2 * scale);
            let place = memory.job(slot);
            let (tile, walk) = Tile::<K>::new(params, place, [0, warpgroup], job, &part, score);

            // Opaque in loops that pass blocks by: with options 72 instructions fewer.
            let mut j = walk.end();
            while walk.passes_first(j) {
                j = opaque(j - 1);
                consumer.pass();
            }
            let mut rows = Rows::<U, OT, NT, PT>::new(Softmax::new(factors));
            if walk.sees(j) {
                let mut runs = tile.runs(&part, walk.own_start(), j);
                j -= 1;
                rows.step::<First, _, _, _, _>(&mut consumer, &tile, j);
                loop {
                    while j > runs.edge() {
                        j -= 1;
                        rows.step::<Edge, _, _, _, _>(&mut consumer, &tile, j);
                        rows.sum_outside::<K>(j);
                    }
                    let has_late = Rows::<U, OT, NT, PT>::IS_LATE && j > runs.whole();
                    if has_late {
                        j -= 1;
                        rows.step::<Start, _, _, _, _>(&mut consumer, &tile, j);
                    }
                    while j > runs.whole() {
                        j -= 1;
                        rows.step::<Whole, _, _, _, _>(&mut consumer, &tile, j);
                        rows.sum_outside::<K>(j);
                    }
                    if has_late {
                        rows.finish(&mut consumer);
                    }
                    if !runs.has_other_edge(j) {
                        break;
                    }
                }
                if Rows::<U, OT, NT, PT>::IS_JOINED {
                    rows.finish(&mut consumer);
                }
            }
            // Q of the next tile may come. Held over the loop, the job spills 48 to 148 bytes.
            job = again(|| Job::load(memory.job(slot)));
            mbarrier::arrive(memory.q_full(slot) + 8);
            while walk.passes_last(j) {
                j = opaque(j - 1);
                consumer.pass();
            }
            // The number of the tile.
            let end = Ring::<1>(q.0 / K::WARPGROUPS);
            end.wait(memory.columns_full());
            store::<K, U, OT, _, _>(launch, memory, job, rows);
            mbarrier::arrive(memory.columns_full() + 8);
            q = Ring(q.0 + K::WARPGROUPS);
            job = next_job(q);
        }
    }
}
