//! The consumers' products: issued on the tensor cores, and waited for.

use crate::layout::sm90::Sm90Memory;
use crate::ptx::wgmma::{self, Product};
use crate::tile::registers::opaque;
use crate::tile::{Accumulator, Element, Operand, Ring};

/// A warpgroup's way through the stages, and where it reads.
pub struct Consumer<const DT: usize, const NT: usize, const S: u32> {
    /// The block's shared memory.
    pub memory: Sm90Memory,
    /// The warpgroup's number.
    pub warpgroup: u32,
    /// Where Q of its tile lies.
    pub slot: u32,
    /// The block of keys whose scores are in work. V of the block before may be in work, too.
    pub block: Ring<S>,
}

impl<const DT: usize, const NT: usize, const S: u32> Consumer<DT, NT, S>
where
    [Accumulator; DT]: Product,
    [Accumulator; NT]: Product,
{
    /// Passes a block by that the warpgroup does not see.
    ///
    /// # Safety
    /// As for all of these: all lanes of the warpgroup make the same calls, in the order of the blocks; the barriers are
    /// initialised, and the producer loads what they wait for.
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
            self.block.wait(v);
            self.block.release(v);
        }
        self.block = self.block.next();
    }

    /// Line 8: `S = Q K^T`, issued as a group.
    ///
    /// # Safety
    /// As [`pass`](Self::pass).
    #[inline(always)]
    pub unsafe fn issue_scores<E: Element>(&self, s: &mut [Accumulator; NT]) {
        // Opaque: the compiler would hold each operand's word over the tile.
        let q = self.memory.q(opaque(self.slot));
        let k = self.memory.k(self.block.stage());
        // SAFETY: the caller's promise.
        unsafe {
            self.block.wait(self.memory.k_full(self.block.stage()));
            wgmma::fence();
            let (a, b) = (q.rows(0), k.rows(0));
            for dt in 0..DT as u32 {
                let (a, b) = (a.skip(q.to_columns(dt)), b.skip(k.to_columns(dt)));
                s.rows::<E>(a, b, dt > 0);
            }
            wgmma::commit();
        }
    }

    /// Line 10: `O += P V`, issued as a group; `O += P 0` where `V` is to be left out.
    #[inline(always)]
    unsafe fn issue_product<E: Element>(
        &self,
        block: Ring<S>,
        o: &mut [Accumulator; DT],
        p: &[Operand; NT],
        leave_out: bool,
    ) {
        let v = self.memory.v(block.stage());
        // SAFETY: the caller's promise.
        unsafe {
            block.wait(self.memory.v_full(block.stage()));
            wgmma::pin(o);
            wgmma::fence();
            let mut b = v.columns();
            if leave_out {
                // Without strides all rows and columns are the same few.
                b.low = self.memory.zeros() / 16;
                b.high &= !0xffff;
            }
            // Opaque, so that the compiler makes no branches of the choice.
            b.low = opaque(b.low);
            b.high = opaque(b.high);
            let step = opaque(if leave_out { 0 } else { v.to_rows(1) / 16 });
            for nt in 0..NT {
                let mut b = b;
                b.low += nt as u32 * step;
                o.columns::<E>(p[nt], b);
            }
            wgmma::commit();
        }
    }

    /// `O += P V` of a block, and the scores of the next one, [waited for](Self::wait_scores) later.
    ///
    /// # Safety
    /// As [`pass`](Self::pass).
    #[inline(always)]
    pub unsafe fn issue_step<E: Element>(
        &mut self,
        s: &mut [Accumulator; NT],
        o: &mut [Accumulator; DT],
        p: &[Operand; NT],
        leave_out: bool,
    ) {
        let last = self.block;
        self.block = last.next();
        // SAFETY: the caller's promise.
        unsafe {
            self.issue_scores::<E>(s);
            self.issue_product::<E>(last, o, p, leave_out);
        }
    }

    /// Waits for the scores, after which `PENDING` groups were issued.
    ///
    /// # Safety
    /// As [`pass`](Self::pass).
    #[inline(always)]
    pub unsafe fn wait_scores<const PENDING: u32>(&self, s: &mut [Accumulator; NT]) {
        // SAFETY: the caller's promise.
        unsafe {
            wgmma::wait::<PENDING>();
            wgmma::pin(s);
        }
    }

    /// Waits for O: after this it may be scaled, and P replaced.
    ///
    /// # Safety
    /// As [`pass`](Self::pass).
    #[inline(always)]
    pub unsafe fn settle(&self, o: &mut [Accumulator; DT]) {
        // SAFETY: the caller's promise.
        unsafe {
            wgmma::wait::<0>();
            wgmma::pin(o);
            self.release_v(Ring(self.block.0 - 1));
        }
    }

    /// `O += P V` of a block, which is there at the return.
    ///
    /// # Safety
    /// As [`pass`](Self::pass).
    #[inline(always)]
    pub unsafe fn finish<E: Element>(
        &self,
        block: Ring<S>,
        o: &mut [Accumulator; DT],
        p: &[Operand; NT],
        leave_out: bool,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            self.issue_product::<E>(block, o, p, leave_out);
            wgmma::wait::<0>();
            wgmma::pin(o);
            self.release_v(block);
        }
    }

    /// Gives K back, whose scores are there.
    ///
    /// # Safety
    /// As [`pass`](Self::pass).
    #[inline(always)]
    pub unsafe fn release_k(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.block.release(self.memory.k_full(self.block.stage())) }
    }

    #[inline(always)]
    unsafe fn release_v(&self, block: Ring<S>) {
        // SAFETY: the caller's promise.
        unsafe { block.release(self.memory.v_full(block.stage())) }
    }
}
