//! The main loop for a head dim at which O has too many columns for a warp.
//!
//! Two m16 tiles a warp let every K and V fragment feed two products; O's rows then take `head_dim`
//! registers a lane, which ends at 128. Here the `T` warps of a [team](Team) share their rows:
//! each computes the scores of its part of a block's keys, and adds all of `P V` to its part of O's
//! columns. So every fragment still feeds two products, O takes `head_dim / T` registers, and what
//! it costs is that P passes through shared memory.
//!
//! There is room for one buffer each of K and V: the next K is loaded during `P V`, the next V during
//! `Q K^T`, and two barriers a block of keys tell when. At the first of them P is there for the whole team,
//! and the warps vote: whether maxima must rise or, under the causal mask, whether V holds infinities.
//!
//! Shared memory holds the Q tile, later O; K and V; P; and what the warps of a team exchange.

use crate::abi::ForwardParams;
use crate::attention::mask::Mask;
use crate::attention::non_finite::multiply_guarded;
use crate::attention::{Place, SoftmaxScale, Team, Warp, map_rows};
use crate::ptx::{barrier, shared, special};
use crate::tile::{Accumulator, Copier, CpAsync, Element, Pipeline, SharedTile};
use core::hint::cold_path;

/// As [`forward`](super::forward), with teams of `T` warps, which have `MT` tiles of 16 query rows each. A
/// warp has `16 * NT` of the `16 * KT` keys of a step, and `OT` of the `DT` slices of O's columns.
///
/// # Safety
/// As [`forward`](super::forward).
#[inline(always)]
pub unsafe fn forward_shared_rows<
    E: Element,
    M: Mask,
    const PACKED: bool,
    const W: usize,
    const T: usize,
    const MT: usize,
    const DT: usize,
    const OT: usize,
    const KT: usize,
    const NT: usize,
    const QT: usize,
>(
    p: &ForwardParams,
) {
    let (br, bc) = ((16 * MT * W / T) as u32, (16 * KT) as u32);
    let (threads, team_rows, part_keys) = (32 * W as u32, 16 * MT as u32, 16 * NT as u32);
    // SAFETY: the launch has this many threads a block.
    let thread = unsafe { special::thread(threads) };
    let place = Place::<PACKED>::of_block(p, br);
    let (first, rows) = (place.first, Place::<PACKED>::row_count(p));
    let (first_key, keys) = place.keys(p);
    let q = Copier::new(place.q_rows(&p.q), thread, threads);
    let k = Copier::new(place.kv_rows(&p.k, first_key), thread, threads);
    let v = Copier::new(place.kv_rows(&p.v, first_key), thread, threads);

    let mask = M::new(p, first_key, keys);
    let trips = mask.trip_count((first + br).min(rows) as i32 - 1, bc);
    // The first block always sets the maxima, the others may.
    let unmasked_trips = mask.unmasked_trip_count(first as i32, bc);
    let unmasked_trips = unmasked_trips.min(trips.saturating_sub(1));

    let qo_tile = SharedTile::<DT>::new(shared::base());
    // The same for every `j`, which tells the assembler otherwise: see `varying_lane`.
    let k_tile = |j: u32| SharedTile::<DT>::new(qo_tile.skip(br).base + (j >> 31));
    let v_tile = |j: u32| k_tile(j).skip(bc);
    let p_tile = SharedTile::<KT>::new(v_tile(0).skip(bc).base);
    // Asked for again where it is used: over the loop it would hold registers.
    let team = || {
        // SAFETY: as above.
        let warp = unsafe { special::thread(threads) } / 32;
        Team::<T>::of_warp(warp, team_rows, br, p_tile.skip(br).base)
    };
    let team_p = || p_tile.skip(team().row);
    let team_row = team().row;
    let row = first + team_row;

    let own_keys = |j: u32| k_tile(j).skip(team().side * part_keys);
    let own_columns = |j: u32| v_tile(j).skip_columns(team().side * 16 * OT as u32);
    let own_part = |j: u32, part: u32| own_columns(j).skip(part * part_keys);
    let visible = |j: u32| {
        let first_key = (j * bc) as i32;
        map_rows(|i| mask.visible((row + i) as i32, first_key))
    };

    let mut pipeline = CpAsync::<2>;
    // SAFETY: every branch here depends on the block alone, so all threads reach every barrier and
    // all lanes every tensor-core instruction. The first barrier of block j makes V of block j and P
    // visible and tells that all warps are done with K of block j; the second makes K of block j - 1
    // visible and tells that all are done with V of block j and P.
    unsafe {
        q.load(qo_tile, first, br, rows - first);
        // The last block may end beyond the last key.
        let last = trips.wrapping_sub(1);
        let exist = keys.wrapping_sub(last.wrapping_mul(bc));
        if trips > 0 {
            k.load(k_tile(last), last * bc, bc, exist);
        }
        pipeline.commit();
        if trips > 0 {
            v.load(v_tile(last), last * bc, bc, exist);
        }
        pipeline.commit();
        pipeline.wait_first();
        let scale = SoftmaxScale::new(p.scale);
        let mut warp = Warp::<MT, DT, OT, QT>::new(qo_tile.skip(team_row), scale, &team());

        // K of block j - 1, if there is one.
        let load_k = |pipeline: &mut CpAsync<2>, j: u32| {
            pipeline.fill(|| k.load_whole(k_tile(j), (j * bc).wrapping_sub(bc), bc, j > 0));
        };
        let load_v = |pipeline: &mut CpAsync<2>, j: u32| {
            if j > 0 {
                pipeline.wait();
                pipeline.fill(|| v.load(v_tile(j), (j - 1) * bc, bc, bc));
            }
        };

        let mut j = trips;
        while j > unmasked_trips {
            j -= 1;
            let s = warp.scores::<E, Accumulator, NT>(own_keys(j));
            let visible = visible(j);
            let own = visible.map(|rows| rows.map(|v| v - (team().side * part_keys) as i32));
            let p = warp.softmax_masked::<E, NT, T>(s, own, &team());
            team_p().set_operands(team().side as usize * NT, p);
            let guarded = if M::CAUSAL {
                pipeline.wait_own();
                pipeline.wait_others(v.loaded_non_finite::<E>(v_tile(j), bc))
            } else {
                pipeline.wait();
                false
            };
            load_k(&mut pipeline, j);
            if guarded {
                cold_path();
                multiply_guarded::<E, _, MT, KT, KT, OT, DT>(
                    &mut warp.o,
                    (team_p(), 0),
                    own_columns(j),
                    visible,
                    |ot| ot,
                );
            } else {
                for part in 0..T {
                    let p = team_p().operands(part * NT);
                    warp.accumulate::<E, Accumulator, NT>(p, own_part(j, part as u32));
                }
            }
            load_v(&mut pipeline, j);
        }
        while j > 0 {
            j -= 1;
            let mut s = warp.scores::<E, Accumulator, NT>(own_keys(j));
            let sums = warp.softmax.apply(&mut s);
            let mut p = s.map(|row| row.map(Accumulator::to_operand::<E>));
            team_p().set_operands(team().side as usize * NT, p);
            pipeline.wait_own();
            if pipeline.wait_others(!sums.fit()) {
                cold_path();
                let s = warp.scores::<E, Accumulator, NT>(own_keys(j));
                p = warp.softmax_exact::<E, NT, T>(s, &team());
                team_p().set_operands(team().side as usize * NT, p);
                barrier::block();
            } else {
                warp.softmax.add(sums);
            }
            load_k(&mut pipeline, j);
            warp.accumulate::<E, Accumulator, NT>(p, own_part(j, team().side));
            for t in 1..T {
                let part = (team().side + t as u32) % T as u32;
                let p = team_p().operands(part as usize * NT);
                warp.accumulate::<E, Accumulator, NT>(p, own_part(j, part));
            }
            load_v(&mut pipeline, j);
        }

        warp.store::<E, PACKED, T>(p, threads, &team());
    }
}
