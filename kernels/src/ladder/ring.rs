//! A ring of buffers in shared memory that a stream of tiles passes through.

use crate::ptx::{barrier, cp_async};

/// Buffers of one size. While one is worked on, the others are being filled.
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
    /// `buffers` buffers, at most 6, of `bytes` bytes each from address `first` on. There are tiles beside
    /// them if `ahead` is less than their number less one.
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
    /// As [`advance`](Self::advance).
    #[inline(always)]
    pub unsafe fn start(&mut self, mut load: impl FnMut(&mut Self)) {
        for _ in 0..self.ahead {
            load(self);
            // SAFETY: the caller's promise.
            unsafe { cp_async::commit() }
        }
    }

    /// Waits for the next tile, and has `load` start filling the buffer of the one before, with which
    /// all warps are done. A ring of one buffer has nothing to wait for beside the barrier, and fills it
    /// while everybody waits.
    ///
    /// # Safety
    /// All threads of the block make the same call. Each `load` starts the copies of one tile, or none,
    /// of those in the order of their [reading](Self::to_read).
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
