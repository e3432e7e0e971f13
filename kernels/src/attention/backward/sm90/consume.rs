//! The consumers' loop over blocks of queries: Algorithm 2 of FlashAttention-2 (Dao 2023), with S and dP transposed.

use super::guard::{Columns, LeaveOut, SEARCH, keys_of_rows};
use super::job::{job_at, query_tile, share};
use super::reduce::{SHARING, read, written};
use super::shown::Shown;
use super::store::store;
use super::{CONSUMERS, KEYS, THREADS};
use crate::abi::{BackwardParams, Share};
use crate::attention::backward::job::{Job, Step, below};
use crate::attention::guard::panels::{add_guarded, add_guarded_rows, has_non_finite};
use crate::attention::mask::{Interval, Mask};
use crate::attention::score::{Corner, Score};
use crate::layout::rows::Rows;
use crate::layout::sm90_backward::Sm90BackwardMemory;
use crate::layout::{fragment, sum};
use crate::ptx::wgmma::{self, Product};
use crate::ptx::{barrier, bulk, math, mbarrier, shared, special, stmatrix};
use crate::tile::registers::{again, opaque};
use crate::tile::{Accumulator, Element, Operand, Ring};
use core::hint::cold_path;

/// Computes dK and dV of the warpgroup's keys, and its part of the block's dQ, or dS where `STORES`.
///
/// # Safety
/// The conditions of [`sm90`](super::sm90), with initialised barriers, in all threads of the warpgroup.
#[inline(always)]
pub unsafe fn consume<
    E: Element,
    M: Mask,
    C: Score,
    const DT: usize,
    const NT: usize,
    const QT: usize,
    const STORES: bool,
>(
    params: &BackwardParams,
    memory: Sm90BackwardMemory,
    place: u32,
    warpgroup: u32,
) where
    [Accumulator; DT]: Product,
    [Accumulator; NT]: Product,
    [Accumulator; QT]: Product,
{
    let br = 16 * NT as u32;
    let skipped = warpgroup * KEYS;
    let job = job_at::<M, STORES>(params, place, br);
    // Blocks of queries within these need no mask.
    let whole = job.whole(job.first_key + skipped, KEYS);
    let (k, v) = (memory.k(), memory.v());
    // SAFETY: the block has this many threads.
    let who = || unsafe { special::thread(THREADS) % 128 };
    // Tiles whose lse is loaded ahead, and the first one whose delta is: the registers hold no more.
    let (ahead, first_early) = match C::SCALED {
        true => (NT, NT - 4),
        false => (4, NT),
    };
    let mut dk = [Accumulator::ZERO; DT];
    let mut dv = [Accumulator::ZERO; DT];
    let mut ring = Ring::<{ Sm90BackwardMemory::STAGES }>(0);
    let mut step = Step::first(&job);
    let mut left = job.steps(&params.forward);
    // SAFETY: every stage is waited for before it is read, and released after. All branches depend on the step and the
    // warpgroup alone.
    unsafe {
        mbarrier::wait(memory.k_full(), 0);
        let in_keys =
            !M::UNIFORM && !STORES && has_non_finite::<E, DT, 8>(k, who(), SEARCH + warpgroup);
        while left > 0 {
            let stage = ring.stage();
            let (q, d_o, ds_tile) = (
                memory.q(stage),
                memory.d_o(stage),
                memory.ds(if STORES { 0 } else { stage }),
            );
            // lse or delta of two of the lane's columns.
            let pair = |rows: u32, nt: usize, half: usize| {
                let column = 16 * nt as u32 + 8 * half as u32 + 2 * (special::lane() % 4);
                shared::load_f32x2(rows + 4 * column)
            };

            let first_query = (query_tile::<M, STORES>(&job, step, br) * br) as i32;
            let share = || share::<M, STORES>(&job, step, br, warpgroup);
            let masked = M::Queries::may_have_gaps() && share() != Share::All
                || first_query < whole.start
                || first_query + br as i32 > whole.end;
            let (batch, head) = (job.sequence.batch, job.head(&params.forward, step.head));
            let mut score = C::new(&params.forward, batch, head);
            let scale = match C::SCALED {
                true => params.forward.scale * core::f32::consts::LOG2_E,
                false => score.scale().signed(),
            };
            let key = (job.first_key + skipped + who() / 32 * 16) as i32;
            let corner = Corner::new(first_query, key, job.sequence, job.sequence.whole());
            ring.wait(memory.q_full(stage));
            ring.wait(memory.d_o_full(stage));
            let mut leave_out = LeaveOut::default();
            if masked && !M::UNIFORM {
                leave_out = LeaveOut {
                    queries: has_non_finite::<E, DT, NT>(q, who(), SEARCH + warpgroup)
                        | has_non_finite::<E, DT, NT>(d_o, who(), SEARCH + warpgroup),
                    keys: in_keys,
                };
            }

            // 1. Sᵀ = K Qᵀ
            let mut s = [Accumulator::ZERO; NT];
            let mut dp = [Accumulator::ZERO; NT];
            // Before the products: behind their reads of shared memory these loads would wait.
            let statistics = |rows: u32, nt: usize| [0, 1].map(|half| pair(rows, nt, half));
            let mut row_values = [[[0.0; 2]; 2]; NT];
            for nt in 0..ahead {
                row_values[nt] = statistics(memory.lse(stage), nt);
            }
            wgmma::fence();
            let (a, b) = (k.rows(skipped), q.rows(0));
            for dt in 0..DT as u32 {
                let (a, b) = (a.skip(k.to_columns(dt)), b.skip(q.to_columns(dt)));
                s.rows::<E>(a, b, dt > 0);
            }
            wgmma::commit();

            // 2. dPᵀ = V dOᵀ
            let (a, b) = (v.rows(skipped), d_o.rows(0));
            for dt in 0..DT as u32 {
                let (a, b) = (a.skip(v.to_columns(dt)), b.skip(d_o.to_columns(dt)));
                dp.rows::<E>(a, b, dt > 0);
            }
            wgmma::commit();

            // Before the products are there, since the mask may lie in device memory.
            let mut shown = Shown::default();
            if masked && !C::SCALED {
                let queries = queries(&job, params, step, who(), skipped, first_query, share());
                shown = Shown::new::<NT>(queries);
            }

            // The terms that the next step adds to its scores come from device memory while this one computes: each warp takes a
            // quarter of the queries.
            let next = query_tile::<M, STORES>(&job, step.next(&job), br) * br;
            let rows = br / 4;
            let next = Corner {
                query: (next + who() / 32 * rows) as i32,
                key: (job.first_key + skipped) as i32,
                ..corner
            };
            score.prefetch(next, [rows, KEYS]);

            // P = exp(S - lse)
            wgmma::wait::<1>();
            wgmma::pin(&mut s);
            let mut p = [Operand::ZERO; NT];
            // P times the derivatives of the scores, rounded: the registers hold no f32 beside P.
            let mut slopes = p;
            for nt in 0..NT {
                let derivatives = score.apply_deriving(&mut s[nt], corner.skip::<true>(0, nt));
                for half in 0..2 {
                    let lse = row_values[nt][half];
                    for i in 0..4 {
                        let x = &mut s[nt].0[4 * half + i];
                        *x = math::exp2(math::fma(*x, scale, -lse[i % 2]));
                    }
                }
                if nt + ahead < NT {
                    row_values[nt + ahead] = statistics(memory.lse(stage), nt + ahead);
                }
                if nt >= first_early {
                    row_values[nt] = statistics(memory.delta(stage), nt);
                }
                if !C::SCALED {
                    if masked {
                        shown.zero_hidden(&mut s[nt], nt);
                    }
                    p[nt] = s[nt].to_operand::<E>();
                    slopes[nt] = product(s[nt], derivatives).to_operand::<E>();
                    score = score.after(p[nt]);
                }
            }

            wgmma::wait::<0>();
            wgmma::pin(&mut dp);
            // dP - delta
            for nt in 0..NT {
                if nt < first_early {
                    row_values[nt] = statistics(memory.delta(stage), nt);
                }
                for half in 0..2 {
                    for i in 0..4 {
                        dp[nt].0[4 * half + i] -= row_values[nt][half][i % 2];
                    }
                }
            }
            if masked {
                if C::SCALED {
                    let queries = queries(&job, params, step, who(), skipped, first_query, share());
                    for nt in 0..NT {
                        s[nt].zero_columns(special::lane(), below(queries, nt));
                        dp[nt].zero_columns(special::lane(), below(queries, nt));
                    }
                } else {
                    for nt in 0..NT {
                        shown.zero_hidden(&mut dp[nt], nt);
                    }
                }
            }
            if C::SCALED {
                p = s.map(Accumulator::to_operand::<E>);
            }

            // 3. dV += Pᵀ dO. Where the other warpgroup waits for dS, dS goes first: measured in docs/tuning.md.
            let add_dv = |dv: &mut [Accumulator; DT], p: &[Operand; NT]| {
                wgmma::pin(dv);
                wgmma::fence();
                let columns = Columns::new::<M>(d_o, memory.zeros(), leave_out.queries);
                for nt in 0..NT {
                    dv.columns::<E>(p[nt], columns.slice(nt as u32));
                }
                wgmma::commit();
            };

            // dS = P * (dP - delta)
            let mut ds = [Operand::ZERO; NT];
            for nt in 0..NT {
                if C::SCALED {
                    ds[nt] = product(s[nt], dp[nt]).to_operand::<E>();
                    continue;
                }
                let times = |factors: Operand| {
                    let mut gradients = dp[nt];
                    gradients.multiply_by::<E>(factors);
                    gradients
                };
                let gradients = times(slopes[nt]);
                ds[nt] = gradients.to_operand::<E>();
                let of_bias = match C::adds_underived() {
                    true => times(p[nt]),
                    false => gradients,
                };
                let head = [job.sequence.batch, job.head(&params.forward, step.head)];
                let corner = corner.skip::<true>(0, nt);
                C::add_gradients::<1, 1, true>(params, head, &[[of_bias]], corner);
            }

            if STORES {
                add_dv(&mut dv, &p);
            }

            // dS to shared memory, a row for each query.
            let (row, chunk) = fragment::ldmatrix_chunks_first(special::lane());
            let key = skipped + who() / 32 * 16 + 8 * chunk;
            if STORES {
                barrier::some(read(0, warpgroup), SHARING);
            }
            for nt in 0..NT {
                let to = ds_tile.chunk(16 * nt as u32 + row, key);
                stmatrix::x4_trans(to, ds[nt].0);
            }
            bulk::fence();
            let mut dq = [Accumulator::ZERO; QT];
            let (row, k_part) = match br {
                128 => (64 * warpgroup, k),
                _ => (0, k.skip_panels(warpgroup)),
            };
            if STORES {
                barrier::arrive(written(0, warpgroup), SHARING);
            } else {
                barrier::warp();
                mbarrier::arrive_once(memory.ds_full(stage));
                add_dv(&mut dv, &p);
                ring.wait(memory.ds_full(stage));

                // 5. dQ = dS K
                let columns = Columns::new::<M>(k_part, memory.zeros(), leave_out.keys);
                wgmma::fence();
                for i in 0..CONSUMERS * KEYS / 16 {
                    let a = ds_tile.rows(row).skip(ds_tile.to_columns(i));
                    dq.rows_columns::<E>(a, columns.slice(i), i > 0);
                }
                wgmma::commit();
            }

            // 4. dK += dSᵀ Q
            wgmma::pin(&mut dk);
            wgmma::fence();
            let columns = Columns::new::<M>(q, memory.zeros(), leave_out.queries);
            for nt in 0..NT {
                dk.columns::<E>(ds[nt], columns.slice(nt as u32));
            }
            wgmma::commit();

            wgmma::wait::<1>();
            wgmma::pin(&mut dv);
            if leave_out.queries {
                cold_path();
                add_guarded::<E, DT, NT>(
                    d_o,
                    &mut dv,
                    &mut p,
                    queries(&job, params, step, who(), skipped, first_query, share()),
                );
                barrier::warp();
            }
            ring.release(memory.d_o_full(stage));
            if !STORES {
                wgmma::pin(&mut dq);
                if leave_out.keys {
                    cold_path();
                    let row = row + who() / 32 * 16;
                    let mask = job.of_head(&params.forward, step.head).mask;
                    let first = first_query + row as i32;
                    let keys = keys_of_rows(mask, first, job.first_key as i32);
                    add_guarded_rows::<E, QT, 8>((ds_tile, row), k_part, &mut dq, keys);
                }
                let dq_stage = stage % memory.dq_stages();
                barrier::some(read(dq_stage, warpgroup), SHARING);
                let to = memory.dq(dq_stage, warpgroup) + who() / 32 * QT as u32 * sum::BYTES;
                for qt in 0..QT {
                    for i in 0..8 {
                        let place = sum::place(special::lane(), i as u32);
                        shared::store_f32(to + qt as u32 * sum::BYTES + 4 * place, dq[qt].0[i]);
                    }
                }
                bulk::fence();
                barrier::arrive(written(dq_stage, warpgroup), SHARING);
            }

            wgmma::wait::<0>();
            wgmma::pin(&mut dk);
            if leave_out.queries {
                cold_path();
                add_guarded::<E, DT, NT>(
                    q,
                    &mut dk,
                    &mut ds,
                    queries(&job, params, step, who(), skipped, first_query, share()),
                );
                barrier::warp();
            }
            ring.release(memory.q_full(stage));
            ring = ring.next();
            step = step.next(&job);
            left = opaque(left - 1);
        }
        let job = again(|| job_at::<M, STORES>(params, place, br));
        let first = job.first_key + skipped;
        let count = job.sequence.keys.saturating_sub(first);
        let rows = |tensor, dim| {
            let rows = job.sequence.head_rows(tensor, job.kv_head, dim);
            rows.skip(first)
        };
        let dv_rows = rows(&params.dv, C::value_dim(&params.forward));
        store::<E, DT>(&dv, dv_rows, count, params.dv_aligned);
        for dt in 0..DT {
            dk[dt].scale_rows([params.forward.scale; 2]);
        }
        store::<E, DT>(
            &dk,
            rows(&params.dk, params.forward.dim),
            count,
            params.dk_aligned,
        );
    }
}

/// The queries that see the two keys of a lane, thread number `thread` of the warpgroup whose keys follow `skipped` of the
/// tile; counted from `first_query`.
#[inline(always)]
fn queries<M: Mask>(
    job: &Job<M>,
    params: &BackwardParams,
    step: Step,
    thread: u32,
    skipped: u32,
    first_query: i32,
    share: Share,
) -> [M::Queries; 2] {
    let key = job.first_key + skipped + thread / 32 * 16 + thread % 32 / 4;
    let job = job.of_head(&params.forward, step.head);
    let [upper, lower] = [job.queries(key), job.queries(key + 8)];
    [upper, lower].map(|queries| queries.counted_from(first_query).of_share(share))
}

/// The products of elements.
#[inline(always)]
fn product(mut a: Accumulator, b: Accumulator) -> Accumulator {
    for i in 0..8 {
        a.0[i] *= b.0[i];
    }
    a
}
