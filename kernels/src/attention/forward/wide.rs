//! The main loop for head dims above 256, at which neither K nor O fits whole. Only the columns of O are the kernel's: with
//! options, q and k may have another head dim.
//!
//! `Q K^T` is a sum over the head dim: Q and K pass in windows of 64 columns, and S adds up. The columns of O
//! are independent: the `T` warps of a [team](crate::attention::steps::team) share 32 rows, each with 32 keys of S and
//! a part of O's columns. So P goes through shared memory. `P V` is a sum over the keys: V passes whole where it
//! fits, else in slices of the keys.
//!
//! The slices of a block of keys, first the windows of Q and K, then V, are one stream through a ring of
//! buffers: one is in use while the others fill. V passed whole has a buffer of its own, beside the ring.
//!
//! Shared memory: [`WideMemory`].

use crate::abi::ForwardParams;
use crate::attention::guard::{has_non_finite, multiply_guarded_tile};
use crate::attention::options::mask::{Interval, Mask, Visible, seen_blocks, whole_blocks};
use crate::attention::options::score::{Corner, Score};
use crate::attention::steps::softmax::Total;
use crate::attention::work::heads::Heads;
use crate::attention::work::sequence::Sequence;
use crate::attention::{Softmax, Team, WorkTile, store_partial};
use crate::layout::element;
use crate::layout::wide::{WINDOW, WideMemory};
use crate::ptx::{barrier, global, shared, special};
use crate::tile::registers::{again, opaque};
use crate::tile::whole::{map_rows, mask};
use crate::tile::{
    Accumulator, Copier, CpAsync, Element, Operand, Pipeline, SharedTile, multiply,
    multiply_transposed,
};

/// 16-row tiles of Q, and 16-key slices of K, of a warp.
const MT: usize = 2;
const NT: usize = 2;

/// Slices of a window.
const WT: usize = (WINDOW / element::K) as usize;

/// Computes the block's tile of O and lse, on its split of the keys.
///
/// The block has `W` warps in teams of `T`. Rows of v and o have at most `16 * DT` elements; a warp has `OT` of
/// the `DT` slices of O's columns. A step takes `16 * KT` keys, of which `16 * VT` of V pass at a time and
/// `16 * RUN` enter a product. The ring has `S` buffers.
///
/// # Safety
/// The conditions of [`sm80`](super::sm80).
#[inline(always)]
pub unsafe fn wide<
    E: Element,
    M: Mask,
    H: Heads,
    C: Score,
    const W: usize,
    const T: usize,
    const DT: usize,
    const OT: usize,
    const KT: usize,
    const VT: usize,
    const RUN: usize,
    const S: usize,
>(
    params: &ForwardParams,
) {
    let (br, bc, threads) = ((16 * MT * W / T) as u32, (16 * KT) as u32, 32 * W as u32);
    let v_keys = (16 * VT) as u32;
    // SAFETY: the launch has this many threads a block.
    let thread = unsafe { special::thread(threads) };
    let lane = thread % 32;

    let work = WorkTile::<H>::of_block(params, br);
    let (first, rows, split) = (work.first, work.row_count(), work.keys(params));
    let visible = work.mask::<M>(params, split);
    let last = (first + br).min(rows) - 1;
    let ends = [
        visible.keys(work.query(first)),
        visible.keys(work.query(last)),
    ];
    // From here on `j` and `block` are numbers of visits.
    let visits = work.visits::<M>(params, split, first / br, bc);
    let (seen, whole) = (visits.of(seen_blocks(ends, bc)), whole_blocks(ends, bc));
    let (start, blocks) = (seen.start, seen.end);

    let base = shared::base();
    let memory = WideMemory::new(br, [bc, v_keys], T as u32, S as u32, E::K * DT as u32);
    let ring = base + memory.ring;
    let after = |buffer: u32| match buffer + memory.buffer {
        next if next == ring + S as u32 * memory.buffer => ring,
        next => next,
    };
    let q_window = |buffer: u32| SharedTile::<WT>::new(buffer);
    let k_window = |buffer: u32| q_window(buffer).skip(br);
    let v_is_whole = VT == KT;
    let v_slice =
        |buffer: u32| SharedTile::<DT>::new(if v_is_whole { base + memory.v } else { buffer });
    let windows = params.dim.div_ceil(WINDOW);
    // Enough that V of a block is done with when the next one's load begins: a small head dim has windows of zeros. Opaque,
    // so that the compiler keeps the first loads like all others.
    let windows = match C::SCALED {
        true => windows,
        false => opaque(windows.max(S as u32)),
    };
    let v_slices = (KT / VT) as u32;

    let team =
        |thread: u32| Team::<T>::of_warp(thread / 32, 16 * MT as u32, br, base + memory.exchange);
    let (team, team_again) = (team(thread), || team(opaque(thread)));
    let warp_key = 16 * NT as u32 * team.side;
    let column = |ot: usize| ot * T | team.side as usize;

    // Starts to load slice `slice` of key block `block - 1`, the next of the stream, if there is one.
    let (mut block, mut slice, mut filling) = (blocks, 0, ring);
    let mut load_next = || {
        if block > start {
            // Opaque: the addresses of all tensors would hold registers over the loop.
            let thread = opaque(thread);
            let key = visits.block(block - 1) * bc;
            // SAFETY: the barrier before says that all warps are done with the buffer, or with V; the next
            // wait for the slice makes it visible. The last block may end beyond the last key.
            unsafe {
                if slice < windows {
                    let column = slice * WINDOW;
                    let q = Copier::<WT, _>::new(work.q_rows(&params.q), thread, threads);
                    let k = work.k_rows::<C>(params, split.first);
                    let k = Copier::<WT, _>::new(k, thread, threads);
                    q.skip_columns(column)
                        .load(q_window(filling), first, br, rows - first);
                    k.skip_columns(column)
                        .load(k_window(filling), key, bc, split.keys - key);
                } else {
                    let key = key + (slice - windows) * v_keys;
                    let v = work.v_rows::<C>(params, split.first);
                    let v = Copier::<DT, _>::new(v, thread, threads);
                    let exist = split.keys.saturating_sub(key);
                    v.load(v_slice(filling), key, v_keys, exist);
                }
            }
            if slice < windows || !v_is_whole {
                filling = after(filling);
            }
            slice += 1;
            if slice == windows + v_slices {
                (block, slice) = (block - 1, 0);
            }
        }
    };

    // SAFETY: every branch with a barrier or a tensor-core instruction depends on the block alone, `scale` and
    // `masked` included. The barrier of a slice makes it visible, and P with it, and says that all warps are
    // done with the slice before.
    unsafe {
        let mut pipeline = CpAsync::<S>;
        for _ in 0..S - 1 {
            pipeline.fill(&mut load_next);
        }
        let mut next_slice = |pipeline: &mut CpAsync<S>| {
            pipeline.wait();
            pipeline.fill(&mut load_next);
        };
        let score = C::new(params, work.sequence.batch, work.heads.first());
        let scale = score.scale();
        let mut softmax = Softmax::<MT>::new(scale);
        softmax.take_sink(C::sink(params, split, work.heads.first()), team.side == 0);
        let mut o = [[Accumulator::ZERO; OT]; MT];
        let mut reading = ring;
        let mut j = blocks;
        while j > start {
            j -= 1;
            let mut s = [[Accumulator::ZERO; NT]; MT];
            for _ in 0..windows {
                next_slice(&mut pipeline);
                let q_tile = q_window(reading).skip(team.row);
                let k_tile = k_window(reading).skip(warp_key);
                let q = |dt: usize| {
                    let mut q = [Operand::ZERO; MT];
                    for mt in 0..MT {
                        q[mt] = q_tile.a(lane, mt, dt);
                    }
                    q
                };
                multiply_transposed::<E, Accumulator, _, MT, NT, WT>(&mut s, q, k_tile, lane);
                pipeline.release();
                reading = after(reading);
            }
            if scale.negative {
                s = s.map(|row| row.map(Accumulator::negate));
            }
            let block_key = visits.block(j) * bc;
            let (query, key) = ((first + team.row) as i32, (block_key + warp_key) as i32);
            let corner = Corner::new(query, key, work.sequence, split);
            score.apply::<false, MT, NT>(&mut s, corner);
            let is_masked = match M::Keys::HAS_START {
                true => !whole.contains(&j),
                false => j >= whole.end,
            };
            // The keys that each row sees, counted from key `key` of this block.
            let keys = |key: u32| -> [[M::Keys; 2]; MT] {
                let first_key = (block_key + key) as i32;
                map_rows(|i| {
                    visible
                        .keys_of_block(work.query(first + team.row + i), first_key)
                        .of_share(visits.share(j, 0))
                })
            };
            if is_masked {
                mask(&mut s, keys(warp_key));
            }

            let mut maxima = [[0.0; 2]; MT];
            for mt in 0..MT {
                maxima[mt] = softmax.maxima(&s[mt]);
            }
            let team = again(team_again);
            let maxima = team.combine(maxima, f32::max);
            let lane = opaque(lane);
            let team_p = SharedTile::<KT>::new(base).skip(team.row);
            for mt in 0..MT {
                let factors = softmax.update(mt, &mut s[mt], maxima[mt]);
                for ot in 0..OT {
                    o[mt][ot].scale_rows(factors);
                }
                for nt in 0..NT {
                    let probabilities = s[mt][nt].to_operand::<E>();
                    team_p.set(lane, mt, NT * team.side as usize + nt, probabilities);
                }
            }

            // Opaque: unrolled, the loops over slices and runs would take registers.
            for slice in 0..opaque(v_slices) {
                next_slice(&mut pipeline);
                let v_tile = v_slice(reading);
                let runs = (VT / RUN) as u32;
                let runs = if runs > 1 { opaque(runs) } else { runs };
                for run in 0..runs {
                    let v_tile = v_tile.skip(16 * RUN as u32 * run);
                    let first_kt = (VT as u32 * slice + RUN as u32 * run) as usize;
                    let p = |kt: usize| {
                        let mut p = [Operand::ZERO; MT];
                        for mt in 0..MT {
                            p[mt] = team_p.a(lane, mt, first_kt + kt);
                        }
                        p
                    };
                    if is_masked && has_non_finite::<E, _, RUN, OT, DT>(v_tile, column) {
                        let (p, keys) = ((team_p, first_kt), keys(16 * first_kt as u32));
                        multiply_guarded_tile::<E, _, MT, RUN, KT, OT, DT>(
                            &mut o, p, v_tile, keys, column,
                        );
                    } else {
                        multiply::<E, _, MT, RUN, OT, DT>(&mut o, p, v_tile, lane, column);
                    }
                }
                pipeline.release();
                if !v_is_whole {
                    reading = after(reading);
                }
            }
        }
        store::<E, H, C, W, T, DT, OT>(params, &team, o, team.totals(&softmax));
    }
}

/// Stores O and lse or, if the keys are split, what a combine kernel makes them from. O goes through shared
/// memory, from where it leaves in 16-byte pieces.
///
/// # Safety
/// The conditions of [`wide`]; all threads of the block make the call.
#[inline(always)]
unsafe fn store<
    E: Element,
    H: Heads,
    C: Score,
    const W: usize,
    const T: usize,
    const DT: usize,
    const OT: usize,
>(
    params: &ForwardParams,
    team: &Team<T>,
    mut o: [[Accumulator; OT]; MT],
    totals: [[Total; 2]; MT],
) {
    let (br, threads, lane) = ((16 * MT * W / T) as u32, 32 * W as u32, special::lane());
    let work = again(|| WorkTile::<H>::of_block(params, br));
    let first = work.first + team.row;
    let exist = work.row_count().saturating_sub(first);
    let column = |ot: usize| ot * T | team.side as usize;
    // SAFETY: the caller's promise. Rows and columns are the warp's own until the second barrier; one lane of
    // the team stores the lse of a row.
    unsafe {
        if Sequence::split_count(params) > 1 {
            let totals = (team.side == 0).then_some(totals);
            let column = |ot| column(ot) as u32;
            let rows = (first, exist);
            return store_partial::<_, C, _, _>(params, &work, rows, o, totals, column);
        }
        let o_tile = SharedTile::<DT>::new(shared::base());
        barrier::block();
        for mt in 0..MT {
            let finished = totals[mt].map(Total::finish);
            for ot in 0..OT {
                o[mt][ot].scale_rows(finished.map(|(factor, _)| factor));
                let o = o[mt][ot].to_operand::<E>();
                o_tile.skip(team.row).set(lane, mt, column(ot), o);
            }
            for r in 0..2 {
                let row = (16 * mt + 8 * r) as u32 + lane / 4;
                if team.side == 0 && lane % 4 == 0 && row < exist {
                    global::store_f32(work.lse(params, first + row), finished[r].1);
                }
            }
        }
        barrier::block();
        let rows = work.o_rows::<C>(params);
        let copier = Copier::<DT, _>::new(rows, special::thread(threads), threads);
        let exist = work.row_count() - work.first;
        copier.store(o_tile, work.first, br, exist, params.o_aligned != 0);
    }
}
