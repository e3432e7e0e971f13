//! What passes through the ring of buffers.

use super::tile::Tile;
use crate::attention::options::mask::Mask;
use crate::attention::options::score::Score;
use crate::attention::workload::heads::Heads;
use crate::attention::workload::walk::Walk;
use crate::layout::element;
use crate::layout::wide::{WINDOW, WideMemory};
use crate::tile::registers::opaque;
use crate::tile::{Copier, CpAsync, Pipeline, SharedTile};

/// Slices of a window.
const WT: usize = (WINDOW / element::K) as usize;

/// The stream of slices through the ring: of each block the windows of Q and K, then V in slices of `v_keys` keys.
pub struct Stream<'a, M: Mask, H, const DT: usize, const S: usize> {
    tile: &'a Tile<'a, M, H>,
    /// Shared address of the memory.
    base: u32,
    memory: WideMemory,
    /// The thread, of so many.
    thread: u32,
    threads: u32,
    /// Slices of a block.
    pub windows: u32,
    pub v_slices: u32,
    v_keys: u32,
    /// The next slice to load: number `slice` of block `block - 1`.
    walk: Walk<M::Keys>,
    block: u32,
    slice: u32,
    /// The buffers that the next slice goes to, and that the oldest one is in.
    filling: u32,
    reading: u32,
}

impl<'a, M: Mask, H: Heads, const DT: usize, const S: usize> Stream<'a, M, H, DT, S> {
    #[inline(always)]
    pub fn new<C: Score>(
        tile: &'a Tile<'a, M, H>,
        (base, memory): (u32, WideMemory),
        walk: Walk<M::Keys>,
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
            // Opaque, so that the compiler keeps the first loads like all others: with a bias it spills 12 bytes fewer.
            windows: match C::SCALED {
                true => windows,
                false => opaque(windows.max(S as u32)),
            },
            v_slices: tile.bc / v_keys,
            v_keys,
            walk,
            block: walk.end(),
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

    /// Waits for the oldest slice, and starts to load the next one.
    ///
    /// # Safety
    /// The conditions of [`Pipeline`].
    #[inline(always)]
    pub unsafe fn wait<C: Score>(&mut self) {
        // SAFETY: the caller's promise; the wait frees a buffer.
        unsafe {
            CpAsync::<S>.wait();
            CpAsync::<S>.fill(|| self.load_next::<C>());
        }
    }

    /// Gives the windows of Q and K back.
    ///
    /// # Safety
    /// The conditions of [`Pipeline`].
    #[inline(always)]
    pub unsafe fn release_windows(&mut self) {
        // SAFETY: the caller's promise.
        unsafe { CpAsync::<S>.release() }
        self.reading = self.after(self.reading);
    }

    /// Gives a slice of V back.
    ///
    /// # Safety
    /// The conditions of [`Pipeline`].
    #[inline(always)]
    pub unsafe fn release_v(&mut self) {
        // SAFETY: the caller's promise.
        unsafe { CpAsync::<S>.release() }
        if !self.v_is_whole() {
            self.reading = self.after(self.reading);
        }
    }

    /// The windows of Q and K that the warps have waited for.
    #[inline(always)]
    pub fn windows_here(&self) -> [SharedTile<WT>; 2] {
        self.windows_in(self.reading)
    }

    /// The slice of V that the warps have waited for, or V where it passes whole.
    #[inline(always)]
    pub fn v_here(&self) -> SharedTile<DT> {
        self.v_in(self.reading)
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
    pub unsafe fn load_next<C: Score>(&mut self) {
        if !self.walk.sees(self.block) {
            return;
        }
        let (tile, threads) = (self.tile, self.threads);
        let (params, work, split) = (tile.params, &tile.work, tile.split);
        // Opaque: the addresses of all tensors would hold 21 registers over the loop, and spill 8 bytes.
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
                let exist = work.row_count::<C>() - work.first;
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
