//! The consumers' loop over tiles and blocks of keys: Algorithm 1 of FlashAttention-2 (Dao 2023).

use super::ROWS;
use super::consumer::Consumer;
use super::exchange::Exchange;
use super::job::{Job, Part, Turns};
use super::store::{store, store_by_map};
use super::watch::Watch;
use crate::abi::{Event, Share, Sm90Params};
use crate::attention::Softmax;
use crate::attention::heads::Heads;
use crate::attention::mask::{Interval, Mask, whole_blocks, whole_spans};
use crate::attention::score::{Corner, Score};
use crate::layout::sm90::Sm90Memory;
use crate::ptx::wgmma::Product;
use crate::ptx::{barrier, bulk, mbarrier, special, vote};
use crate::tile::registers::{again, opaque};
use crate::tile::whole::{map_rows, mask, scale_rows, to_operands};
use crate::tile::{Accumulator, Element, Operand, Ring};
use core::hint::cold_path;
use core::marker::PhantomData;
use core::mem::offset_of;

/// Whether O is stored by its map. Then a tile's slot of Q is given back during the next tile, once its O has left.
///
/// A constant, so that other kernels have no trace of it: a branch that the compiler removes later costs some a spill.
struct ByMap<H, const DT: usize>(PhantomData<H>);

impl<H: Heads, const DT: usize> ByMap<H, DT> {
    const YES: bool = H::STRIDED && Sm90Params::stores_by_map(16 * DT as u32);
}

/// Computes the warpgroup's rows of the block's tiles.
///
/// # Safety
/// The conditions of [`sm90`](super::sm90), with initialised barriers, in all threads of the warpgroup.
#[inline(always)]
pub unsafe fn consume<
    E: Element,
    M: Mask,
    H: Heads,
    C: Score,
    T: Watch,
    const G: u32,
    const W: u32,
    const DT: usize,
    const OT: usize,
    const NT: usize,
    const NQ: u32,
    const S: u32,
>(
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
    let params = &launch.forward;
    const { assert!(!ByMap::<H, DT>::YES || NQ > W) }
    // Two sides count blocks from 0 on.
    const { assert!(G == 1 || !M::Keys::HAS_START) }
    let (br, bc) = (W * ROWS, 16 * NT as u32);
    let (memory, turns) = (memory_of(side), Turns::<G>(side));
    let row = warpgroup * ROWS;
    // The thread's number in the warpgroup, and its warp's first row.
    // SAFETY: the block has this many threads.
    let who = || {
        let thread = unsafe { special::thread(128 * (G * W + 1)) };
        (thread % 128, thread / 32 % 4 * 16)
    };
    let mut q = Ring::<NQ>(warpgroup);
    let mut consumer = Consumer::<T, DT, OT, NT, S> {
        memory,
        warpgroup,
        number: side * W + warpgroup,
        slot: warpgroup,
        block: Ring(0),
        notes,
        watch: PhantomData::<T>,
    };
    // SAFETY: every stage is waited for before it is read, and released after. All branches but the cold ones depend on
    // the tile and the warpgroup alone; the cold ones hold instructions of a warp alone.
    unsafe {
        // The next tile, whose Q has landed with it.
        let next_job = |q: Ring<NQ>| {
            q.wait(memory.q_full(q.stage()));
            Job::load(memory.job(q.stage()))
        };
        // Gives the slot of the tile before back, whose O has left.
        let release_last = |q: Ring<NQ>| {
            if q.0 >= W {
                bulk::wait_read::<0>();
                mbarrier::arrive(memory.q_full(Ring::<NQ>(q.0 - W).stage()) + 8);
            }
        };
        let mut job = next_job(q);
        while job.split != Job::NONE.split {
            consumer.note(consumer.block, Event::Q);
            let slot = q.stage();
            consumer.slot = slot;
            let part = Part::<H, M>::new(params, job, row);
            let (heads, split) = (part.work.heads.first(), part.work.keys(params));
            let score = C::new(params, part.work.sequence.batch, heads);
            let scale = score.scale();
            // From here on `j` is the number of a visit, of the side's.
            let visits = job.visits::<H, M>(params, &part.work, split, [br, bc]);
            let first_key = |j: u32| visits.block(turns.block(j)) * bc;
            let own = visits.of(part.blocks(ROWS, bc));
            let seen = visits.of(Part::<H, M>::new(params, job, 0).blocks(br, bc));
            let start = seen.start;
            // A warpgroup that sees nothing passes all blocks.
            let own_start = match own.start < own.end {
                true => own.start,
                false => start,
            };
            let mut j = turns.count(seen.end);
            while j > turns.count(own.end).max(start) {
                j = opaque(j - 1);
                consumer.pass();
            }
            // Gives Q and the job back, where O does not need the slot; returns the job once more.
            let release_q = || {
                let job = again(|| Job::load(memory.job(slot)));
                if !ByMap::<H, DT>::YES {
                    mbarrier::arrive(memory.q_full(slot) + 8);
                }
                job
            };
            let mut o = [Accumulator::ZERO; OT];
            let mut softmax = Softmax::<1>::new(scale);
            softmax.take_sink(C::sink(params, split, heads), true);
            if j > own_start {
                if !H::STRIDED {
                    let warp_row = who().1;
                    consumer.copy_q(params, &part.work, part.first + warp_row as i32, warp_row);
                    barrier::some(1 + consumer.number, 128);
                }
                if scale.negative {
                    consumer.negate_q(who().1);
                    barrier::some(1 + consumer.number, 128);
                }
                // Calls on cold paths stay calls, with arguments in local memory, where what they call is as much as options
                // make of it.
                let cold = || {
                    if C::SCALED {
                        cold_path();
                    }
                };
                let keys = |j: u32, is_edge: bool| {
                    if !is_edge {
                        return [M::Keys::unbounded(); 2];
                    }
                    let (part, (_, warp_row)) = again(|| {
                        (
                            Part::<H, M>::new(params, Job::load(memory.job(slot)), row),
                            who(),
                        )
                    });
                    let [keys] = map_rows::<_, 1>(|i| {
                        let row = part.first + (warp_row + i) as i32;
                        let query = part.work.query(row.max(0) as u32);
                        part.mask
                            .keys_of_block(query, first_key(j) as i32)
                            .of_share(visits.share(turns.block(j), warpgroup))
                    });
                    keys
                };
                let apply = |s: &mut [Accumulator; NT], j: u32| {
                    if C::SCALED {
                        return;
                    }
                    let (part, (_, warp_row)) = again(|| {
                        (
                            Part::<H, M>::new(params, Job::load(memory.job(slot)), row),
                            who(),
                        )
                    });
                    let (sequence, split) = (part.work.sequence, part.work.keys(params));
                    let query = part.first + warp_row as i32;
                    let corner = Corner::new(query, first_key(j) as i32, sequence, split);
                    let mut tiles = [*s];
                    score.apply::<false, 1, NT>(&mut tiles, corner);
                    [*s] = tiles;
                };
                // Where a row sees only part of a block, the warpgroup looks for infinities and NaN in V: while the
                // tensor cores compute the scores or, of chunks, once V of the block before is released.
                let look = |consumer: &Consumer<T, DT, OT, NT, S>, is_edge: bool| {
                    !M::UNIFORM && is_edge && consumer.has_non_finite::<E>(who().0)
                };
                // Adds the product where there are some.
                let guard = |consumer: &Consumer<T, DT, OT, NT, S>,
                             found: bool,
                             o: &mut [Accumulator; OT],
                             p: &mut [Operand; NT],
                             j: u32| {
                    if found {
                        cold();
                        consumer.add_guarded::<E>(o, p, keys(j, true));
                        // One lane releases V, after all have read it.
                        barrier::warp();
                    }
                };
                // Blocks `exact..j` take exact maxima: all down to the last one that the first row sees, so that each row
                // has seen a key.
                let ends = part.ends(ROWS);
                let seen = ((ends[0].end() as u32).max(1) - 1) / bc;
                let exact = match G {
                    1 => seen,
                    _ => turns.count(seen + 1).max(1) - 1,
                };
                let mut exact = match M::Keys::may_have_gaps() {
                    true => own_start,
                    false => exact.max(own_start).min(j - 1),
                };
                let whole = whole_blocks(ends, bc).start.max(own_start);
                // Whether a row of the warpgroup sees only part of a block: with a boolean mask, blocks that it shows whole stand
                // between others.
                let spans = whole_spans(ends, bc);
                let is_edge = |j: u32| {
                    !M::Keys::may_have_gaps()
                        || visits.share(turns.block(j), warpgroup) != Share::All
                        || !spans.contains(&visits.block(turns.block(j)))
                };

                j -= 1;
                let mut s = [Accumulator::ZERO; NT];
                consumer.issue_scores::<E>(&mut s);
                if ByMap::<H, DT>::YES {
                    release_last(q);
                }
                let mut edge = is_edge(j);
                let mut leave_out = S > 1 && look(&consumer, edge);
                consumer.wait_scores(&mut s, false);
                apply(&mut s, j);
                exact_softmax(&mut softmax, &mut s, keys(j, edge));
                consumer.note(consumer.block, Event::Softmax);
                consumer.release_k();
                let [mut p] = to_operands::<E, 1, NT>([s]);
                consumer.note(consumer.block, Event::P);
                if S == 1 {
                    leave_out = look(&consumer, edge);
                }
                guard(&consumer, leave_out, &mut o, &mut p, j);
                // Whether `O += P V` of the block before is to be issued: not behind blocks that a boolean mask hides.
                let mut has_product = true;
                // No product is under way from a step to the next: the assembler would wait for each one.
                loop {
                    while j > exact {
                        j -= 1;
                        edge = is_edge(j);
                        if M::Keys::may_have_gaps() {
                            let is_hidden = visits.share(turns.block(j), warpgroup) == Share::None;
                            if is_hidden {
                                if has_product {
                                    consumer.finish::<E>(consumer.block, &mut o, &p, leave_out);
                                    consumer.block = consumer.block.next();
                                    has_product = false;
                                }
                                consumer.pass();
                                continue;
                            }
                            if !has_product {
                                consumer.issue_scores::<E>(&mut s);
                                leave_out = S > 1 && look(&consumer, edge);
                                consumer.wait_scores(&mut s, false);
                                apply(&mut s, j);
                                let factors = exact_softmax(&mut softmax, &mut s, keys(j, edge));
                                consumer.release_k();
                                scale_rows(&mut o, factors);
                                [p] = to_operands::<E, 1, NT>([s]);
                                if S == 1 {
                                    leave_out = look(&consumer, edge);
                                }
                                guard(&consumer, leave_out, &mut o, &mut p, j);
                                has_product = true;
                                continue;
                            }
                        }
                        consumer.issue_step::<E>(&mut s, &mut o, &p, leave_out);
                        leave_out = S > 1 && look(&consumer, edge);
                        consumer.wait_scores(&mut s, true);
                        apply(&mut s, j);
                        let factors = exact_softmax(&mut softmax, &mut s, keys(j, edge));
                        consumer.note(consumer.block, Event::Softmax);
                        consumer.release_k();
                        consumer.settle(&mut o);
                        scale_rows(&mut o, factors);
                        [p] = to_operands::<E, 1, NT>([s]);
                        consumer.note(consumer.block, Event::P);
                        if S == 1 {
                            leave_out = look(&consumer, edge);
                        }
                        guard(&consumer, leave_out, &mut o, &mut p, j);
                    }
                    while j > whole {
                        j -= 1;
                        consumer.issue_step::<E>(&mut s, &mut o, &p, leave_out);
                        consumer.wait_scores(&mut s, true);
                        apply(&mut s, j);
                        // Opaque with chunks: else the compiler copies the step, for the first one, which may leave V out.
                        leave_out = S == 1 && opaque(0) > 0;
                        let mut tiles = [s];
                        let mut factors = [1.0; 2];
                        let fit;
                        if S == 1 {
                            // K is gone, so its scores are compared while they are there.
                            fit = !vote::any(!softmax.serves(&tiles));
                            if fit {
                                let sums = softmax.apply(&mut tiles);
                                [s] = tiles;
                                softmax.add(sums);
                            } else {
                                cold_path();
                                let maxima = softmax.maxima(&s);
                                factors = softmax.update(0, &mut s, maxima);
                            }
                        } else {
                            let sums = softmax.apply(&mut tiles);
                            [s] = tiles;
                            // The branch keeps the exponentials before the wait, which the assembler would move up.
                            fit = !vote::any(!sums.fit());
                            if fit {
                                softmax.add(sums);
                            } else {
                                cold();
                                s = consumer.warp_scores::<E>(who().1);
                                apply(&mut s, j);
                                barrier::warp();
                                let maxima = softmax.maxima(&s);
                                factors = softmax.update(0, &mut s, maxima);
                            }
                        }
                        consumer.note(consumer.block, Event::Softmax);
                        consumer.settle(&mut o);
                        if !fit {
                            cold_path();
                            scale_rows(&mut o, factors);
                        }
                        consumer.release_k();
                        [p] = to_operands::<E, 1, NT>([s]);
                        consumer.note(consumer.block, Event::P);
                    }
                    // Below the whole blocks there are masked ones again, at the other edge.
                    if !M::Keys::HAS_START || j == own_start {
                        break;
                    }
                    exact = own_start;
                }
                job = release_q();
                if !M::Keys::may_have_gaps() || has_product {
                    consumer.finish::<E>(consumer.block, &mut o, &p, leave_out);
                    consumer.block = consumer.block.next();
                }
            } else {
                if ByMap::<H, DT>::YES {
                    release_last(q);
                }
                job = release_q();
            }
            while M::Keys::HAS_START && j > start {
                j = opaque(j - 1);
                consumer.pass();
            }
            q = Ring(q.0 + W);
            if G > 1 {
                // The first side adds up and stores.
                let exchange = Exchange::new::<OT>(memory_of(G), warpgroup, who().0);
                if side > 0 {
                    exchange.give(&o, &softmax);
                }
                barrier::some(1 + G * W + warpgroup, 128 * G);
                if side == 0 {
                    exchange.take(&mut o, &mut softmax);
                }
                barrier::some(1 + G * W + warpgroup, 128 * G);
            }
            // No box may begin before row 0.
            if ByMap::<H, DT>::YES
                && (launch.o_by_map != 0) & (Part::<H, M>::new(params, job, row).first >= 0)
            {
                // The products of all warps have read Q.
                barrier::some(1 + consumer.number, 128);
                let to = memory.q(slot);
                let map = maps + offset_of!(Sm90Params, o) as u64;
                store_by_map::<E, H, M, G, W, OT>(params, map, to, job, o, &softmax);
            } else if G == 1 || side == 0 {
                store::<E, H, M, G, W, OT>(params, job, o, &softmax);
            }
            consumer.note(consumer.block, Event::Stored);
            job = next_job(q);
        }
        // Shared memory stays until O has left.
        if ByMap::<H, DT>::YES {
            release_last(q);
        }
    }
}

/// Line 9 with exact maxima, where each row sees only `keys`; returns the factors of O.
#[inline(always)]
unsafe fn exact_softmax<I: Interval, const NT: usize>(
    softmax: &mut Softmax<1>,
    s: &mut [Accumulator; NT],
    keys: [I; 2],
) -> [f32; 2] {
    let mut tiles = [*s];
    I::mask(&mut tiles, keys);
    [*s] = tiles;
    // SAFETY: the caller's promise.
    let maxima = unsafe { softmax.maxima(s) };
    softmax.update(0, s, maxima)
}
