//! A stream of tiles through a few buffers of shared memory: while one tile is worked on, the next ones load.
//!
//! ```text
//! copying threads   acquire  copies  commit   acquire  copies  commit   ...
//! working threads                             wait  work  release   wait  work  release   ...
//! ```
//!
//! Here all threads of a block copy and work. A producer warp that copies for the others makes the same
//! calls, `acquire` and `commit`, and the others `wait` and `release`.

use crate::ptx::{barrier, cp_async};

/// Buffers that a stream of tiles passes through, in order. The caller computes their addresses.
///
/// # Safety
/// The conditions of all functions here: all copying threads of the block make the same calls, and so do all working threads.
/// A thread writes only into acquired buffers, reads only tiles that it waited for, and neither after their commit and
/// release.
pub trait Pipeline {
    /// Waits until the next buffer to fill is free.
    unsafe fn acquire(&mut self);

    /// Ends the copies into the acquired buffer.
    unsafe fn commit(&mut self);

    /// Waits until the next tile is in its buffer, visible to all threads.
    unsafe fn wait(&mut self);

    /// Gives the oldest buffer back that this thread waited for.
    unsafe fn release(&mut self);

    /// Fills the next free buffer by `copies`.
    #[inline(always)]
    unsafe fn fill(&mut self, copies: impl FnOnce()) {
        // SAFETY: the caller's promise.
        unsafe {
            self.acquire();
            copies();
            self.commit();
        }
    }
}

/// `S` buffers that all threads of a block fill by `cp.async`, and that all of them use.
///
/// The barrier in [`wait`](Pipeline::wait) says two things: the tile of every thread's copies is visible, and
/// every thread has released the tile before. So `acquire` and `release` have nothing to do, provided
/// that one `wait` lies between the release of a buffer and its next acquire: `S - 1` buffers are filled
/// when a thread waits.
pub struct CpAsync<const S: usize>;

impl<const S: usize> Pipeline for CpAsync<S> {
    #[inline(always)]
    unsafe fn acquire(&mut self) {}

    #[inline(always)]
    unsafe fn commit(&mut self) {
        // SAFETY: the caller's promise.
        unsafe { cp_async::commit() }
    }

    #[inline(always)]
    unsafe fn wait(&mut self) {
        // SAFETY: the caller's promise.
        unsafe {
            cp_async::wait_less::<S, 2>();
            barrier::block();
        }
    }

    #[inline(always)]
    unsafe fn release(&mut self) {}
}

impl<const S: usize> CpAsync<S> {
    /// [`wait`](Pipeline::wait) for the first tile, when all `S` buffers are filled.
    ///
    /// # Safety
    /// The conditions of [`Pipeline`].
    #[inline(always)]
    pub unsafe fn wait_first(&mut self) {
        // SAFETY: the caller's promise.
        unsafe {
            cp_async::wait_less::<S, 1>();
            barrier::block();
        }
    }

    /// [`wait`](Pipeline::wait) for the tile that the next `wait` waits for, too.
    ///
    /// # Safety
    /// The conditions of [`Pipeline`].
    #[inline(always)]
    pub unsafe fn peek(&mut self) {
        // SAFETY: the caller's promise.
        unsafe { self.wait() }
    }

    /// The first half of [`wait`](Pipeline::wait): waits for this thread's own copies, which it then may read.
    ///
    /// # Safety
    /// The conditions of [`Pipeline`].
    #[inline(always)]
    pub unsafe fn wait_own(&mut self) {
        // SAFETY: the caller's promise.
        unsafe { cp_async::wait_less::<S, 2>() }
    }

    /// The second half of [`wait`](Pipeline::wait): waits for all threads; returns whether `value` is true for
    /// any of them.
    ///
    /// # Safety
    /// The conditions of [`Pipeline`].
    #[inline(always)]
    pub unsafe fn wait_others(&mut self, value: bool) -> bool {
        // SAFETY: the caller's promise.
        unsafe { barrier::block_any(value) }
    }

    /// Waits for all copies and all threads: the buffers are free for other uses.
    ///
    /// # Safety
    /// The conditions of [`Pipeline`].
    #[inline(always)]
    pub unsafe fn drain(self) {
        // SAFETY: the caller's promise.
        unsafe {
            cp_async::wait::<0>();
            barrier::block();
        }
    }
}
