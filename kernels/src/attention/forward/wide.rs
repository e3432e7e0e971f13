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
use crate::attention::options::mask::{Mask, Visible, seen_blocks, whole_blocks};
use crate::attention::options::score::{Corner, Score};
use crate::attention::steps::softmax::Total;
use crate::attention::workload::heads::Heads;
use crate::attention::workload::sequence::{Sequence, Split};
use crate::attention::{Softmax, Team, Visits, WorkTile, store_partial};
use crate::layout::element;
use crate::layout::wide::{WINDOW, WideMemory};
use crate::ptx::{barrier, global, shared, special};
use crate::tile::registers::{again, opaque};
use crate::tile::whole::{map_rows, mask, scale_rows};
use crate::tile::{
    Accumulator, Copier, CpAsync, Element, Operand, Pipeline, SharedTile, multiply,
    multiply_transposed,
};
use core::ops::Range;

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
    let (br, bc, v_keys) = ((16 * MT * W / T) as u32, 16 * KT as u32, 16 * VT as u32);
    let threads = 32 * W as u32;
    // SAFETY: the launch has this many threads a block.
    let thread = unsafe { special::thread(threads) };
    let lane = thread % 32;
    let (tile, seen, whole) = Tile::<M, H>::new(params, br, bc);
    let base = shared::base();
    let memory = WideMemory::new(br, [bc, v_keys], T as u32, S as u32, E::K * DT as u32);
    let team =
        |thread: u32| Team::<T>::of_warp(thread / 32, 16 * MT as u32, br, base + memory.exchange);
    let (team, team_again) = (team(thread), || team(opaque(thread)));
    let column = team_column(&team);
    let warp_key = 16 * NT as u32 * team.side;
    let (blocks, threads) = (seen.clone(), [thread, threads]);
    let mut stream =
        Stream::<M, H, DT, S>::new::<C>(&tile, (base, memory), blocks, v_keys, threads);

    // SAFETY: every branch with a barrier or a tensor-core instruction depends on the block alone, `scale` and
    // `is_edge` included. The barrier of a slice makes it visible, and P with it, and says that all warps are
    // done with the slice before.
    unsafe {
        let mut pipeline = CpAsync::<S>;
        for _ in 0..S - 1 {
            pipeline.fill(|| stream.load_next::<C>());
        }
        let mut rows = Rows::<C, OT>::new(&tile, team.side == 0);
        let mut j = seen.end;
        while j > seen.start {
            j -= 1;
            // 8. S = Q K^T
            let mut s = [[Accumulator::ZERO; NT]; MT];
            for _ in 0..stream.windows {
                pipeline.wait();
                pipeline.fill(|| stream.load_next::<C>());
                let [q_tile, k_tile] = stream.windows_in(stream.reading);
                let (q_tile, k_tile) = (q_tile.skip(team.row), k_tile.skip(warp_key));
                let q = |dt: usize| slice(q_tile, lane, dt);
                multiply_transposed::<E, _, _, MT, NT, WT>(&mut s, q, k_tile, lane);
                pipeline.release();
                stream.reading = stream.after(stream.reading);
            }
            let first_key = tile.first_key(j);
            let keys = |key: u32| tile.keys(team.row, j, first_key + key);
            let (query, key) = (tile.work.first + team.row, first_key + warp_key);
            let corner = Corner::new(query as i32, key as i32, tile.work.sequence, tile.split);
            if rows.score.scale().negative {
                s = s.map(|row| row.map(Accumulator::negate));
            }
            rows.score.apply::<false, MT, NT>(&mut s, corner);
            let is_edge = !whole.contains(&j);
            if is_edge {
                mask(&mut s, keys(warp_key));
            }

            // 9. P = exp(S - m); 10. O = diag(exp(m_before - m)) O
            let (team, lane) = (again(team_again), opaque(lane));
            let p_tile = SharedTile::<KT>::new(base).skip(team.row);
            rows.softmax::<E, T, KT>(s, team, p_tile, lane);

            // 10. O += P V. Opaque: unrolled, the loops over slices and runs would take registers.
            for v_slice in 0..opaque(stream.v_slices) {
                pipeline.wait();
                pipeline.fill(|| stream.load_next::<C>());
                let runs = (VT / RUN) as u32;
                let runs = if runs > 1 { opaque(runs) } else { runs };
                for run in 0..runs {
                    let v_tile = stream.v_in(stream.reading).skip(16 * RUN as u32 * run);
                    let first = (VT as u32 * v_slice + RUN as u32 * run) as usize;
                    if is_edge && has_non_finite::<E, _, RUN, OT, DT>(v_tile, column) {
                        let keys = keys(16 * first as u32);
                        let (o, p) = (&mut rows.o, (p_tile, first));
                        multiply_guarded_tile::<E, _, MT, RUN, KT, OT, DT>(
                            o, p, v_tile, keys, column,
                        );
                    } else {
                        let p = |kt: usize| slice(p_tile, lane, first + kt);
                        multiply::<E, _, MT, RUN, OT, DT>(&mut rows.o, p, v_tile, lane, column);
                    }
                }
                pipeline.release();
                if !stream.v_is_whole() {
                    stream.reading = stream.after(stream.reading);
                }
            }
        }
        rows.store::<E, H, W, T, DT>(params, &team);
    }
}

/// The slices of O's columns that a warp of a team has.
#[inline(always)]
fn team_column<const T: usize>(team: &Team<T>) -> impl Fn(usize) -> usize + Copy {
    let side = team.side as usize;
    move |ot| ot * T | side
}

/// A slice of the columns of the team's rows, of Q or P.
///
/// # Safety
/// The conditions of [`SharedTile::a`].
#[inline(always)]
unsafe fn slice<const DT: usize>(rows: SharedTile<DT>, lane: u32, slice: usize) -> [Operand; MT] {
    let mut operands = [Operand::ZERO; MT];
    for mt in 0..MT {
        // SAFETY: the caller's promise.
        operands[mt] = unsafe { rows.a(lane, mt, slice) };
    }
    operands
}

/// The block's rows, and what they see. Blocks of `bc` keys have the numbers of visits.
struct Tile<'a, M: Mask, H> {
    params: &'a ForwardParams,
    work: WorkTile<H>,
    split: Split,
    mask: M,
    visits: Visits<M>,
    br: u32,
    bc: u32,
}

impl<'a, M: Mask, H: Heads> Tile<'a, M, H> {
    /// The tile, the blocks that some row sees, and the ones that every row sees whole.
    #[inline(always)]
    fn new(params: &'a ForwardParams, br: u32, bc: u32) -> (Self, Range<u32>, Range<u32>) {
        let work = WorkTile::<H>::of_block(params, br);
        let (first, split) = (work.first, work.keys(params));
        let mask = work.mask::<M>(params, split);
        let last = (first + br).min(work.row_count()) - 1;
        let ends = [mask.keys(work.query(first)), mask.keys(work.query(last))];
        let visits = work.visits::<M>(params, split, first / br, bc);
        let (seen, whole) = (visits.of(seen_blocks(ends, bc)), whole_blocks(ends, bc));
        let tile = Tile {
            params,
            work,
            split,
            mask,
            visits,
            br,
            bc,
        };
        (tile, seen, whole)
    }

    /// The first key of a block.
    #[inline(always)]
    fn first_key(&self, j: u32) -> u32 {
        self.visits.block(j) * self.bc
    }

    /// The keys of block `j` that each of the lane's rows from `row` on sees, counted from `key`.
    #[inline(always)]
    fn keys(&self, row: u32, j: u32, key: u32) -> [[M::Keys; 2]; MT] {
        map_rows(|i| {
            let query = self.work.query(self.work.first + row + i);
            let keys = self.mask.keys_of_block(query, key as i32);
            keys.of_coverage(self.visits.coverage(j, 0))
        })
    }
}

/// The stream of slices through the ring: of each block the windows of Q and K, then V in slices of `v_keys` keys.
struct Stream<'a, M: Mask, H, const DT: usize, const S: usize> {
    tile: &'a Tile<'a, M, H>,
    /// Shared address of the memory.
    base: u32,
    memory: WideMemory,
    /// The thread, of so many.
    thread: u32,
    threads: u32,
    /// Slices of a block.
    windows: u32,
    v_slices: u32,
    v_keys: u32,
    /// The next slice to load: number `slice` of block `block - 1`. Block `start` is the last one.
    start: u32,
    block: u32,
    slice: u32,
    /// The buffers that the next slice goes to, and that the oldest one is in.
    filling: u32,
    reading: u32,
}

impl<'a, M: Mask, H: Heads, const DT: usize, const S: usize> Stream<'a, M, H, DT, S> {
    #[inline(always)]
    fn new<C: Score>(
        tile: &'a Tile<'a, M, H>,
        (base, memory): (u32, WideMemory),
        blocks: Range<u32>,
        v_keys: u32,
        [thread, threads]: [u32; 2],
    ) -> Self {
        let windows = tile.params.dim.div_ceil(WINDOW);
        let ring = base + memory.ring;
        Stream {
            tile,
            base,
            memory,
            thread,
            threads,
            // So many that V of a block is done with when the next one's load begins: a small head dim has windows of zeros.
            // Opaque, so that the compiler keeps the first loads like all others.
            windows: match C::SCALED {
                true => windows,
                false => opaque(windows.max(S as u32)),
            },
            v_slices: tile.bc / v_keys,
            v_keys,
            start: blocks.start,
            block: blocks.end,
            slice: 0,
            filling: ring,
            reading: ring,
        }
    }

    /// The buffer of the ring after another.
    #[inline(always)]
    fn after(&self, buffer: u32) -> u32 {
        let ring = self.base + self.memory.ring;
        match buffer + self.memory.buffer {
            next if next == ring + S as u32 * self.memory.buffer => ring,
            next => next,
        }
    }

    /// The windows of Q and K in a buffer.
    #[inline(always)]
    fn windows_in(&self, buffer: u32) -> [SharedTile<WT>; 2] {
        let q_tile = SharedTile::new(buffer);
        [q_tile, q_tile.skip(self.tile.br)]
    }

    /// The slice of V in a buffer, or V where it passes whole.
    #[inline(always)]
    fn v_in(&self, buffer: u32) -> SharedTile<DT> {
        SharedTile::new(match self.v_is_whole() {
            true => self.base + self.memory.v,
            false => buffer,
        })
    }

    /// Whether V passes whole, beside the ring.
    #[inline(always)]
    fn v_is_whole(&self) -> bool {
        self.v_keys == self.tile.bc
    }

    /// Starts to load the next slice, if there is one.
    ///
    /// Not inlined first: the compiler simplifies it alone, and its addresses take fewer registers of the main loop.
    ///
    /// # Safety
    /// Called between the acquire and the commit of a buffer; all warps are done with it, or with V.
    #[inline]
    unsafe fn load_next<C: Score>(&mut self) {
        if self.block <= self.start {
            return;
        }
        let (tile, threads) = (self.tile, self.threads);
        let (params, work, split) = (tile.params, &tile.work, tile.split);
        // Opaque: the addresses of all tensors would hold registers over the loop.
        let thread = opaque(self.thread);
        let key = tile.first_key(self.block - 1);
        let is_window = self.slice < self.windows;
        // SAFETY: the caller's promise. The last block may end beyond the last key.
        unsafe {
            if is_window {
                let column = self.slice * WINDOW;
                let [q_tile, k_tile] = self.windows_in(self.filling);
                let q = Copier::new(work.q_rows(&params.q), thread, threads);
                let k = Copier::new(work.k_rows::<C>(params, split.first), thread, threads);
                let exist = work.row_count() - work.first;
                q.skip_columns(column)
                    .load(q_tile, work.first, tile.br, exist);
                k.skip_columns(column)
                    .load(k_tile, key, tile.bc, split.keys - key);
            } else {
                let key = key + (self.slice - self.windows) * self.v_keys;
                let v = Copier::new(work.v_rows::<C>(params, split.first), thread, threads);
                let exist = split.keys.saturating_sub(key);
                v.load(self.v_in(self.filling), key, self.v_keys, exist);
            }
        }
        if is_window || !self.v_is_whole() {
            self.filling = self.after(self.filling);
        }
        self.slice += 1;
        if self.slice == self.windows + self.v_slices {
            (self.block, self.slice) = (self.block - 1, 0);
        }
    }
}

/// What a warp holds of its rows from step to step: m and l, and O.
struct Rows<C, const OT: usize> {
    score: C,
    softmax: Softmax<MT>,
    o: [[Accumulator; OT]; MT],
}

impl<C: Score, const OT: usize> Rows<C, OT> {
    /// Line 5: `O = 0, l = 0, m = -inf`. Of a team the `first` warp counts the sink.
    #[inline(always)]
    fn new<M: Mask, H: Heads>(tile: &Tile<M, H>, first: bool) -> Self {
        let (params, head) = (tile.params, tile.work.heads.first());
        let score = C::new(params, tile.work.sequence.batch, head);
        let mut softmax = Softmax::new(score.scale());
        softmax.take_sink(C::sink(params, tile.split, head), first);
        let o = [[Accumulator::ZERO; OT]; MT];
        Rows { score, softmax, o }
    }

    /// Line 9, and the factor of line 10: P goes to the team's rows of `p_tile`.
    ///
    /// # Safety
    /// The conditions of [`Team::combine`]; no warp of the team reads P.
    #[inline(always)]
    unsafe fn softmax<E: Element, const T: usize, const KT: usize>(
        &mut self,
        mut s: [[Accumulator; NT]; MT],
        team: Team<T>,
        p_tile: SharedTile<KT>,
        lane: u32,
    ) {
        // SAFETY: the caller's promise; the warp alone writes its columns of P.
        unsafe {
            let mut maxima = [[0.0; 2]; MT];
            for mt in 0..MT {
                maxima[mt] = self.softmax.maxima(&s[mt]);
            }
            let maxima = team.combine(maxima, f32::max);
            for mt in 0..MT {
                let factors = self.softmax.update(mt, &mut s[mt], maxima[mt]);
                scale_rows(&mut self.o[mt], factors);
                for nt in 0..NT {
                    let p = s[mt][nt].to_operand::<E>();
                    p_tile.set(lane, mt, NT * team.side as usize + nt, p);
                }
            }
        }
    }

    /// Lines 12 to 15: stores O and lse or, if the keys are split, what a combine kernel makes them from. O goes through
    /// shared memory, from where it leaves in 16-byte pieces.
    ///
    /// # Safety
    /// The conditions of [`wide`]; all threads of the block make the call.
    #[inline(always)]
    unsafe fn store<E: Element, H: Heads, const W: usize, const T: usize, const DT: usize>(
        self,
        params: &ForwardParams,
        team: &Team<T>,
    ) {
        let (br, threads, lane) = ((16 * MT * W / T) as u32, 32 * W as u32, special::lane());
        // SAFETY: the caller's promise.
        let (mut o, totals) = (self.o, unsafe { team.totals(&self.softmax) });
        let work = again(|| WorkTile::<H>::of_block(params, br));
        let first = work.first + team.row;
        let exist = work.row_count().saturating_sub(first);
        let column = team_column(team);
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
                scale_rows(&mut o[mt], finished.map(|(factor, _)| factor));
                for ot in 0..OT {
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
}
