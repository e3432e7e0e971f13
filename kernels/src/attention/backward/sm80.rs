//! FlashAttention-2 backward (Dao 2023, Algorithm 2), one key tile a block.
//!
//! A block holds Bc keys and walks over the queries of all heads of the group in tiles of Br. Two warps share
//! `16 * MT` of the keys, one on each side:
//!
//! ```text
//! side 0    Sᵀ = K Qᵀ      P = exp(S - lse)       loads of the next step    dV += Pᵀ dO
//! side 1    dQ += dS K, of the step before    dPᵀ = V dOᵀ    dS = P * (dP - delta)    dK += dSᵀ Q
//! ```
//!
//! A side has one of the two sums in registers, so that a warp can have twice as many keys as with both: each fragment
//! of Q and dO then feeds twice as many products. The products are transposed, a row for each key: P and dS,
//! rounded, are operands in registers. P passes through shared memory once, lane to lane; dS as a tile, for dQ.
//! dQ comes a step late: side 1 computes it while side 0 computes the exponentials, which side 1 waits for.
//!
//! dQ is added to sums in device memory: in any order, or in turns, key tile after key tile. A block then waits only for
//! blocks of earlier places of the order. GPUs begin blocks in this order, though CUDA does not promise it.
//!
//! Shared memory holds K, V, two stages of Q and dO, one or two of dS (before that P), two of the row statistics, and the
//! job.

use super::job::{Job, Step, below};
use crate::abi::BackwardParams;
use crate::attention::guard::{has_non_finite, in_turn};
use crate::attention::mask::{Interval, Mask};
use crate::attention::score::{Corner, Score};
use crate::layout::sum;
use crate::ptx::{barrier, cp_async, global, math, shared, special};
use crate::tile::registers::{again, opaque_in};
use crate::tile::whole::{map_rows, to_operands, zero};
use crate::tile::{
    Accumulator, Copier, CpAsync, Element, Fixed, Operand, Pipeline, SharedTile, multiply,
    multiply_transposed,
};

/// Computes dk and dv of the block's keys, and adds to the sums of dq.
///
/// The block has `W` warps; the head dim is at most `16 * DT`, and a step takes `16 * NT` queries. Of K and V, `QT` of the
/// `DT` slices stay in registers. Of dQ a warp of side 1 has `QM` by `QN` tiles, `QC` columns of them at a time. dS has `DS`
/// stages: with two, side 0 waits for the dQ of a step before only where it counts turns.
///
/// # Safety
/// Launched as [`BackwardParams`] and the kernel's row of the [catalog](crate::catalog) say: grid, block size and shared
/// memory, with readable inputs and row statistics, and writable sums, dk and dv.
#[inline(always)]
pub unsafe fn sm80<
    E: Element,
    M: Mask,
    C: Score,
    const W: usize,
    const MT: usize,
    const DT: usize,
    const NT: usize,
    const QT: usize,
    const QM: usize,
    const QN: usize,
    const QC: usize,
    const KT: usize,
    const DS: u32,
>(
    params: &BackwardParams,
) {
    let forward = &params.forward;
    let (bc, br) = (16 * KT as u32, 16 * NT as u32);
    let threads = 32 * W as u32;
    // Who the thread is, computed where it is used, in each step and, by another number of the step, once more:
    // registers are few.
    // SAFETY: the launch has this many threads a block.
    let thread = |step: u32| opaque_in(unsafe { special::thread(threads) }, step);
    let warp = |step: u32| thread(step) / 32;
    let pairs = W as u32 / 2;
    // By a constant: of a variable the compiler asks whether it is 0, and may rotate the loop that begins with the question.
    let side = |step: u32| warp(step) / (W as u32 / 2);
    // The first of the warp's keys in the block.
    let warp_key = |step: u32| warp(step) % (W as u32 / 2) * 16 * MT as u32;

    let k_tile = SharedTile::<DT>::new(shared::base());
    let v_tile = k_tile.skip(bc);
    let q_tile = |stage: u32| v_tile.skip(bc + stage * 2 * br);
    let d_o_tile = |stage: u32| q_tile(stage).skip(br);
    let ds_tile = |stage: u32| SharedTile::<NT>::new(q_tile(2).base).skip(stage % DS * bc);
    let rows_of = |stage: u32| ds_tile(0).skip(DS * bc).base + stage * 8 * br;
    // The warp's rows of K or V, later of dV or dK.
    let own = |step: u32| k_tile.skip(side(step) * bc + warp_key(step));
    // The warp's rows of dS, where before P passes from lane to lane.
    let passed = |stage: u32, step: u32| ds_tile(stage).skip(warp_key(step));

    let words = rows_of(2);
    // The block's job, read where it is used.
    // SAFETY: written below, before the first use.
    let job = || Job::<M>::of(forward, unsafe { shared::load_u32x4(words) }, bc, br);
    // Barrier 0 is of all threads, 1 to W / 2 of the pairs.
    let added = 1 + pairs;
    // Whether side 0 waits for side 1's dQ.
    let waits = || DS == 1 || params.turns != 0;

    // SAFETY: called between the acquire and the commit of the stage's buffers.
    let load = |stage: u32, step: Step| unsafe {
        let (job, thread) = again(|| (job(), thread(step.tile)));
        let first = job.query_tile(step) * br;
        let head = job.head(forward, step.head);
        let exist = job.sequence.queries - first;
        let rows = |tensor, dim| {
            let rows = job.sequence.head_rows(tensor, head, dim);
            Copier::new(rows, thread, threads / 2)
        };
        rows(&forward.q, forward.dim).load(q_tile(stage), first, br, exist);
        rows(&params.d_o, C::value_dim(forward)).load(d_o_tile(stage), first, br, exist);
        // lse of all rows of a head come before delta: as many 16-byte pieces of each.
        let pieces = br / 4;
        if thread < 2 * pieces {
            let lse = params.statistics(job.head_index(forward, step.head), first);
            let delta = lse + 4 * u64::from(params.padded_rows);
            let rows = if thread < pieces { lse } else { delta };
            let from = rows + u64::from(thread % pieces * 16);
            cp_async::copy16(rows_of(stage) + 16 * thread, from, 16);
        }
    };
    // The first query of a step. The job is read only where it matters.
    let first_query = |step: Step| match M::HAS_HEADS {
        true => job().query_tile(step) * br,
        false => step.tile * br,
    };
    let mut pipeline = CpAsync::<2>;
    // The counter of a step's query tile: how many key tiles were added to it.
    let turn = |job: &Job<M>, step: Step| {
        let row = job.padded_row(params, step.head, job.query_tile(step) * br);
        params.turns + 4 * (row / u64::from(br))
    };
    // Whether a query of a tile does not see all keys: one beyond the last is seen by none.
    let masked = |job: &Job<M>, first: u32| job.masks(first, [bc, br]);
    // dV or dK of the warp's keys.
    let mut sum = [[Accumulator::ZERO; DT]; MT];

    // SAFETY: all warps pass the same barriers, and the two of a pair their own. Every branch depends on the step
    // and the warp alone, so all lanes reach every instruction of the warp.
    unsafe {
        if thread(0) == 0 {
            let job = Job::<M>::at(forward, special::block(), [bc, br], M::descends());
            shared::store_u32x4(words, job.words());
        }
        barrier::block();
        let mut step = Step::first(&job());
        // Without a window the last query sees all keys: there is a step.
        let sees = || !M::Keys::HAS_START || job().first < job().end;
        let more = |step: Step| step.head < forward.group.value && sees();
        pipeline.acquire();
        {
            let job = job();
            let rows = |tensor, dim| {
                let rows = job.sequence.head_rows(tensor, job.kv_head, dim);
                Copier::new(rows, thread(0), threads)
            };
            let exist = job.sequence.keys - job.first_key;
            rows(&forward.k, forward.dim).load(k_tile, job.first_key, bc, exist);
            rows(&forward.v, C::value_dim(forward)).load(v_tile, job.first_key, bc, exist);
        }
        if side(0) == 0 && sees() {
            load(0, step);
        }
        pipeline.commit();
        pipeline.peek();
        let mut kept = [[Operand::ZERO; DT]; MT];
        for mt in 0..MT {
            for dt in 0..QT {
                kept[mt][dt] = own(0).a(special::lane(), mt, dt);
            }
        }
        // Whether the causal mask may hide an infinity or a NaN of K from some rows.
        let spoiled = barrier::block_any(
            !M::UNIFORM && side(0) == 0 && has_non_finite::<E, Fixed, MT, DT, DT>(own(0), |dt| dt),
        );

        loop {
            // Tiles of this step are there, and all warps are done with the step before.
            pipeline.wait();
            if side(step.tile) == 1 && !step.is_first(&job()) {
                // 5. dQ += dS K, of the step before
                let step = step.previous(&job());
                let ds_tile = ds_tile(step.number(&job()) % 2);
                let guarded = spoiled && masked(&job(), first_query(step));
                let warp = warp(step.head) % pairs;
                add_dq::<E, M, DT, NT, QM, QN, QC, KT>(
                    params, job, step, ds_tile, k_tile, warp, guarded,
                );
            }
            if !more(step) {
                break;
            }
            // Steps take the two stages in turns.
            let stage = step.number(&job()) % 2;
            let first = first_query(step);
            let masked = masked(&job(), first);
            let side = side(first);
            if side == 1 && waits() {
                barrier::arrive(added, threads);
            }
            // The right factors of the warp's two products.
            let near = q_tile(stage).skip(side * br);
            let far = q_tile(stage).skip((1 - side) * br);
            // The queries that see each of the lane's keys, counted from the tile's first one.
            let seen = || {
                let job = job().of_head(forward, step.head);
                let key = job.first_key + warp_key(step.head);
                map_rows(|i| job.queries(key + i).counted_from(first as i32))
            };

            // 1. Sᵀ = K Qᵀ; 2. dPᵀ = V dOᵀ
            let mut x = [[Accumulator::ZERO; NT]; MT];
            let lane = opaque_in(special::lane(), first);
            let own = own(first);
            let a = |dt: usize| {
                let mut a = [Operand::ZERO; MT];
                for mt in 0..MT {
                    a[mt] = if dt < QT {
                        kept[mt][dt]
                    } else {
                        own.a(lane, mt, dt)
                    };
                }
                a
            };
            multiply_transposed::<E, Accumulator, Fixed, MT, NT, DT>(&mut x, a, near, lane);

            // P = exp(S - lse); dS = P * (dP - delta)
            let rows = rows_of(stage) + side * 4 * br;
            let x: [[Operand; NT]; MT] = if side == 0 {
                let (p, slopes) = if C::SCALED {
                    let scale = forward.scale * core::f32::consts::LOG2_E;
                    map_columns(&mut x, rows, |s, lse| math::exp2(math::fma(s, scale, -lse)));
                    if masked {
                        zero(&mut x, seen());
                    }
                    let p = to_operands::<E, MT, NT>(x);
                    (p, p)
                } else {
                    let (job, seen) = (job(), masked.then(seen));
                    let score = C::new(forward, job.sequence.batch, job.head(forward, step.head));
                    let key = (job.first_key + warp_key(step.head)) as i32;
                    let whole = job.sequence.whole();
                    let corner = Corner::new(first as i32, key, job.sequence, whole);
                    probabilities::<E, C, _, MT, NT>(x, rows, score, corner, seen)
                };
                if waits() {
                    // dS of the step before is free, and dQ added.
                    barrier::some(added, threads);
                }
                let pair = || barrier::some(1 + warp(step.head) % pairs, 64);
                if !C::SCALED && C::adds_underived() {
                    // Once more, without the derivatives.
                    pass(passed(stage, step.head).base, p);
                    pair();
                    pair();
                }
                pass(passed(stage, step.head).base, slopes);
                pair();
                pipeline.fill(|| {
                    let next = step.next(&job());
                    if more(next) {
                        load(1 - stage, next);
                    }
                });
                if params.turns != 0 && warp(step.head) == pairs - 1 && !step.is_first(&job()) {
                    let job = job();
                    global::count_once(turn(&job, step.previous(&job)));
                }
                p
            } else {
                map_columns(&mut x, rows, |dp, delta| dp - delta);
                let pair = || barrier::some(1 + warp(step.head) % pairs, 64);
                let place = || {
                    let job = job();
                    let head = [job.sequence.batch, job.head(forward, step.head)];
                    let key = (job.first_key + warp_key(step.head)) as i32;
                    let whole = job.sequence.whole();
                    (head, Corner::new(first as i32, key, job.sequence, whole))
                };
                if !C::SCALED && C::adds_underived() {
                    pair();
                    let ((head, corner), seen) = (place(), masked.then(seen));
                    let from = passed(stage, step.head).base;
                    for mt in 0..MT {
                        for nt in 0..NT {
                            let mut tile = [[x[mt][nt]]];
                            multiply_by::<E, 1, 1>(&mut tile, from + 512 * (mt * NT + nt) as u32);
                            if let Some(seen) = seen {
                                zero(&mut tile, [below(seen[mt], nt)]);
                            }
                            let corner = corner.skip::<true>(mt, nt);
                            C::add_gradients::<1, 1, false>(params, head, &tile, corner);
                        }
                    }
                    pair();
                }
                pair();
                multiply_by::<E, MT, NT>(&mut x, passed(stage, step.head).base);
                if masked {
                    zero(&mut x, seen());
                }
                if !C::SCALED && !C::adds_underived() {
                    let (head, corner) = place();
                    C::add_gradients::<MT, NT, false>(params, head, &x, corner);
                }
                let ds = to_operands::<E, MT, NT>(x);
                // All lanes have read P.
                barrier::warp();
                passed(stage, step.head).set_operands::<MT, NT>(0, ds);
                ds
            };

            // 3. dV += Pᵀ dO; 4. dK += dSᵀ Q
            if masked && !M::UNIFORM && has_non_finite::<E, Fixed, NT, DT, DT>(far, |dt| dt) {
                M::Queries::multiply_seen::<E, MT, NT, DT>(
                    &mut sum,
                    |mt, nt| x[mt][nt],
                    in_turn(x),
                    |nt, dt| far.skip(16 * nt).b_trans(special::lane(), 0, dt),
                    seen(),
                );
            } else {
                let a = |nt: usize| {
                    let mut a = [Operand::ZERO; MT];
                    for mt in 0..MT {
                        a[mt] = x[mt][nt];
                    }
                    a
                };
                let lane = opaque_in(special::lane(), first);
                multiply::<E, Fixed, MT, NT, DT, DT>(&mut sum, a, far, lane, |dt| dt);
            }
            let job = job();
            if params.turns != 0 && warp(step.head) == 0 {
                let first = job.query_tile(step) * br;
                let before = job.tiles_before(forward, first, [bc, br]);
                global::wait_for_count(turn(&job, step), before);
            }
            step = step.next(&job);
        }
        // All warps are done with K and V, and have added to dQ.
        barrier::block();
        if params.turns != 0 && warp(0) == 0 && sees() {
            let job = job();
            global::count_once(turn(&job, step.previous(&job)));
        }

        // dK and dV leave through the warp's rows of K and V.
        let (job, own) = again(|| (job(), own(0)));
        let key = job.first_key + warp_key(0);
        if key >= job.sequence.keys {
            return;
        }
        let (tensor, aligned, factor) = if side(0) == 0 {
            (&params.dv, params.dv_aligned, 1.0)
        } else {
            (&params.dk, params.dk_aligned, forward.scale)
        };
        let dim = match C::SCALED || side(0) != 0 {
            true => forward.dim,
            false => C::value_dim(forward),
        };
        let lane = special::lane();
        for mt in 0..MT {
            for dt in 0..DT {
                let mut tile = sum[mt][dt];
                tile.scale_rows([factor; 2]);
                own.set(lane, mt, dt, tile.to_operand::<E>());
            }
        }
        barrier::warp();
        let rows = job.sequence.head_rows(tensor, job.kv_head, dim);
        let (count, exist) = (16 * MT as u32, job.sequence.keys - key);
        Copier::new(rows, lane, 32).store(own, key, count, exist, aligned != 0);
    }
}

/// Adds a warp's part of a step's dS K to the sums of dQ. `guarded` leaves hidden pairs out: K holds an infinity or a NaN.
///
/// # Safety
/// All lanes of the warp make the same call, with the tiles written and visible; the sums are writable.
#[inline(always)]
unsafe fn add_dq<
    E: Element,
    M: Mask,
    const DT: usize,
    const NT: usize,
    const QM: usize,
    const QN: usize,
    const QC: usize,
    const KT: usize,
>(
    params: &BackwardParams,
    job: impl Fn() -> Job<M>,
    step: Step,
    ds_tile: SharedTile<NT>,
    k_tile: SharedTile<DT>,
    warp: u32,
    guarded: bool,
) {
    // Warps side by side, then one below the other.
    let (columns, row_warps) = ((DT / QN) as u32, NT / QM);
    let (down, right) = (warp / columns, warp % columns);
    let tile = match M::HAS_HEADS {
        true => job().query_tile(step),
        false => step.tile,
    };
    let first = 16 * NT as u32 * tile;
    for chunk in 0..QN / QC {
        let lane = opaque_in(special::lane(), first);
        let beside = |nt: usize| (chunk * QC + nt) * DT / QN;
        let mut dq = [[Accumulator::ZERO; QC]; QM];
        // SAFETY: the caller's promise.
        unsafe {
            if guarded {
                let keys = |mt: usize, i: u32| {
                    let query = first + 16 * ((mt * row_warps) as u32 + down) + i;
                    match M::HAS_HEADS {
                        true => job().of_head(&params.forward, step.head).keys(query),
                        false => job().keys(query),
                    }
                };
                let mut seen = [[M::Keys::default(); 2]; QM];
                for mt in 0..QM {
                    seen[mt] = [keys(mt, lane / 4), keys(mt, lane / 4 + 8)];
                }
                let ds = |mt, kt| ds_tile.a_trans(special::lane(), down, kt, mt * row_warps);
                M::Keys::multiply_seen::<E, QM, KT, QC>(
                    &mut dq,
                    ds,
                    |kt| core::array::from_fn(|mt| ds(mt, kt as usize)),
                    |kt, nt| {
                        let rows = k_tile.skip(16 * kt);
                        rows.b_trans_beside(special::lane(), right, 0, beside(nt))
                    },
                    seen,
                );
            } else {
                for kt in 0..KT {
                    let mut a = [Operand::ZERO; QM];
                    for mt in 0..QM {
                        a[mt] = ds_tile.a_trans(lane, down, kt, mt * row_warps);
                    }
                    for nt in 0..QC {
                        let b = k_tile.b_trans_beside(lane, right, kt, beside(nt));
                        for mt in 0..QM {
                            dq[mt][nt].mma::<E>(a[mt], b);
                        }
                    }
                }
            }
            let place = |row16: u64, column16: u32, i: usize| {
                let tile = sum::tile(row16, column16, 16 * DT as u32);
                4 * (256 * tile + u64::from(sum::place(lane, i as u32)))
            };
            let row = job().padded_row(params, step.head, first);
            let row16 = row / u64::from(sum::TILE) + u64::from(down);
            let to = params.dq_sum + place(row16, right, 0);
            for mt in 0..QM {
                for nt in 0..QC {
                    for i in 0..8 {
                        let further = place((mt * row_warps) as u64, beside(nt) as u32, i);
                        global::add_f32(to + (further - place(0, 0, 0)), dq[mt][nt].0[i]);
                    }
                }
            }
        }
    }
}

/// P of transposed products, and P times the derivatives of the scores, with 0 for pairs that are not `seen`, if given.
///
/// # Safety
/// The statistics at the shared address `rows` are written and visible.
#[inline(always)]
unsafe fn probabilities<E: Element, C: Score, I: Interval, const MT: usize, const NT: usize>(
    x: [[Accumulator; NT]; MT],
    rows: u32,
    score: C,
    corner: Corner,
    seen: Option<[[I; 2]; MT]>,
) -> ([[Operand; NT]; MT], [[Operand; NT]; MT]) {
    let scale = score.scale().signed();
    let mut p = [[Operand::ZERO; NT]; MT];
    let mut slopes = p;
    for mt in 0..MT {
        for nt in 0..NT {
            let mut tile = [[x[mt][nt]]];
            let derivatives = score.apply_deriving(&mut tile[0][0], corner.skip::<true>(mt, nt));
            let rows = rows + 64 * nt as u32;
            // SAFETY: the caller's promise.
            unsafe {
                map_columns(&mut tile, rows, |s, lse| {
                    math::exp2(math::fma(s, scale, -lse))
                });
            }
            if let Some(seen) = seen {
                zero(&mut tile, [below(seen[mt], nt)]);
            }
            let [[mut tile]] = tile;
            p[mt][nt] = tile.to_operand::<E>();
            for i in 0..8 {
                tile.0[i] *= derivatives.0[i];
            }
            slopes[mt][nt] = tile.to_operand::<E>();
        }
    }
    (p, slopes)
}

/// Replaces each element of tiles, whose columns are queries, by `f` of it and of its query's statistic.
///
/// # Safety
/// The statistics at the shared address `rows` are written and visible.
#[inline(always)]
unsafe fn map_columns<const MT: usize, const NT: usize>(
    x: &mut [[Accumulator; NT]; MT],
    rows: u32,
    f: impl Fn(f32, f32) -> f32,
) {
    let lane = special::lane();
    for nt in 0..NT {
        for half in 0..2 {
            let column = 16 * nt as u32 + 8 * half as u32 + 2 * (lane % 4);
            // SAFETY: the caller's promise.
            let pair = unsafe { shared::load_f32x2(rows + 4 * column) };
            for mt in 0..MT {
                for i in 0..4 {
                    let x = &mut x[mt][nt].0[4 * half + i];
                    *x = f(*x, pair[i % 2]);
                }
            }
        }
    }
}

/// Writes operands for [`multiply_by`] of the same lane of another warp.
///
/// # Safety
/// No other lane uses the lane's bytes at the shared address `to`.
#[inline(always)]
unsafe fn pass<const MT: usize, const NT: usize>(to: u32, operands: [[Operand; NT]; MT]) {
    let to = to + 16 * special::lane();
    for mt in 0..MT {
        for nt in 0..NT {
            // SAFETY: the caller's promise.
            unsafe { shared::store_u32x4(to + 512 * (mt * NT + nt) as u32, operands[mt][nt].0) }
        }
    }
}

/// Multiplies each element by its operand, which the same lane of another warp has [passed](pass).
///
/// # Safety
/// The operands at the shared address `from` are written and visible.
#[inline(always)]
unsafe fn multiply_by<E: Element, const MT: usize, const NT: usize>(
    x: &mut [[Accumulator; NT]; MT],
    from: u32,
) {
    let from = from + 16 * special::lane();
    for mt in 0..MT {
        for nt in 0..NT {
            // SAFETY: the caller's promise.
            let operand = unsafe { shared::load_u32x4(from + 512 * (mt * NT + nt) as u32) };
            x[mt][nt].multiply_by::<E>(Operand(operand));
        }
    }
}
