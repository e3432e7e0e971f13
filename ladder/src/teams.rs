//! `split-kv`, `tiled-qk` and `tiled-qkv`: teams of warps that share query rows.
//!
//! Each warp of a team computes the scores of its part of the keys, and its part of O's columns. So a row's maxima
//! and its P go through shared memory, behind two barriers that warps with their own rows do not need. In exchange
//! O may have more columns than one warp has registers for.
//!
//! Both products take slices of what they sum over: `Q K^T` windows of 64 columns of the head dim, `P V` runs of
//! keys. The slices of a block of keys, first of Q and K, then of V, are one stream through a ring of buffers. The
//! slices differ:
//!
//! - `split-kv`: Q stays, K and V pass whole;
//! - `tiled-qk`: Q and K pass in windows; V has a buffer of its own;
//! - `tiled-qkv`: Q and K pass in windows, V in runs of 32 keys.
//!
//! Shared memory holds P, the maxima, Q if it stays, V's own buffer if it has one, and the ring.

use crate::half;
use crate::options::{TeamsMemory, swizzles};
use crate::params::LadderParams;
use crate::ring::Ring;
use crate::store::{Part, store};
use kernels::attention::guard::{has_non_finite, multiply_guarded_tile};
use kernels::attention::options::mask::{
    Either, Interval, Mask, Prefix, seen_blocks, whole_blocks,
};
use kernels::attention::options::score::Scaled;
use kernels::attention::workload::heads::OneHead;
use kernels::attention::{Softmax, SoftmaxScale};
use kernels::attention::{Team, WorkTile};
use kernels::layout::swizzle::Swizzle;
use kernels::ptx::{shared, special};
use kernels::tile::registers;
use kernels::tile::whole::map_rows;
use kernels::tile::{
    Accumulate, Accumulator, Copier, Element, Operand, SharedTile, multiply, multiply_transposed,
};

/// A window: 64 columns, 128 bytes of a row.
const WINDOW: usize = 4;
/// Slices of 16 keys that `P V` takes at a time.
const KEYS: usize = 2;

/// Computes the block's tile of O and lse, on its split of the keys.
///
/// The block has `W` warps in teams of `T`, each team with `MT` tiles of 16 query rows. A step takes
/// `16 * KT` keys, `NT * T = KT`, and the head dim is at most `16 * OT * T`.
///
/// # Safety
/// The conditions of [`forward`](kernels::attention::forward::forward).
#[inline(always)]
pub unsafe fn teams<
    E: Element,
    S: Accumulate<E>,
    const W: usize,
    const T: usize,
    const MT: usize,
    const NT: usize,
    const KT: usize,
    const OT: usize,
>(
    params: &LadderParams,
) {
    let (p, options) = (&params.forward, &params.options);
    let (br, bc, threads) = ((16 * MT * W / T) as u32, (16 * KT) as u32, 32 * W as u32);
    // SAFETY: the launch has this many threads a block.
    let thread = unsafe { special::thread(threads) };
    let lane = thread % 32;
    let width = (16 * OT * T) as u32;

    let place = WorkTile::<OneHead>::of_block::<Scaled>(p, br);
    let (first, split) = (place.first, place.keys(p));
    let mask = Either::new(p, place.sequence, split);
    let last = (first + br).min(p.seqlen_q) as i32 - 1;
    let ends = [first as i32, last].map(|row| mask.keys(row));
    let (trips, unmasked_trips) = (seen_blocks(ends, bc).end, whole_blocks(ends, bc).end);

    // Places in shared memory.
    let (windows, v_keys) = (options.windows, options.v_keys);
    let base = shared::base();
    let memory = TeamsMemory::new(options, p.dim, [br, bc, width, T as u32]);
    let (k_slices, v_slices, q_windows) = (memory.k_slices, bc / v_keys, memory.q_windows);
    let (q_stays, v_apart) = (options.apart & 0b001 != 0, options.apart & 0b100 != 0);
    let [q_swizzle, ..] = swizzles(options, 8 * q_windows);
    let [_, k_swizzle, _] = swizzles(options, 8 * windows);
    let [_, _, v_swizzle] = swizzles(options, width / 8);
    let tile = |base: u32, arrangement| SharedTile::<WINDOW, Swizzle> { base, arrangement };
    let p_tile = SharedTile::<KT>::new(base);
    let team = Team::<T>::of_warp(thread / 32, 16 * MT as u32, br, base + memory.exchange);
    let warp_key = 16 * NT as u32 * team.side;
    let column = |ot: usize| ot * T | team.side as usize;
    let q_whole = tile(base + memory.q, q_swizzle);
    let (v_whole, k_offset) = (base + memory.v, memory.k_in_buffer);
    // V beside the ring has one buffer: it must not be filled before all warps are done with the V before.
    let ahead = if v_apart { k_slices } else { u32::MAX };
    let mut ring = Ring::new(base + memory.ring, memory.buffer, options.buffers, ahead);

    // Slice `slice` of block `block - 1` is loaded next.
    let copier =
        |rows, swizzle| Copier::<WINDOW, _, Swizzle>::arranged(rows, thread, threads, swizzle);
    let q = copier(place.q_rows(&p.q), q_swizzle);
    let k = copier(place.kv_rows(&p.k, split.first), k_swizzle);
    let v = copier(place.kv_rows(&p.v, split.first), v_swizzle);
    let load_q = |to: SharedTile<WINDOW, Swizzle>, column: u32| {
        // SAFETY: the ring says when the buffer is free, and waits for the copy; so for all copies here.
        unsafe {
            q.skip_columns(column)
                .load(to, first, br, p.seqlen_q - first)
        }
    };
    let (mut block, mut slice) = (trips, 0);
    let mut load = |ring: &mut Ring| {
        if block == 0 {
            return;
        }
        let first_key = (block - 1) * bc;
        if slice < k_slices {
            let to = ring.to_load();
            for window in 0..windows {
                let (right, column) = (64 * window, 64 * (slice * windows + window));
                if !q_stays {
                    load_q(tile(to, q_swizzle).skip_columns(right), column);
                }
                let to = tile(to + k_offset, k_swizzle).skip_columns(right);
                // SAFETY: as above. The last block may end beyond the last key.
                unsafe {
                    k.skip_columns(column)
                        .load(to, first_key, bc, split.keys - first_key)
                }
            }
        } else {
            let to = if v_apart { v_whole } else { ring.to_load() };
            let first_key = first_key + (slice - k_slices) * v_keys;
            // Opaque: unrolled, the addresses of all windows would take registers.
            let mut column = 0;
            while column < registers::opaque(width) {
                let to = tile(to, v_swizzle).skip_columns(column);
                let exist = split.keys.saturating_sub(first_key);
                // SAFETY: as above.
                unsafe { v.skip_columns(column).load(to, first_key, v_keys, exist) }
                column += 64;
            }
        }
        slice += 1;
        if slice == k_slices + v_slices {
            (block, slice) = (block - 1, 0);
        }
    };

    let scale = SoftmaxScale::new(p.scale);
    let mut softmax = Softmax::<MT>::new(if S::HALF { half::SCALED } else { scale });
    let mut o = [[Accumulator::ZERO; OT]; MT];
    // SAFETY: every branch depends on the block or the warp alone, and no warp misses a barrier. The ring's
    // barriers also make P visible, and say that all warps are done with it.
    unsafe {
        // Without keys nobody waits for Q, and O takes its place.
        if q_stays && trips > 0 {
            for window in 0..q_windows {
                load_q(q_whole.skip_columns(64 * window), 64 * window);
            }
        }
        ring.start(&mut load);
        let mut j = trips;
        while j > 0 {
            j -= 1;
            let mut s = [[S::ZERO; NT]; MT];
            for slice in 0..k_slices {
                ring.advance(&mut load);
                let slot = ring.to_read();
                for window in 0..windows {
                    let q_tile = if q_stays {
                        q_whole.skip_columns(64 * (slice * windows + window))
                    } else {
                        tile(slot, q_swizzle).skip_columns(64 * window)
                    };
                    let q_tile = q_tile.skip(team.row);
                    let q = |dt: usize| {
                        let mut q = [Operand::ZERO; MT];
                        for mt in 0..MT {
                            q[mt] = q_tile.a(lane, mt, dt);
                            if S::HALF {
                                q[mt] = half::scaled(q[mt], scale);
                            }
                        }
                        q
                    };
                    let k_tile = tile(slot + k_offset, k_swizzle).skip_columns(64 * window);
                    let k_tile = k_tile.skip(warp_key);
                    multiply_transposed::<E, S, Swizzle, MT, NT, WINDOW>(&mut s, q, k_tile, lane);
                }
            }
            let mut s = s.map(|row| row.map(S::widen));
            if !S::HALF && scale.negative {
                s = s.map(|row| row.map(Accumulator::negate));
            }
            let masked = j >= unmasked_trips;
            let visible = |key: u32| -> [[Prefix; 2]; MT] {
                let first_key = (j * bc + key) as i32;
                map_rows(|i| mask.keys_of_block((first + team.row + i) as i32, first_key))
            };
            if masked {
                let visible = visible(warp_key);
                for mt in 0..MT {
                    for nt in 0..NT {
                        let keys = visible[mt].map(|keys| keys.counted_from(16 * nt as i32));
                        s[mt][nt].mask_columns(lane, keys);
                    }
                }
            }

            let mut maxima = [[0.0; 2]; MT];
            for mt in 0..MT {
                maxima[mt] = softmax.maxima(&s[mt]);
            }
            let maxima = team.combine(maxima, f32::max);
            for mt in 0..MT {
                let factors = softmax.update(mt, &mut s[mt], maxima[mt]);
                for ot in 0..OT {
                    o[mt][ot].scale_rows(factors);
                }
                for nt in 0..NT {
                    let probabilities = s[mt][nt].to_operand::<E>();
                    let p_tile = p_tile.skip(team.row);
                    p_tile.set(lane, mt, warp_key as usize / 16 + nt, probabilities);
                }
            }

            for slice in 0..v_slices {
                ring.advance(&mut load);
                let slot = if v_apart { v_whole } else { ring.to_read() };
                for run in 0..v_keys / (16 * KEYS as u32) {
                    let v_tile = tile(slot, v_swizzle).skip(16 * KEYS as u32 * run);
                    let key = slice * v_keys + 16 * KEYS as u32 * run;
                    let p = |kt: usize| {
                        let mut p = [Operand::ZERO; MT];
                        for mt in 0..MT {
                            p[mt] = p_tile.skip(team.row).a(lane, mt, key as usize / 16 + kt);
                        }
                        p
                    };
                    if masked && has_non_finite::<E, Swizzle, KEYS, OT, WINDOW>(v_tile, column) {
                        let visible = visible(key);
                        let p = (p_tile.skip(team.row), key as usize / 16);
                        multiply_guarded_tile::<E, Swizzle, MT, KEYS, KT, OT, WINDOW>(
                            &mut o, p, v_tile, visible, column,
                        );
                    } else if half::sums::<E, S>(MT * OT) {
                        half::multiply::<E, S, Swizzle, MT, KEYS, OT, WINDOW>(
                            &mut o, p, v_tile, lane, column,
                        );
                    } else {
                        multiply::<E, Swizzle, MT, KEYS, OT, WINDOW>(
                            &mut o, p, v_tile, lane, column,
                        );
                    }
                }
            }
        }

        let totals = team.totals(&softmax);
        let part = Part {
            rows: br,
            width,
            warp_row: team.row,
            stores_lse: team.side == 0,
            column: |ot| column(ot) as u32,
        };
        store::<E, MT, OT>(params, threads, part, o, totals);
    }
}
