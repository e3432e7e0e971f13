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

mod tiles;

use crate::half;
use crate::params::LadderParams;
use crate::store::{Part, store};
use crate::work::Work;
use kernels::attention::guard::{has_non_finite, multiply_guarded_tile};
use kernels::attention::options::mask::{Interval, Mask, Prefix};
use kernels::attention::{Softmax, SoftmaxScale, Team};
use kernels::layout::swizzle::Swizzle;
use kernels::ptx::{shared, special};
use kernels::tile::whole::{map_rows, mask, scale_rows};
use kernels::tile::{
    Accumulate, Accumulator, Element, Operand, SharedTile, multiply, multiply_transposed,
};
use tiles::{Loads, Tile, Tiles, WINDOW};

/// Slices of 16 keys that `P V` takes at a time.
const KEYS: usize = 2;
/// Keys of these.
const RUN: u32 = 16 * KEYS as u32;

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
    let width = (16 * OT * T) as u32;
    let sizes = [br, bc, width, T as u32];

    let work = Work::of_block(p, br, bc);
    let Work { blocks, whole, .. } = work;
    let base = shared::base();
    let tiles = Tiles::new(base, options, p.dim, sizes);
    let warp = Member::<T, KT> {
        team: Team::of_warp(thread / 32, 16 * MT as u32, br, tiles.exchange()),
        lane: thread % 32,
        tiles,
        p: SharedTile::new(base),
    };
    let mut ring = tiles.ring(options.buffers);
    let mut loads = Loads::new(p, &work, tiles, sizes, [thread, threads]);

    let scale = SoftmaxScale::new(p.scale);
    let mut softmax = Softmax::<MT>::new(if S::HALF { half::SCALED } else { scale });
    let mut o = [[Accumulator::ZERO; OT]; MT];
    // SAFETY: every branch depends on the block or the warp alone, and no warp misses a barrier. The ring's
    // barriers also make P visible, and say that all warps are done with it.
    unsafe {
        // Without keys nobody waits for Q, and O takes its place.
        if tiles.q_stays && blocks > 0 {
            loads.load_q();
        }
        ring.start(|ring| loads.load(ring));
        let mut j = blocks;
        while j > 0 {
            j -= 1;
            // The keys of block j, from key `key` of it on, that the lane's rows see.
            let keys = |key: u32| {
                let row = work.place.first + warp.team.row;
                let first_key = (j * bc + key) as i32;
                map_rows(|i| work.mask.keys_of_block((row + i) as i32, first_key))
            };

            // S = Q K^T, a slice of the head dim at a time.
            let mut s = [[S::ZERO; NT]; MT];
            for slice in 0..tiles.k_slices() {
                ring.advance(|ring| loads.load(ring));
                warp.add_scores::<E, S, MT, NT>(&mut s, ring.to_read(), slice, scale);
            }

            // P = softmax(S), relative to the maxima so far.
            let mut s = s.map(|row| row.map(S::widen));
            if !S::HALF && scale.negative {
                s = s.map(|row| row.map(Accumulator::negate));
            }
            let masked = j >= whole;
            if masked {
                mask(&mut s, keys(warp.first_key::<NT>()));
            }
            warp.softmax::<E, MT, NT, OT>(&mut softmax, s, &mut o);

            // O += P V, a slice of keys at a time.
            for slice in 0..tiles.v_slices {
                ring.advance(|ring| loads.load(ring));
                let v_tile = tiles.v(|| ring.to_read());
                let keys = masked.then_some(keys);
                warp.add_values::<E, S, MT, OT>(&mut o, v_tile, slice * tiles.v_keys, keys);
            }
        }

        let totals = warp.team.totals(&softmax);
        let part = Part {
            rows: br,
            width,
            warp_row: warp.team.row,
            stores_lse: warp.team.side == 0,
            column: |ot| warp.column(ot) as u32,
        };
        store::<E, MT, OT>(params, threads, part, o, totals);
    }
}

/// A warp of a team, and the tiles of its block.
struct Member<const T: usize, const KT: usize> {
    team: Team<T>,
    lane: u32,
    tiles: Tiles,
    /// P of a block of keys.
    p: SharedTile<KT>,
}

impl<const T: usize, const KT: usize> Member<T, KT> {
    /// The first key of a block that the warp computes scores of.
    #[inline(always)]
    fn first_key<const NT: usize>(&self) -> u32 {
        16 * NT as u32 * self.team.side
    }

    /// The slice of 16 columns of the block's O that slice `ot` of the warp's is.
    #[inline(always)]
    fn column(&self, ot: usize) -> usize {
        ot * T | self.team.side as usize
    }

    /// `S += Q K^T` of a slice of the head dim, of which `buffer` holds what passes through the ring.
    ///
    /// # Safety
    /// The conditions of all functions here: every lane of the team makes the same call; shared tiles are written and
    /// visible.
    #[inline(always)]
    unsafe fn add_scores<E: Element, S: Accumulate<E>, const MT: usize, const NT: usize>(
        &self,
        s: &mut [[S; NT]; MT],
        buffer: u32,
        slice: u32,
        scale: SoftmaxScale,
    ) {
        for window in 0..self.tiles.windows {
            let q_tile = self.tiles.q(buffer, slice, window).skip(self.team.row);
            let q = |dt: usize| {
                let mut q = [Operand::ZERO; MT];
                for mt in 0..MT {
                    // SAFETY: the caller's promise.
                    q[mt] = unsafe { q_tile.a(self.lane, mt, dt) };
                    if S::HALF {
                        q[mt] = half::scaled(q[mt], scale);
                    }
                }
                q
            };
            let k_tile = self.tiles.k(buffer, window).skip(self.first_key::<NT>());
            // SAFETY: the caller's promise.
            unsafe { multiply_transposed::<E, S, Swizzle, MT, NT, WINDOW>(s, q, k_tile, self.lane) }
        }
    }

    /// `P = softmax(S)`, written to shared memory, relative to the maxima of all warps' keys so far, to which O is rescaled.
    ///
    /// # Safety
    /// The conditions of [`add_scores`](Self::add_scores); nobody reads the P before.
    #[inline(always)]
    unsafe fn softmax<E: Element, const MT: usize, const NT: usize, const OT: usize>(
        &self,
        softmax: &mut Softmax<MT>,
        mut s: [[Accumulator; NT]; MT],
        o: &mut [[Accumulator; OT]; MT],
    ) {
        let mut maxima = [[0.0; 2]; MT];
        for mt in 0..MT {
            maxima[mt] = softmax.maxima(&s[mt]);
        }
        // SAFETY: the caller's promise; the ring's barriers lie between two calls.
        let maxima = unsafe { self.team.combine(maxima, f32::max) };
        let (p_tile, first) = (
            self.p.skip(self.team.row),
            self.first_key::<NT>() as usize / 16,
        );
        for mt in 0..MT {
            let factors = softmax.update(mt, &mut s[mt], maxima[mt]);
            scale_rows(&mut o[mt], factors);
            for nt in 0..NT {
                let probabilities = s[mt][nt].to_operand::<E>();
                // SAFETY: the caller's promise; rows and keys are the warp's own.
                unsafe { p_tile.set(self.lane, mt, first + nt, probabilities) }
            }
        }
    }

    /// `O += P V` of the keys of a slice of V, the first of which is key `first` of the block. `keys`, of a block under a
    /// mask, says which keys from one on the lane's rows see.
    ///
    /// # Safety
    /// The conditions of [`add_scores`](Self::add_scores).
    #[inline(always)]
    unsafe fn add_values<E: Element, S: Accumulate<E>, const MT: usize, const OT: usize>(
        &self,
        o: &mut [[Accumulator; OT]; MT],
        v_tile: Tile,
        first: u32,
        keys: Option<impl Fn(u32) -> [[Prefix; 2]; MT]>,
    ) {
        let p_tile = self.p.skip(self.team.row);
        let column = |ot| self.column(ot);
        for run in 0..self.tiles.v_keys / RUN {
            let v_tile = v_tile.skip(RUN * run);
            let key = first + RUN * run;
            let slice = key as usize / 16;
            let p = |kt: usize| {
                let mut p = [Operand::ZERO; MT];
                for mt in 0..MT {
                    // SAFETY: the caller's promise.
                    p[mt] = unsafe { p_tile.a(self.lane, mt, slice + kt) };
                }
                p
            };
            // SAFETY: the caller's promise.
            unsafe {
                match &keys {
                    Some(keys)
                        if has_non_finite::<E, Swizzle, KEYS, OT, WINDOW>(v_tile, column) =>
                    {
                        multiply_guarded_tile::<E, Swizzle, MT, KEYS, KT, OT, WINDOW>(
                            o,
                            (p_tile, slice),
                            v_tile,
                            keys(key),
                            column,
                        );
                    }
                    _ if half::sums::<E, S>(MT * OT) => {
                        half::multiply::<E, S, Swizzle, MT, KEYS, OT, WINDOW>(
                            o, p, v_tile, self.lane, column,
                        );
                    }
                    _ => multiply::<E, Swizzle, MT, KEYS, OT, WINDOW>(
                        o, p, v_tile, self.lane, column,
                    ),
                }
            }
        }
    }
}
