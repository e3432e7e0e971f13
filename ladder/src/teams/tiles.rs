//! Where the tiles of a block of teams lie, and the stream of slices through the ring.

use crate::options::{TeamsMemory, swizzles};
use crate::params::Options;
use crate::ring::Ring;
use crate::work::Work;
use kernels::abi::ForwardParams;
use kernels::layout::rows::Strided;
use kernels::layout::swizzle::Swizzle;
use kernels::tile::registers::opaque;
use kernels::tile::{Copier, SharedTile};

/// A window: 64 columns, 128 bytes of a row.
pub const WINDOW: usize = 4;

/// Windows side by side.
pub type Tile = SharedTile<WINDOW, Swizzle>;

/// Where the tiles of Q, K and V lie: beside the ring, or in a buffer of it.
#[derive(Clone, Copy)]
pub struct Tiles {
    /// Shared address of all.
    base: u32,
    /// Offsets from there.
    memory: TeamsMemory,
    q_swizzle: Swizzle,
    k_swizzle: Swizzle,
    v_swizzle: Swizzle,
    /// Windows of a slice of the head dim.
    pub windows: u32,
    /// Keys of a slice of V.
    pub v_keys: u32,
    /// Slices of V in a block of keys.
    pub v_slices: u32,
    /// Whether Q stays beside the ring.
    pub q_stays: bool,
    /// Whether V passes beside the ring.
    v_apart: bool,
}

impl Tiles {
    /// From shared address `base` on, for `q_rows` query rows, `keys` keys and `width` columns of V in a block, and
    /// `team` warps in a team.
    #[inline(always)]
    pub fn new(base: u32, options: &Options, dim: u32, sizes: [u32; 4]) -> Self {
        let [_, keys, width, _] = sizes;
        let memory = TeamsMemory::new(options, dim, sizes);
        let [q_swizzle, ..] = swizzles(options, 8 * memory.q_windows);
        let [_, k_swizzle, _] = swizzles(options, 8 * options.windows);
        let [_, _, v_swizzle] = swizzles(options, width / 8);
        Tiles {
            base,
            memory,
            q_swizzle,
            k_swizzle,
            v_swizzle,
            windows: options.windows,
            v_keys: options.v_keys,
            v_slices: keys / options.v_keys,
            q_stays: options.apart & 0b001 != 0,
            v_apart: options.apart & 0b100 != 0,
        }
    }

    /// Slices of the head dim that Q and K pass in.
    #[inline(always)]
    pub fn k_slices(&self) -> u32 {
        self.memory.k_slices
    }

    /// Shared address of the maxima that teams exchange.
    #[inline(always)]
    pub fn exchange(&self) -> u32 {
        self.base + self.memory.exchange
    }

    /// The ring.
    #[inline(always)]
    pub fn ring(&self, buffers: u32) -> Ring {
        // V beside the ring has one buffer: it must not be filled before all warps are done with the V before.
        let ahead = match self.v_apart {
            true => self.memory.k_slices,
            false => u32::MAX,
        };
        let base = self.base + self.memory.ring;
        Ring::new(base, self.memory.buffer, buffers, ahead)
    }

    /// A window of a slice of Q: of Q that stays, or of the slice in a buffer.
    #[inline(always)]
    pub fn q(&self, buffer: u32, slice: u32, window: u32) -> Tile {
        let (base, window) = match self.q_stays {
            true => (self.base + self.memory.q, slice * self.windows + window),
            false => (buffer, window),
        };
        tile(base, self.q_swizzle).skip_columns(64 * window)
    }

    /// A window of the slice of K in a buffer.
    #[inline(always)]
    pub fn k(&self, buffer: u32, window: u32) -> Tile {
        tile(buffer + self.memory.k_in_buffer, self.k_swizzle).skip_columns(64 * window)
    }

    /// The slice of V: beside the ring, or in its next buffer, which `next` says.
    #[inline(always)]
    pub fn v(&self, next: impl FnOnce() -> u32) -> Tile {
        let base = match self.v_apart {
            true => self.base + self.memory.v,
            false => next(),
        };
        tile(base, self.v_swizzle)
    }
}

#[inline(always)]
fn tile(base: u32, arrangement: Swizzle) -> Tile {
    SharedTile { base, arrangement }
}

/// The loads of a thread: slices of the last block of keys, first of Q and K, then of V; of the block before; and so on.
pub struct Loads {
    tiles: Tiles,
    q: Copier<WINDOW, Strided, Swizzle>,
    k: Copier<WINDOW, Strided, Swizzle>,
    v: Copier<WINDOW, Strided, Swizzle>,
    /// First query row, rows of the block, and how many of them exist.
    q_rows: [u32; 3],
    /// Keys of the split, and of a block.
    keys: [u32; 2],
    /// Columns of V.
    width: u32,
    /// Blocks of keys left, and the next slice of the last of them.
    next: [u32; 2],
}

impl Loads {
    /// Those of `thread` of `threads`. The tiles have such `sizes`, those of [`Tiles::new`].
    #[inline(always)]
    pub fn new(
        p: &ForwardParams,
        work: &Work,
        tiles: Tiles,
        [br, bc, width, _]: [u32; 4],
        [thread, threads]: [u32; 2],
    ) -> Self {
        let Work { place, split, .. } = work;
        let copier = |rows, swizzle| Copier::arranged(rows, thread, threads, swizzle);
        Loads {
            tiles,
            q: copier(place.q_rows(&p.q), tiles.q_swizzle),
            k: copier(place.kv_rows(&p.k, split.first), tiles.k_swizzle),
            v: copier(place.kv_rows(&p.v, split.first), tiles.v_swizzle),
            q_rows: [place.first, br, p.seqlen_q - place.first],
            keys: [split.keys, bc],
            width,
            next: [work.blocks, 0],
        }
    }

    /// Starts to load Q where it stays.
    ///
    /// # Safety
    /// The conditions of all functions here: all threads of the block make the same call, and the ring or, of Q, the
    /// caller says when the tile's place is free and waits for it.
    #[inline(always)]
    pub unsafe fn load_q(&self) {
        for window in 0..self.tiles.memory.q_windows {
            // SAFETY: the caller's promise.
            unsafe { self.load_window_of_q(self.tiles.q(0, 0, window), 64 * window) }
        }
    }

    /// Starts to load the next slice, if there is one, to the ring or beside it.
    ///
    /// # Safety
    /// The conditions of [`load_q`](Self::load_q).
    #[inline(always)]
    pub unsafe fn load(&mut self, ring: &mut Ring) {
        let (tiles, [block, slice]) = (self.tiles, self.next);
        if block == 0 {
            return;
        }
        let first_key = (block - 1) * self.keys[1];
        // SAFETY: the caller's promise.
        unsafe {
            match slice.checked_sub(tiles.k_slices()) {
                None => self.load_slice(ring.to_load(), slice, first_key),
                Some(v_slice) => {
                    let to = tiles.v(|| ring.to_load());
                    self.load_values(to, first_key + v_slice * tiles.v_keys);
                }
            }
        }
        self.next = match slice + 1 == tiles.k_slices() + tiles.v_slices {
            true => [block - 1, 0],
            false => [block, slice + 1],
        };
    }

    /// A slice of Q, unless Q stays, and of K.
    #[inline(always)]
    unsafe fn load_slice(&self, buffer: u32, slice: u32, first_key: u32) {
        let [keys, bc] = self.keys;
        for window in 0..self.tiles.windows {
            let column = 64 * (slice * self.tiles.windows + window);
            // SAFETY: the caller's promise. The last block may end beyond the last key.
            unsafe {
                if !self.tiles.q_stays {
                    self.load_window_of_q(self.tiles.q(buffer, slice, window), column);
                }
                let to = self.tiles.k(buffer, window);
                self.k
                    .skip_columns(column)
                    .load(to, first_key, bc, keys - first_key);
            }
        }
    }

    /// A window of Q, from a column on.
    #[inline(always)]
    unsafe fn load_window_of_q(&self, to: Tile, column: u32) {
        let [first, rows, exist] = self.q_rows;
        // SAFETY: the caller's promise.
        unsafe { self.q.skip_columns(column).load(to, first, rows, exist) }
    }

    /// A slice of V.
    #[inline(always)]
    unsafe fn load_values(&self, to: Tile, first_key: u32) {
        let exist = self.keys[0].saturating_sub(first_key);
        // Opaque: unrolled, the addresses of all windows would take registers.
        let mut column = 0;
        while column < opaque(self.width) {
            let (v, to) = (self.v.skip_columns(column), to.skip_columns(column));
            // SAFETY: the caller's promise.
            unsafe { v.load(to, first_key, self.tiles.v_keys, exist) }
            column += 64;
        }
    }
}
