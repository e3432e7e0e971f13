//! A ring of buffers in shared memory that a stream of tiles passes through.

use kernels::ptx::{barrier, cp_async};

/// Buffers of one size. While one is in use, the others fill.
pub struct Ring {
    first: u32,
    end: u32,
    bytes: u32,
    loading: u32,
    reading: u32,
    /// Tiles loaded ahead.
    ahead: u32,
}

impl Ring {
    /// `buffers` buffers, at most 6, of `bytes` bytes each from address `first` on. At most `ahead` tiles load ahead,
    /// fewer than `buffers`: some tiles of the stream may lie beside the ring.
    #[inline(always)]
    pub fn new(first: u32, bytes: u32, buffers: u32, ahead: u32) -> Self {
        Ring {
            first,
            end: first + buffers * bytes,
            bytes,
            loading: first,
            reading: first,
            ahead: ahead.min(buffers - 1),
        }
    }

    /// The buffer to fill next.
    #[inline(always)]
    pub fn to_load(&mut self) -> u32 {
        let buffer = self.loading;
        self.loading = self.after(buffer);
        buffer
    }

    /// The buffer to read next.
    #[inline(always)]
    pub fn to_read(&mut self) -> u32 {
        let buffer = self.reading;
        self.reading = self.after(buffer);
        buffer
    }

    #[inline(always)]
    fn after(&self, buffer: u32) -> u32 {
        let next = buffer + self.bytes;
        if next == self.end { self.first } else { next }
    }

    /// Starts filling buffers, before the first step.
    ///
    /// # Safety
    /// The conditions of [`advance`](Self::advance).
    #[inline(always)]
    pub unsafe fn start(&mut self, mut load: impl FnMut(&mut Self)) {
        for _ in 0..self.ahead {
            load(self);
            // SAFETY: the caller's promise.
            unsafe { cp_async::commit() }
        }
    }

    /// Waits for the next tile, then calls `load` to fill the buffer of the tile before, with which all warps are
    /// done. A ring of one buffer fills it here, while all warps wait.
    ///
    /// # Safety
    /// All threads of the block make the same call. Each `load` starts the copies of the next tile in the order of
    /// [reading](Self::to_read), or of none.
    #[inline(always)]
    pub unsafe fn advance(&mut self, load: impl FnOnce(&mut Self)) {
        // SAFETY: the caller's promise; the branches depend on the launch alone.
        unsafe {
            if self.ahead > 0 {
                cp_async::wait_for(self.ahead - 1);
            }
            barrier::block();
            load(self);
            cp_async::commit();
            if self.ahead == 0 {
                cp_async::wait::<0>();
                barrier::block();
            }
        }
    }
}
