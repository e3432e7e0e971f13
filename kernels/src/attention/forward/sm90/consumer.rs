//! The consumers' products: issued on the tensor cores, and waited for.

use super::kernel::Kernel;
use super::watch::Watch;
use crate::abi::Event;
use crate::layout::sm90::Sm90Memory;
use crate::tile::registers::opaque;
use crate::tile::wgmma::{self, Product};
use crate::tile::{Accumulator, Element, Operand, Ring};
use core::marker::PhantomData;

/// A warpgroup's way through the stages, and where it reads.
pub struct Consumer<K, const OT: usize, const NT: usize, const S: u32> {
    /// The block's shared memory.
    pub memory: Sm90Memory,
    /// The warpgroup's number in its side.
    pub warpgroup: u32,
    /// Where Q of its tile lies.
    pub slot: u32,
    /// The block of keys whose scores are in work. V of the block before may be in work, too.
    pub block: Ring<S>,
    /// Where its watch notes.
    pub notes: u64,
    /// Its kernel.
    pub kernel: PhantomData<K>,
}

impl<K: Kernel, const OT: usize, const NT: usize, const S: u32> Consumer<K, OT, NT, S>
where
    [Accumulator; OT]: Product,
    [Accumulator; NT]: Product,
{
    /// Passes a block by that the warpgroup does not see.
    ///
    /// # Safety
    /// The conditions of all functions here: all lanes of the warpgroup make the same calls, in the order of the blocks; the
    /// barriers are initialised, and the producer loads what they wait for.
    #[inline(always)]
    pub unsafe fn pass(&mut self) {
        let (k, v) = (
            self.memory.k_full(self.block.stage()),
            self.memory.v_full(self.block.stage()),
        );
        // To release a stage without a wait could count in the wrong phase.
        // SAFETY: the caller's promise.
        unsafe {
            self.block.wait(k);
            self.block.release(k);
            if K::CHUNKS {
                self.pass_chunks(k, K::K_CHUNKS);
            }
            self.block.wait(v);
            self.block.release(v);
            if K::CHUNKS {
                self.pass_chunks(v, K::V_CHUNKS);
            }
        }
        self.block = self.block.next();
    }

    /// Passes all chunks of K or V by but the first one.
    #[inline(always)]
    unsafe fn pass_chunks(&self, full: u32, count: u32) {
        for chunk in 1..count {
            // SAFETY: the caller's promise.
            unsafe {
                self.block.wait(full + 16 * chunk);
                self.block.release(full + 16 * chunk);
            }
        }
    }

    /// Line 8: `S = Q K^T`, issued as a group for each chunk of K; all chunks but the last are released.
    ///
    /// # Safety
    /// The conditions of [`pass`](Self::pass).
    #[inline(always)]
    pub unsafe fn issue_scores(&self, s: &mut [Accumulator; NT]) {
        // Opaque: the compiler would hold each operand's word over the tile, 260 instructions at D = 512.
        let q = self.memory.q(opaque(self.slot));
        let k = self.memory.k(self.block.stage());
        // SAFETY: the caller's promise.
        unsafe {
            self.block.wait(self.memory.k_full(self.block.stage()));
            self.note(self.block, Event::K);
            wgmma::fence();
            let (a, b) = (q.rows(0), k.rows(0));
            for dt in 0..K::D / K::Element::K {
                let in_chunk = K::D / K::Element::K / K::K_CHUNKS;
                if K::CHUNKS && dt > 0 && dt.is_multiple_of(in_chunk) {
                    self.next_chunk(dt / in_chunk);
                }
                let (a, b) = (a.skip(q.to_columns(dt)), b.skip(k.to_columns(dt)));
                s.rows::<K::Element>(a, b, dt > 0);
            }
            wgmma::commit();
            self.note(self.block, Event::ScoresIssued);
            if K::CHUNKS {
                self.release_chunk(K::K_CHUNKS - 2);
            }
        }
    }

    /// Between the products of two chunks of K: closes the group of the first one, and waits for chunk `next`.
    #[inline(always)]
    unsafe fn next_chunk(&self, next: u32) {
        // SAFETY: the caller's promise.
        unsafe {
            wgmma::commit();
            if next > 1 {
                self.release_chunk(next - 2);
            }
            self.block
                .wait(self.memory.k_full(self.block.stage()) + 16 * next);
        }
    }

    /// Waits for the products of a chunk of K, after which one group was issued, and gives it back.
    #[inline(always)]
    unsafe fn release_chunk(&self, chunk: u32) {
        // SAFETY: the caller's promise.
        unsafe {
            wgmma::wait::<1>();
            let full = self.memory.k_full(self.block.stage()) + 16 * chunk;
            self.block.release(full);
        }
    }

    /// Line 10: `O += P V`, issued as a group for each chunk of V; `O += P 0` where `V` is to be left out.
    #[inline(always)]
    unsafe fn issue_product(
        &self,
        block: Ring<S>,
        o: &mut [Accumulator; OT],
        p: &[Operand; NT],
        leave_out: bool,
    ) {
        let v = self.memory.v(block.stage());
        // SAFETY: the caller's promise.
        unsafe {
            block.wait(self.memory.v_full(block.stage()));
            self.note(block, Event::V);
            wgmma::pin(o);
            wgmma::fence();
            let mut b = v.columns();
            if leave_out {
                // Without strides all rows and columns are the same few.
                b.low = self.memory.zeros() / 16;
                b.high &= !0xffff;
            }
            let step = if leave_out { 0 } else { v.to_rows(1) / 16 };
            for nt in 0..NT {
                if K::CHUNKS && nt == NT / 2 {
                    wgmma::commit();
                    block.wait(self.memory.v_full(block.stage()) + 16);
                }
                let mut b = b;
                b.low += nt as u32 * step;
                o.columns::<K::Element>(p[nt], b);
            }
            wgmma::commit();
            self.note(block, Event::ProductIssued);
        }
    }

    /// `O += P V` of a block, and the scores of the next one, [waited for](Self::wait_scores) later.
    ///
    /// # Safety
    /// The conditions of [`pass`](Self::pass).
    #[inline(always)]
    pub unsafe fn issue_step(
        &mut self,
        s: &mut [Accumulator; NT],
        o: &mut [Accumulator; OT],
        p: &[Operand; NT],
        leave_out: bool,
    ) {
        let last = self.block;
        self.block = last.next();
        // SAFETY: the caller's promise.
        unsafe {
            self.issue_scores(s);
            self.issue_product(last, o, p, leave_out);
        }
    }

    /// Waits for the scores; `of_step` if [`issue_step`](Self::issue_step) issued them.
    ///
    /// # Safety
    /// The conditions of [`pass`](Self::pass).
    #[inline(always)]
    pub unsafe fn wait_scores(&self, s: &mut [Accumulator; NT], of_step: bool) {
        // SAFETY: the caller's promise.
        unsafe {
            match of_step {
                // The groups of the product come after them.
                true if K::CHUNKS => wgmma::wait::<2>(),
                true => wgmma::wait::<1>(),
                false => wgmma::wait::<0>(),
            }
            wgmma::pin(s);
            self.note(self.block, Event::Scores);
            if K::CHUNKS {
                let last = K::K_CHUNKS - 1;
                self.block
                    .release(self.memory.k_full(self.block.stage()) + 16 * last);
            }
        }
    }

    /// Waits for O: after this it may be scaled, and P replaced.
    ///
    /// # Safety
    /// The conditions of [`pass`](Self::pass).
    #[inline(always)]
    pub unsafe fn settle(&self, o: &mut [Accumulator; OT]) {
        // SAFETY: the caller's promise.
        unsafe { self.wait_product(Ring(self.block.0 - 1), o) }
    }

    /// `O += P V` of a block, which is there at the return.
    ///
    /// # Safety
    /// The conditions of [`pass`](Self::pass).
    #[inline(always)]
    pub unsafe fn finish(
        &self,
        block: Ring<S>,
        o: &mut [Accumulator; OT],
        p: &[Operand; NT],
        leave_out: bool,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            self.issue_product(block, o, p, leave_out);
            self.wait_product(block, o);
        }
    }

    /// Tells the watch.
    ///
    /// # Safety
    /// The conditions of [`pass`](Self::pass).
    #[inline(always)]
    pub unsafe fn note(&self, block: Ring<S>, event: Event) {
        // SAFETY: the caller's promise.
        unsafe { K::Watch::note(self.notes, block.0, event) }
    }

    /// Gives K back, whose scores are there: a whole block, which may be read until now.
    ///
    /// # Safety
    /// The conditions of [`pass`](Self::pass).
    #[inline(always)]
    pub unsafe fn release_k(&self) {
        if !K::CHUNKS {
            // SAFETY: the caller's promise.
            unsafe { self.block.release(self.memory.k_full(self.block.stage())) }
        }
    }

    /// Waits for the products of a block, the last ones issued, and gives V back.
    #[inline(always)]
    unsafe fn wait_product(&self, block: Ring<S>, o: &mut [Accumulator; OT]) {
        // SAFETY: the caller's promise.
        unsafe {
            if K::CHUNKS {
                wgmma::wait::<1>();
                self.release_v(block, 0);
            }
            wgmma::wait::<0>();
            wgmma::pin(o);
            self.note(block, Event::Product);
            self.release_v(block, K::V_CHUNKS - 1);
        }
    }

    #[inline(always)]
    unsafe fn release_v(&self, block: Ring<S>, chunk: u32) {
        // SAFETY: the caller's promise.
        unsafe { block.release(self.memory.v_full(block.stage()) + 16 * chunk) }
    }
}
