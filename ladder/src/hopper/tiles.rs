//! The stream of tiles of K and V: three ways to fill its stages.

use crate::options::HopperMemory;
use crate::work::Work;
use kernels::abi::ForwardParams;
use kernels::attention::workload::heads::Heads;
use kernels::layout::descriptor::Panels;
use kernels::layout::rows::Strided;
use kernels::ptx::{barrier, bulk, cp_async, mbarrier, special, tensor};
use kernels::tile::registers::opaque;
use kernels::tile::{Copier, Ring, SharedTile};

/// A stream of tiles: K of the last block of keys, its V, K of the block before, and so on.
///
/// # Safety
/// The conditions of all functions here: all lanes of the warpgroup make the same calls, a wait and a release for each
/// tile in turn.
pub trait Tiles {
    /// Waits until Q has landed.
    unsafe fn wait_q(&self);

    /// Waits until the next tile has landed.
    unsafe fn wait(&mut self) -> Panels;

    /// Gives the stage of the tile back, which the warpgroup has read.
    unsafe fn release(&mut self);
}

/// 16x16 tiles that a panel is wide.
const PANEL: usize = 4;

/// `wgmma`: all threads of the block copy by `cp.async`.
pub struct Copied<'a, const W: u32, const DT: usize, const NT: usize, const S: usize> {
    params: &'a ForwardParams,
    memory: HopperMemory,
    /// The next tile to read; `S - 1` tiles load ahead.
    next: u32,
    /// Tiles of the stream.
    tiles: u32,
}

impl<'a, const W: u32, const DT: usize, const NT: usize, const S: usize> Copied<'a, W, DT, NT, S> {
    const BC: u32 = 16 * NT as u32;

    /// Starts to copy Q and the first tiles.
    ///
    /// # Safety
    /// All threads of the block make the same call, of `W` warpgroups.
    #[inline(always)]
    pub unsafe fn start(params: &'a ForwardParams, memory: HopperMemory) -> Self {
        let work = Work::of_block(params, 64 * W, Self::BC);
        let tiles = 2 * work.blocks;
        let copied = Copied {
            params,
            memory,
            next: 0,
            tiles,
        };
        // SAFETY: the caller's promise; nothing reads the stages yet.
        unsafe {
            if tiles > 0 {
                let q = work.place.q_rows(&params.q);
                for warpgroup in 0..W {
                    let first = work.place.first + 64 * warpgroup;
                    let exist = params.seqlen_q.saturating_sub(first);
                    Self::copy(memory.q(warpgroup), q, first, exist);
                }
            }
            for i in 0..S as u32 - 1 {
                copied.load(i);
                cp_async::commit();
            }
        }
        copied
    }

    /// Starts to copy tile `i`, if there is one, to its stage.
    #[inline(always)]
    unsafe fn load(&self, i: u32) {
        if i >= self.tiles {
            return;
        }
        let (p, Work { place, split, .. }) =
            (self.params, Work::of_block(self.params, 64 * W, Self::BC));
        let first_key = (self.tiles - 1 - i) / 2 * Self::BC;
        let tensor = if opaque(i) % 2 == 0 { &p.k } else { &p.v };
        let rows = place.kv_rows(tensor, split.first);
        // SAFETY: the caller's promise.
        unsafe {
            let to = self.memory.tile(i % S as u32);
            Self::copy(to, rows, first_key, split.keys - first_key);
        }
    }

    /// Copies rows from `first` on, `exist` of which exist, to panels of 64 columns.
    #[inline(always)]
    unsafe fn copy(to: Panels, rows: Strided, first: u32, exist: u32) {
        // SAFETY: the caller's promise.
        unsafe {
            let thread = special::thread(128 * W);
            let copier = Copier::<PANEL, _>::new(rows, thread, 128 * W);
            for panel in 0..DT / PANEL {
                let copier = copier.skip_columns(64 * panel as u32);
                let tile = SharedTile::new(to.base + panel as u32 * to.panel_bytes());
                copier.load(tile, first, to.rows, exist);
            }
        }
    }
}

impl<const W: u32, const DT: usize, const NT: usize, const S: usize> Tiles
    for Copied<'_, W, DT, NT, S>
{
    /// Q was copied before the first tile.
    #[inline(always)]
    unsafe fn wait_q(&self) {}

    /// The barrier says two things: all threads' copies are visible, and all warpgroups have read the tile before, whose
    /// stage fills again.
    #[inline(always)]
    unsafe fn wait(&mut self) -> Panels {
        // SAFETY: the caller's promise; all warpgroups of the block take the same tiles.
        unsafe {
            cp_async::wait_less::<S, 2>();
            // The tensor cores read through the asynchronous proxy.
            bulk::fence();
            barrier::block();
            self.load(self.next + S as u32 - 1);
            cp_async::commit();
        }
        let tile = self.memory.tile(self.next % S as u32);
        self.next += 1;
        tile
    }

    #[inline(always)]
    unsafe fn release(&mut self) {}
}

/// Loads by the copy engine, started by one thread.
#[derive(Clone, Copy)]
pub struct Boxes<const W: u32, const DT: usize, const NT: usize, const S: u32> {
    memory: HopperMemory,
    maps: u64,
    batch: u32,
    head: u32,
    kv_head: u32,
    first: u32,
    first_key: u32,
    /// Tiles of the stream.
    tiles: u32,
}

impl<const W: u32, const DT: usize, const NT: usize, const S: u32> Boxes<W, DT, NT, S> {
    const BC: u32 = 16 * NT as u32;

    /// The block's loads, by the tensor maps of Q, K and V at generic address `maps`.
    #[inline(always)]
    pub fn new(params: &ForwardParams, maps: u64, memory: HopperMemory) -> Self {
        let work = Work::of_block(params, 64 * W, Self::BC);
        Boxes {
            memory,
            maps,
            batch: work.place.sequence.batch,
            head: work.place.heads.first(),
            kv_head: work.place.heads.kv_head(),
            first: work.place.first,
            first_key: work.split.first,
            tiles: 2 * work.blocks,
        }
    }

    /// Starts to load Q.
    ///
    /// # Safety
    /// The conditions of all functions here: one thread makes the call, with initialised barriers; the place is free.
    #[inline(always)]
    unsafe fn load_q(&self) {
        let full = self.memory.q_full();
        // SAFETY: the barrier counts what is loaded.
        unsafe {
            mbarrier::arrive_expect(full, W * self.memory.q_bytes());
            let mut warpgroup = 0;
            while warpgroup < W {
                let first = self.first + 64 * warpgroup;
                self.load(self.memory.q(warpgroup), self.maps, full, first, self.head);
                // Opaque: the loop stays one.
                warpgroup = opaque(warpgroup + 1);
            }
        }
    }

    /// Starts to load the tile of a place in the stream.
    #[inline(always)]
    unsafe fn load_tile(&self, place: Ring<S>) {
        let full = self.memory.full(place.stage());
        let key = self.first_key + (self.tiles - 1 - place.0) / 2 * Self::BC;
        let map = self.maps + 128 * u64::from(1 + place.0 % 2);
        // SAFETY: as above.
        unsafe {
            mbarrier::arrive_expect(full, self.memory.tile_bytes());
            self.load(
                self.memory.tile(place.stage()),
                map,
                full,
                key,
                self.kv_head,
            );
        }
    }

    /// A box for each panel.
    #[inline(always)]
    unsafe fn load(&self, to: Panels, map: u64, full: u32, row: u32, head: u32) {
        let mut panel = 0;
        while panel < DT as u32 / PANEL as u32 {
            let (place, column) = (to.base + panel * to.panel_bytes(), 64 * panel);
            let (row, head, batch) = (row as i32, head as i32, self.batch as i32);
            // SAFETY: as above; the box fits its place.
            unsafe { tensor::load(place, map, column as i32, row, head, batch, full) }
            panel = opaque(panel + 1);
        }
    }
}

/// `tma`: a thread of the block that multiplies, too, starts the loads.
pub struct Sent<const W: u32, const DT: usize, const NT: usize, const S: u32> {
    boxes: Boxes<W, DT, NT, S>,
    /// The next tile to read.
    next: Ring<S>,
}

impl<const W: u32, const DT: usize, const NT: usize, const S: u32> Sent<W, DT, NT, S> {
    /// Starts to load Q and the first tiles.
    ///
    /// # Safety
    /// All threads of the block make the same call, with initialised barriers.
    #[inline(always)]
    pub unsafe fn start(boxes: Boxes<W, DT, NT, S>) -> Self {
        // SAFETY: nothing reads the stages yet.
        unsafe {
            if special::thread(128 * W) == 0 && boxes.tiles > 0 {
                boxes.load_q();
                let mut place = Ring(0);
                while place.0 < boxes.tiles.min(S) {
                    boxes.load_tile(place);
                    place = Ring(opaque(place.0 + 1));
                }
            }
        }
        Sent {
            boxes,
            next: Ring(0),
        }
    }
}

impl<const W: u32, const DT: usize, const NT: usize, const S: u32> Tiles for Sent<W, DT, NT, S> {
    #[inline(always)]
    unsafe fn wait_q(&self) {
        // SAFETY: the caller's promise.
        unsafe { Ring::<1>(0).wait(self.boxes.memory.q_full()) }
    }

    #[inline(always)]
    unsafe fn wait(&mut self) -> Panels {
        let (memory, stage) = (self.boxes.memory, self.next.stage());
        // SAFETY: the caller's promise.
        unsafe { self.next.wait(memory.full(stage)) }
        memory.tile(stage)
    }

    /// After the barrier all warpgroups have read the tile, and its stage fills again.
    #[inline(always)]
    unsafe fn release(&mut self) {
        let next = Ring(self.next.0 + S);
        // SAFETY: the caller's promise; all warpgroups of the block take the same tiles.
        unsafe {
            barrier::block();
            if special::thread(128 * W) == 0 && next.0 < self.boxes.tiles {
                self.boxes.load_tile(next);
            }
        }
        self.next = self.next.next();
    }
}

/// `specialised`: a thread that does nothing else loads Q and all tiles.
///
/// # Safety
/// In one thread of the block, with initialised barriers.
#[inline(always)]
pub unsafe fn produce<const W: u32, const DT: usize, const NT: usize, const S: u32>(
    boxes: Boxes<W, DT, NT, S>,
) {
    // SAFETY: each stage is acquired before it is filled.
    unsafe {
        if boxes.tiles > 0 {
            boxes.load_q();
        }
        let mut place = Ring::<S>(0);
        while place.0 < boxes.tiles {
            place.acquire(boxes.memory.full(place.stage()));
            boxes.load_tile(place);
            place = Ring(opaque(place.0 + 1));
        }
    }
}

/// The consumers' side of [`produce`].
pub struct Produced<const S: u32> {
    memory: HopperMemory,
    /// The next tile to read.
    next: Ring<S>,
}

impl<const S: u32> Produced<S> {
    /// Before the first tile.
    #[inline(always)]
    pub fn new(memory: HopperMemory) -> Self {
        Produced {
            memory,
            next: Ring(0),
        }
    }
}

impl<const S: u32> Tiles for Produced<S> {
    #[inline(always)]
    unsafe fn wait_q(&self) {
        // SAFETY: the caller's promise.
        unsafe { Ring::<1>(0).wait(self.memory.q_full()) }
    }

    #[inline(always)]
    unsafe fn wait(&mut self) -> Panels {
        let stage = self.next.stage();
        // SAFETY: the caller's promise.
        unsafe { self.next.wait(self.memory.full(stage)) }
        self.memory.tile(stage)
    }

    /// Each warp arrives when it has read the tile.
    #[inline(always)]
    unsafe fn release(&mut self) {
        // SAFETY: the caller's promise.
        unsafe { self.next.release(self.memory.full(self.next.stage())) }
        self.next = self.next.next();
    }
}
