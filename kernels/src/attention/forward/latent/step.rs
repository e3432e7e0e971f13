//! A step of a consumer: a block of its own, the other warpgroup's block behind it, and its own next one.

use super::THREADS;
use super::exchange::Exchange;
use super::part::PAIR;
use super::query::load_q;
use crate::attention::Softmax;
use crate::attention::guard::panels::{add_guarded, has_non_finite};
use crate::attention::options::mask::{Interval, Mask};
use crate::layout::element;
use crate::layout::latent::LatentMemory;
use crate::ptx::{barrier, bulk, shared, special, vote};
use crate::tile::registers::opaque;
use crate::tile::wgmma::{self, Product};
use crate::tile::whole::{mask, scale_rows, to_operands};
use crate::tile::{Accumulator, Element, Operand, Ring};
use core::hint::cold_path;
use core::marker::PhantomData;
use core::ops::Range;

/// What a step has to do.
pub trait Step {
    /// `O += P V` of an own block, whose probabilities are there.
    const HAS_OWN: bool;
    /// `O += P V` of the other warpgroup's block behind it.
    const HAS_OTHER: bool;
    /// Scores and probabilities of the own block behind that.
    const HAS_NEXT: bool;
    /// Whether rows may see only part of a block.
    const IS_EDGE: bool;
}

macro_rules! steps {
    ($($(#[$doc:meta])* $name:ident = $own:literal $other:literal $next:literal $edge:literal;)*) => {$(
        $(#[$doc])*
        pub struct $name;

        impl Step for $name {
            const HAS_OWN: bool = $own;
            const HAS_OTHER: bool = $other;
            const HAS_NEXT: bool = $next;
            const IS_EDGE: bool = $edge;
        }
    )*};
}

steps! {
    /// The first step of warpgroup 0: the first block.
    Leads = false false true true;
    /// The first step of warpgroup 1: the first two blocks.
    Follows = false true true true;
    /// Three blocks that all rows see whole.
    Whole = true true true false;
    /// Three blocks.
    Edge = true true true true;
    /// The last step of warpgroup 0: the last two blocks.
    EndsBefore = true true false true;
    /// The last step of warpgroup 1: the last block.
    Ends = true false false true;
}

/// A warpgroup's columns of O, and what it holds from step to step. No product is under way between steps: the assembler would
/// wait for each one.
pub struct Consumer<E, M: Mask, const OT: usize, const NT: usize, const QT: usize, const S: u32> {
    pub memory: LatentMemory,
    /// The number of the warpgroup, and of its half of O's columns.
    pub side: u32,
    /// The first pair of stages, and those that all rows see whole.
    pub first: u32,
    pub whole: Range<u32>,
    /// The keys of the split that each of the lane's rows sees.
    pub keys: [M::Keys; 2],
    pub softmax: Softmax<1>,
    /// The last slices of the warp's rows of Q: others are read from shared memory for each block.
    pub q: [Operand; QT],
    pub o: [Accumulator; OT],
    /// S, then P of the own block, and P rounded.
    pub s: [Accumulator; NT],
    pub p: [Operand; NT],
    pub kernel: PhantomData<E>,
}

/// The functions share their conditions: all lanes of the warpgroup make the same calls, in the order of the blocks; the
/// barriers are initialised, and the producer loads what they wait for.
impl<E: Element, M: Mask, const OT: usize, const NT: usize, const QT: usize, const S: u32>
    Consumer<E, M, OT, NT, QT, S>
where
    [Accumulator; OT]: Product,
    [Accumulator; NT]: Product,
{
    /// Lines 8 to 10 of own block `next`, and line 10 of the two before, which are the other warpgroup's and the own one before.
    /// Without one of them its number counts all the same.
    ///
    /// # Safety
    /// The conditions of all functions here.
    #[inline(always)]
    pub unsafe fn step<B: Step>(&mut self, next: u32) {
        let (own, other) = (Ring(next.wrapping_sub(2)), Ring(next.wrapping_sub(1)));
        // SAFETY: the caller's promise.
        unsafe {
            if B::HAS_OWN {
                if B::IS_EDGE {
                    self.guard(own, self.p);
                }
                // 10. O += P V
                self.issue_product(own, self.p);
                wgmma::wait::<0>();
                wgmma::pin(&mut self.o);
                // The stage is free before the wait for another: three are then on their way.
                own.release(self.memory.full(own.stage()));
            }
            if B::HAS_NEXT {
                self.issue_scores(Ring(next));
            }
            if B::HAS_OTHER {
                let (p, factors) = self.exchange().take::<NT>(&mut self.softmax);
                self.scale_o(factors);
                if B::IS_EDGE {
                    // The search and the guarded product are no part of what the tensor cores overlap.
                    wgmma::wait::<0>();
                    wgmma::pin(&mut self.s);
                    other.wait(self.memory.full(other.stage()));
                    self.guard(other, p);
                }
                self.issue_product(other, p);
            }
            let mut factors = [1.0; 2];
            if B::HAS_NEXT {
                if B::HAS_OTHER {
                    wgmma::wait::<1>();
                } else {
                    wgmma::wait::<0>();
                }
                wgmma::pin(&mut self.s);
                // 9. P = exp(S - m)
                factors = self.probabilities::<B>(next);
                [self.p] = to_operands::<E, 1, NT>([self.s]);
                self.exchange().give(&self.p, &self.softmax);
            }
            if B::HAS_OTHER {
                wgmma::wait::<0>();
                wgmma::pin(&mut self.o);
                other.release(self.memory.full(other.stage()));
            }
            if B::HAS_NEXT {
                self.scale_o(factors);
            }
        }
    }

    /// What the warp shares with its neighbour.
    #[inline(always)]
    pub fn exchange(&self) -> Exchange {
        // SAFETY: the launch has this many threads a block.
        let thread = unsafe { special::thread(THREADS) } % 128;
        Exchange::new(self.memory, thread, self.side)
    }

    /// Line 8: `S = Q K^T`, issued as a group.
    #[inline(always)]
    unsafe fn issue_scores(&mut self, block: Ring<S>) {
        let (q, k) = (self.memory.q(), self.memory.keys(block.stage()));
        // SAFETY: the caller's promise.
        unsafe {
            block.wait(self.memory.full(block.stage()));
            wgmma::fence();
            // Opaque: 24 instructions fewer, since slices go on from one word.
            let mut a = q.rows(0);
            a.low = opaque(a.low);
            let b = k.rows(0);
            for dt in 0..LatentMemory::DIM / element::K {
                let b = b.skip(k.to_columns(dt));
                match dt.checked_sub(LatentMemory::DIM / element::K - QT as u32) {
                    Some(qt) => self.s.operand_rows::<E>(self.q[qt as usize], b),
                    None => self.s.rows::<E>(a.skip(q.to_columns(dt)), b, dt > 0),
                }
            }
            wgmma::commit();
        }
    }

    /// Line 10: `O += P V`, issued as a group.
    #[inline(always)]
    unsafe fn issue_product(&mut self, block: Ring<S>, p: [Operand; NT]) {
        let v = self.memory.values(block.stage(), self.side);
        // SAFETY: the caller's promise. The keys have landed: their scores are there. This thread has not seen it, if they are
        // the other warpgroup's.
        unsafe {
            block.wait(self.memory.full(block.stage()));
            wgmma::pin(&mut self.o);
            wgmma::fence();
            for nt in 0..NT {
                self.o
                    .columns::<E>(p[nt], v.columns().skip(v.to_rows(nt as u32)));
            }
            wgmma::commit();
        }
    }

    /// Line 9: the scores of an own block become probabilities, relative to the maxima so far as long as these serve. Returns the
    /// factors of the rows of O.
    #[inline(always)]
    unsafe fn probabilities<B: Step>(&mut self, block: u32) -> [f32; 2] {
        let mut tiles = [self.s];
        if B::IS_EDGE && self.is_edge(block) {
            mask(&mut tiles, [self.keys_of_block(block)]);
        }
        // SAFETY: the caller's promise. The cold path holds instructions of a warp alone.
        unsafe {
            if vote::any(!self.softmax.serves(&tiles)) {
                cold_path();
                [self.s] = tiles;
                let maxima = self.softmax.maxima(&self.s);
                return self.softmax.update(0, &mut self.s, maxima);
            }
            let sums = self.softmax.apply(&mut tiles);
            [self.s] = tiles;
            self.softmax.add(sums);
        }
        [1.0; 2]
    }

    /// Line 10: `O = diag(factors) O`, where a factor is not 1.
    #[inline(always)]
    unsafe fn scale_o(&mut self, factors: [f32; 2]) {
        // SAFETY: the caller's promise.
        if unsafe { vote::any((factors[0] != 1.0) | (factors[1] != 1.0)) } {
            cold_path();
            scale_rows(&mut self.o, factors);
        }
    }

    /// Whether all rows see the blocks of a step whole, where `next` is its last one.
    #[inline(always)]
    pub fn all_see(&self, next: u32) -> bool {
        !self.is_edge(next) && !self.is_edge(next - 2)
    }

    /// Whether some row may not see all of a block.
    #[inline(always)]
    fn is_edge(&self, block: u32) -> bool {
        !self.whole.contains(&(self.first + block / 2))
    }

    /// The keys of a block that each of the lane's rows sees.
    #[inline(always)]
    fn keys_of_block(&self, block: u32) -> [M::Keys; 2] {
        let first = PAIR * self.first + LatentMemory::KEYS * block;
        self.keys.map(|keys| keys.counted_from(first as i32))
    }

    /// Before the product of a block that some row may not see whole: adds it with guards, and clears the values, if they hold
    /// an infinity or a NaN.
    #[inline(always)]
    unsafe fn guard(&mut self, block: Ring<S>, mut p: [Operand; NT]) {
        if !self.is_edge(block.0) {
            return;
        }
        let v = self.memory.values(block.stage(), self.side);
        let number = 9 + self.side;
        // SAFETY: the caller's promise. The scores of the block are there, so that nothing but this warpgroup's product reads its
        // values.
        unsafe {
            let thread = special::thread(THREADS) % 128;
            if has_non_finite::<E, OT, NT>(v, thread, number) {
                cold_path();
                let keys = self.keys_of_block(block.0);
                add_guarded::<E, OT, NT>(v, &mut self.o, &mut p, keys);
                barrier::some(number, 128);
                // Opaque: the loop stays one, with one store in place of eight.
                let (mut skipped, end) = (0, opaque(32 * 256 * element::BYTES));
                while skipped < end {
                    shared::store_u32x4(v.base + 16 * thread + skipped, [0; 4]);
                    skipped += 2048;
                }
                bulk::fence();
                barrier::some(number, 128);
                // Not held meanwhile.
                self.q = load_q(self.memory, thread);
            }
        }
    }
}
