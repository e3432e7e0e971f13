//! A step of Algorithm 1: a warpgroup's rows and one block of keys.

use super::consumer::Consumer;
use super::kernel::{Kernel, Keys, may_have_gaps};
use super::maxima::{Exact, Lazy, Maxima};
use super::tile::Tile;
use crate::abi::Event;
use crate::attention::options::mask::Mask;
use crate::attention::workload::walk::Runs;
use crate::attention::{Softmax, SoftmaxScale};
use crate::ptx::barrier;
use crate::tile::registers::opaque;
use crate::tile::wgmma::Product;
use crate::tile::whole::{scale_rows, to_operands};
use crate::tile::{Accumulator, Operand};
use core::hint::cold_path;

/// What a step has before it, and how much its rows see.
pub trait Block {
    /// Whether `O += P V` of the block before is left to issue.
    const HAS_PRODUCT: bool;
    /// Whether O has something to scale.
    const HAS_O: bool;
    /// Whether every row sees the whole block.
    const IS_WHOLE: bool;
    /// The maxima that the step takes.
    type Maxima: Maxima;
}

/// The first block, at the edge.
pub struct First;
/// A block at the edge.
pub struct Edge;
/// A block at the edge, behind blocks that a boolean mask hides.
pub struct Resumed;
/// A whole block.
pub struct Whole;

impl Block for First {
    const HAS_PRODUCT: bool = false;
    const HAS_O: bool = false;
    const IS_WHOLE: bool = false;
    type Maxima = Exact;
}

impl Block for Edge {
    const HAS_PRODUCT: bool = true;
    const HAS_O: bool = true;
    const IS_WHOLE: bool = false;
    type Maxima = Exact;
}

impl Block for Resumed {
    const HAS_PRODUCT: bool = false;
    const HAS_O: bool = true;
    const IS_WHOLE: bool = false;
    type Maxima = Exact;
}

impl Block for Whole {
    const HAS_PRODUCT: bool = true;
    const HAS_O: bool = true;
    const IS_WHOLE: bool = true;
    type Maxima = Lazy;
}

/// What a warpgroup holds of its rows from step to step. No product is under way between steps: the assembler would wait for
/// each one.
pub struct Rows<const OT: usize, const NT: usize> {
    /// m and l.
    pub softmax: Softmax<1>,
    /// O.
    pub o: [Accumulator; OT],
    /// S, then P.
    s: [Accumulator; NT],
    /// P, rounded.
    p: [Operand; NT],
    /// Whether V of the block is left out of `O += P V`, since it was added with guards.
    leave_out: bool,
    /// Whether `O += P V` of the last block is left to issue: not behind blocks that a boolean mask hides.
    has_product: bool,
}

impl<const OT: usize, const NT: usize> Rows<OT, NT>
where
    [Accumulator; OT]: Product,
    [Accumulator; NT]: Product,
{
    /// Line 5: before the first block.
    #[inline(always)]
    pub fn new(scale: SoftmaxScale) -> Self {
        Rows {
            softmax: Softmax::new(scale),
            o: [Accumulator::ZERO; OT],
            s: [Accumulator::ZERO; NT],
            p: [Operand::ZERO; NT],
            leave_out: false,
            has_product: false,
        }
    }

    /// Lines 8 to 10 for the blocks of all runs, from the one before `j` down. Gives the first of them.
    ///
    /// # Safety
    /// The conditions of [`Consumer::pass`].
    #[inline(always)]
    pub unsafe fn walk<K: Kernel, const S: u32>(
        &mut self,
        consumer: &mut Consumer<K, OT, NT, S>,
        tile: &Tile<K>,
        mut runs: Runs<Keys<K>>,
        mut j: u32,
    ) -> u32 {
        // SAFETY: the caller's promise.
        unsafe {
            loop {
                while j > runs.edge() {
                    j -= 1;
                    if tile.is_hidden(j) {
                        self.pass(consumer);
                    } else if self.has_product::<K>() {
                        self.step::<Edge, _, _>(consumer, tile, j, || ());
                    } else {
                        self.step::<Resumed, _, _>(consumer, tile, j, || ());
                    }
                }
                while j > runs.whole() {
                    j -= 1;
                    self.step::<Whole, _, _>(consumer, tile, j, || ());
                }
                if !runs.has_other_edge(j) {
                    return j;
                }
            }
        }
    }

    /// Lines 8 to 10 for block `j`, where line 10 is late by a block: its product runs on the tensor cores during the softmax of the
    /// next block.
    ///
    /// `during_scores` is called while the tensor cores compute the scores.
    ///
    /// # Safety
    /// The conditions of [`Consumer::pass`].
    #[inline(always)]
    pub unsafe fn step<B: Block, K: Kernel, const S: u32>(
        &mut self,
        consumer: &mut Consumer<K, OT, NT, S>,
        tile: &Tile<K>,
        j: u32,
        during_scores: impl FnOnce(),
    ) {
        let is_edge = !B::IS_WHOLE && tile.is_edge(j);
        // SAFETY: the caller's promise.
        unsafe {
            // 8. S = Q K^T; 10. O += P V of the block before
            if B::HAS_PRODUCT {
                consumer.issue_step(&mut self.s, &mut self.o, &self.p, self.leave_out);
            } else {
                consumer.issue_scores(&mut self.s);
            }
            during_scores();
            if !K::CHUNKS && !B::IS_WHOLE {
                self.leave_out = has_non_finite(consumer, is_edge);
            }
            consumer.wait_scores(&mut self.s, B::HAS_PRODUCT);
            tile.apply(&mut self.s, j);

            // 9. P = exp(S - m)
            let (softmax, s) = (&mut self.softmax, &mut self.s);
            let factors = B::Maxima::probabilities(softmax, s, consumer, tile, j, is_edge);
            consumer.note(consumer.block, Event::Softmax);
            if !B::IS_WHOLE {
                consumer.release_k();
            }

            // 10. O = diag(exp(m_before - m)) O
            if B::HAS_PRODUCT {
                consumer.settle(&mut self.o);
            }
            if let (true, Some(factors)) = (B::HAS_O, factors) {
                if B::IS_WHOLE {
                    cold_path();
                }
                scale_rows(&mut self.o, factors);
            }
            if B::IS_WHOLE {
                // K serves to compute the scores again until then.
                consumer.release_k();
            }
            [self.p] = to_operands::<K::Element, 1, NT>([self.s]);
            consumer.note(consumer.block, Event::P);
            self.has_product = true;

            if B::IS_WHOLE {
                // Opaque with chunks: else the compiler copies the step, for the first one, which may leave V out. That spills 600
                // bytes at D = 384, 1,700 at 512.
                self.leave_out = K::CHUNKS && opaque(0) > 0;
                return;
            }
            if K::CHUNKS {
                self.leave_out = has_non_finite(consumer, is_edge);
            }
            if self.leave_out {
                consumer.add_guarded(&mut self.o, &mut self.p, tile.keys(j, true));
                // One lane releases V, after all have read it.
                barrier::warp();
            }
        }
    }

    /// A block that a boolean mask hides.
    ///
    /// # Safety
    /// The conditions of [`Consumer::pass`].
    #[inline(always)]
    pub unsafe fn pass<K: Kernel, const S: u32>(&mut self, consumer: &mut Consumer<K, OT, NT, S>) {
        // SAFETY: the caller's promise.
        unsafe {
            self.finish(consumer);
            consumer.pass();
        }
    }

    /// Whether a step has `O += P V` of the block before to issue.
    #[inline(always)]
    pub fn has_product<K: Kernel>(&self) -> bool {
        !may_have_gaps::<K>() || self.has_product
    }

    /// Line 10 of the last block.
    ///
    /// # Safety
    /// The conditions of [`Consumer::pass`].
    #[inline(always)]
    pub unsafe fn finish<K: Kernel, const S: u32>(
        &mut self,
        consumer: &mut Consumer<K, OT, NT, S>,
    ) {
        if !self.has_product::<K>() {
            return;
        }
        // SAFETY: the caller's promise.
        unsafe { consumer.finish(consumer.block, &mut self.o, &self.p, self.leave_out) }
        consumer.block = consumer.block.next();
        self.has_product = false;
    }
}

/// Whether a block that `is_edge` has infinities or NaN in V, which some rows may not see: the warpgroup looks while the tensor
/// cores compute the scores or, of chunks, once V of the block before is released.
#[inline(always)]
unsafe fn has_non_finite<K: Kernel, const OT: usize, const NT: usize, const S: u32>(
    consumer: &Consumer<K, OT, NT, S>,
    is_edge: bool,
) -> bool
where
    [Accumulator; OT]: Product,
    [Accumulator; NT]: Product,
{
    // SAFETY: the caller's promise.
    !K::Mask::UNIFORM && is_edge && unsafe { consumer.has_non_finite(K::thread() % 128) }
}
