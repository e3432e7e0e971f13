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
//! All rows of a block walk together, so that every warp passes every barrier:
//!
//! ```text
//! walk.own_start | edge | whole | edge | walk.end
//!                <------ j counts down
//! ```
//!
//! One loop serves both kinds of blocks: two would have its products twice in the machine code.
//!
//! | module | what it holds |
//! |---|---|
//! | `tile` | the block's rows, and what they see |
//! | `stream` | the ring of buffers, and what passes through it |
//! | `rows` | what a warp holds of its rows, and what a step does to it |
//!
//! Shared memory: [`WideMemory`].

mod rows;
mod stream;
mod tile;

use self::rows::Rows;
use self::stream::Stream;
use self::tile::Tile;
use crate::abi::ForwardParams;
use crate::attention::Team;
use crate::attention::guard::{has_non_finite, multiply_guarded_tile};
use crate::attention::options::mask::Mask;
use crate::attention::options::score::Score;
use crate::attention::workload::heads::Heads;
use crate::layout::wide::WideMemory;
use crate::ptx::{shared, special};
use crate::tile::registers::{again, opaque};
use crate::tile::whole::mask;
use crate::tile::{CpAsync, Element, Pipeline, SharedTile, multiply};

/// 16-row tiles of Q, and 16-key slices of K, of a warp.
const MT: usize = 2;
const NT: usize = 2;

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
    let (br, bc, v_keys) = ((16 * MT * W / T) as u32, 16 * KT as u32, 16 * VT as u32);
    let threads = 32 * W as u32;
    // SAFETY: the launch has this many threads a block.
    let thread = unsafe { special::thread(threads) };
    let lane = thread % 32;
    let (tile, walk) = Tile::<M, H>::new::<C>(params, br, bc);
    let base = shared::base();
    let memory = WideMemory::new(br, [bc, v_keys], T as u32, S as u32, E::K * DT as u32);
    let team =
        |thread: u32| Team::<T>::of_warp(thread / 32, 16 * MT as u32, br, base + memory.exchange);
    // Opaque: up to 8 registers fewer.
    let (team, team_again) = (team(thread), || team(opaque(thread)));
    let column = rows::column_of(&team);
    let warp_key = 16 * NT as u32 * team.side;
    let mut stream =
        Stream::<M, H, DT, S>::new::<C>(&tile, (base, memory), walk, v_keys, [thread, threads]);

    // SAFETY: every branch with a barrier or a tensor-core instruction depends on the block alone, `scale` and
    // `is_edge` included. The barrier of a slice makes it visible, and P with it, and says that all warps are
    // done with the slice before.
    unsafe {
        for _ in 0..S - 1 {
            CpAsync::<S>.fill(|| stream.load_next::<C>());
        }
        let mut rows = Rows::<C, OT>::new(&tile, team.row, team.side == 0);
        let mut j = walk.end();
        while walk.sees(j) {
            j -= 1;
            // 8. S = Q K^T
            let mut s = rows.scores::<E, M, H, T, DT, S>(&mut stream, &tile, &team, lane, j);
            let first_key = tile.first_key(j);
            let keys = |key: u32| tile.keys(team.row, j, first_key + key);
            let is_edge = tile.is_edge(j);
            if is_edge {
                mask(&mut s, keys(warp_key));
            }

            // 9. P = exp(S - m); 10. O = diag(exp(m_before - m)) O
            // Held over the products, the place takes 10 to 18 registers more, and spills 36 bytes at D = 1024.
            let (team, lane) = (again(team_again), opaque(lane));
            let p_tile = SharedTile::<KT>::new(base).skip(team.row);
            rows.softmax::<E, T, KT>(s, team, p_tile, lane);

            // 10. O += P V. Here and not a function of `Rows`, which holds more: 40 bytes spilled at 1024 with options.
            // Opaque: unrolled, the loops over slices and runs spill 48 bytes and have 4 times the instructions.
            for v_slice in 0..opaque(stream.v_slices) {
                stream.wait::<C>();
                let runs = (VT / RUN) as u32;
                let runs = if runs > 1 { opaque(runs) } else { runs };
                for run in 0..runs {
                    let v_tile = stream.v_here().skip(16 * RUN as u32 * run);
                    let first = (VT as u32 * v_slice + RUN as u32 * run) as usize;
                    if is_edge && has_non_finite::<E, _, RUN, OT, DT>(v_tile, column) {
                        let keys = keys(16 * first as u32);
                        let (o, p) = (&mut rows.o, (p_tile, first));
                        multiply_guarded_tile::<E, _, MT, RUN, KT, OT, DT>(
                            o, p, v_tile, keys, column,
                        );
                    } else {
                        let p = |kt: usize| rows::slice(p_tile, lane, first + kt);
                        multiply::<E, _, MT, RUN, OT, DT>(&mut rows.o, p, v_tile, lane, column);
                    }
                }
                stream.release_v();
            }
        }
        rows.store::<E, H, W, T, DT>(params, &team);
    }
}
