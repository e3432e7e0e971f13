//! A step of Algorithm 1: a warpgroup's rows and one block of keys.

use super::mask::mask;
use super::outer::Outer;
use super::softcap::cap;
use super::softmax::Softmax;
use crate::attention::forward::sm90::kernel::Kernel;
use crate::attention::forward::sm90::tile::Tile;
use crate::attention::options::score::Score;
use crate::layout::fp8::Fp8Memory;
use crate::ptx::{barrier, shared, switch};
use crate::tile::fp8::{self, Products};
use crate::tile::registers::opaque;
use crate::tile::{HalfAccumulator, Operand, Ring, wgmma};
use core::hint::cold_path;
use core::marker::PhantomData;

/// What a step has before it, and how much its rows see.
pub trait Block {
    /// Whether it is the first one.
    const IS_FIRST: bool;
    /// Whether every row sees the whole block.
    const IS_WHOLE: bool;
    /// Whether `O += P V` of the block before is left to issue, where products are late.
    const HAS_LATE: bool;
}

macro_rules! blocks {
    ($($(#[$doc:meta])* $name:ident = $first:literal $whole:literal $late:literal;)*) => {$(
        $(#[$doc])*
        pub struct $name;

        impl Block for $name {
            const IS_FIRST: bool = $first;
            const IS_WHOLE: bool = $whole;
            const HAS_LATE: bool = $late;
        }
    )*};
}

blocks! {
    /// The first block, at the edge.
    First = true false false;
    /// A block at the edge.
    Edge = false false false;
    /// The first whole block behind others.
    Start = false true false;
    /// A whole block behind another.
    Whole = false true true;
}

/// A warpgroup's way through the stages, and Q.
pub struct Consumer<K, const QT: usize, const QR: u32, const S: u32> {
    pub memory: Fp8Memory,
    /// Where Q of its tile lies.
    pub slot: u32,
    /// Q, if it stays in registers, where `QR` is 1.
    pub q: [Operand; QT],
    /// The block of keys whose scores are in work.
    pub block: Ring<S>,
    pub kernel: PhantomData<K>,
}

/// What a warpgroup holds of its rows from step to step. No product is under way between steps: the assembler would wait for
/// each one.
pub struct Rows<U, const OT: usize, const NT: usize, const PT: usize> {
    /// m and l.
    pub softmax: Softmax,
    /// O, but for the scale and the mean of V.
    pub o: [HalfAccumulator; OT],
    /// What is summed outside of `o`.
    pub outer: U,
    s: [HalfAccumulator; NT],
    p: [Operand; PT],
}

impl<U: Outer<OT>, const OT: usize, const NT: usize, const PT: usize> Rows<U, OT, NT, PT>
where
    [HalfAccumulator; NT]: Products,
    [HalfAccumulator; OT]: Products,
{
    /// Whether `P V` of a whole block runs during the softmax of the next one: at 256, where two warpgroups do not fill the tensor cores
    /// otherwise.
    pub const IS_LATE: bool = OT > 8;

    /// Whether `P V` of a block is issued before the scores of the next one, so that a warpgroup waits once for both: 3 to 10 % at 128.
    pub const IS_JOINED: bool = !Self::IS_LATE;

    /// Whether a part of the exponentials is a polynomial: where they take twice as long as products. -1 % at 128.
    const HAS_POLYNOMIALS: bool = OT <= 4;

    /// Whether references rise because of sums by a vote of its own, while products are under way: 6 % at 128, full, -3 % at 64.
    const RISES_BEFORE: bool = OT > 4;

    /// Line 5: before the first block.
    #[inline(always)]
    pub fn new(softmax: Softmax) -> Self {
        Rows {
            softmax,
            o: [HalfAccumulator([0; 4]); OT],
            outer: U::ZERO,
            s: [HalfAccumulator([0; 4]); NT],
            p: [Operand::ZERO; PT],
        }
    }

    /// Lines 8 to 10 for block `j`; line 10 may be that of the block before, which is [joined](Self::IS_JOINED) or
    /// [late](Self::IS_LATE).
    ///
    /// # Safety
    /// All lanes of the warpgroup make the same calls, in the order of the blocks; the barriers are initialised, and the producer
    /// loads what they wait for.
    #[inline(always)]
    pub unsafe fn step<B: Block, K: Kernel, const QT: usize, const QR: u32, const S: u32>(
        &mut self,
        consumer: &mut Consumer<K, QT, QR, S>,
        tile: &Tile<K>,
        j: u32,
    ) {
        let block = consumer.block;
        let before = Ring(block.0.wrapping_sub(1));
        let is_late = Self::IS_LATE && B::IS_WHOLE;
        let has_late = Self::IS_LATE && B::HAS_LATE;
        let joins = Self::IS_JOINED && !B::IS_FIRST;
        // SAFETY: the caller's promise.
        unsafe {
            // 8. S = Q K^T; 10. O += P V of the block before
            if joins {
                consumer.issue_product(before, &mut self.o, &self.p);
            }
            consumer.issue_scores(&mut self.s);
            let scale = shared::load_f32(consumer.memory.key_scale(block.stage()));
            let mut factors = self.softmax.factors(scale);
            // While products are under way.
            let rises = match B::IS_FIRST || !Self::RISES_BEFORE {
                true => None,
                false => self.softmax.rise(),
            };
            if has_late {
                consumer.issue_product(before, &mut self.o, &self.p);
                wgmma::wait::<1>();
            } else if joins {
                consumer.settle(before, &mut self.o);
            } else {
                wgmma::wait::<0>();
            }
            fp8::pin(&mut self.s);
            if !K::Score::SCALED && switch::softcap() != 0 {
                factors = cap(&mut self.s, factors, tile.params().options.softcap);
            }

            // 9. P = exp(S - m); 10. O = diag(exp(m_before - m)) O
            if !B::IS_WHOLE {
                mask(&mut self.s, tile.keys(j, true));
            }
            let (softmax, s) = (&mut self.softmax, &self.s);
            let how = [Self::HAS_POLYNOMIALS, !Self::RISES_BEFORE];
            let (p, changes) = match B::IS_WHOLE {
                true => softmax.take::<false, NT, PT>(s, factors, how),
                false => softmax.take::<true, NT, PT>(s, factors, how),
            };
            if has_late {
                consumer.settle(before, &mut self.o);
                // Its registers were read until here.
                fp8::pin_operands(&mut self.p);
            }
            if !B::IS_FIRST {
                self.scale_o(rises);
                self.scale_o(changes);
            }
            self.p = p;

            // 10. O += P V
            if !Self::IS_JOINED && !is_late {
                consumer.issue_product(block, &mut self.o, &self.p);
                consumer.settle(block, &mut self.o);
            }
            consumer.block = block.next();
        }
    }

    /// Multiplies the rows of O, if their maxima changed.
    #[inline(always)]
    fn scale_o(&mut self, factors: Option<[f32; 2]>) {
        if let Some(factors) = factors {
            cold_path();
            for tile in &mut self.o {
                tile.scale_rows(factors);
            }
            self.outer.scale(factors);
        }
    }

    /// Adds O to its outer sums, once for so many keys, behind the step of block `j`.
    #[inline(always)]
    pub fn sum_outside<K: Kernel>(&mut self, j: u32) {
        if U::KEYS > 0 && j.is_multiple_of(U::KEYS / K::BC) {
            self.outer.take(&mut self.o);
        }
    }

    /// Line 10 of the last block, or of the last of several whole ones, where it is left.
    ///
    /// # Safety
    /// The conditions of [`step`](Self::step).
    #[inline(always)]
    pub unsafe fn finish<K: Kernel, const QT: usize, const QR: u32, const S: u32>(
        &mut self,
        consumer: &mut Consumer<K, QT, QR, S>,
    ) {
        let last = Ring(consumer.block.0.wrapping_sub(1));
        // SAFETY: the caller's promise.
        unsafe {
            consumer.issue_product(last, &mut self.o, &self.p);
            consumer.settle(last, &mut self.o);
        }
    }
}

/// The functions share their conditions: those of [`Rows::step`].
impl<K: Kernel, const QT: usize, const QR: u32, const S: u32> Consumer<K, QT, QR, S> {
    /// Passes a block by that the warpgroup does not see.
    ///
    /// # Safety
    /// The conditions of all functions here.
    #[inline(always)]
    pub unsafe fn pass(&mut self) {
        let full = self.memory.full(self.block.stage());
        // To release a stage without a wait could count in the wrong phase.
        // SAFETY: the caller's promise.
        unsafe {
            self.block.wait(full);
            self.block.release(full);
        }
        self.block = self.block.next();
    }

    /// Line 8: `S = Q K^T`, issued as a group.
    #[inline(always)]
    unsafe fn issue_scores<const NT: usize>(&self, s: &mut [HalfAccumulator; NT])
    where
        [HalfAccumulator; NT]: Products,
    {
        let k = self.memory.k(self.block.stage());
        // SAFETY: the caller's promise.
        unsafe {
            self.block.wait(self.memory.full(self.block.stage()));
            wgmma::fence();
            let b = k.rows(0);
            for dt in 0..K::D as usize / 32 {
                let b = b.skip(k.to_columns(dt as u32));
                if QR > 0 {
                    s.operand_rows(self.q[dt], b, dt > 0);
                } else {
                    // Opaque: the compiler would hold each operand's word over the tile, 8 instructions.
                    let q = self.memory.q(opaque(self.slot));
                    s.rows(q.rows(0).skip(q.to_columns(dt as u32)), b, dt > 0);
                }
            }
            wgmma::commit();
        }
    }

    /// Line 10: `O += P V`, issued as a group.
    #[inline(always)]
    unsafe fn issue_product<const OT: usize, const PT: usize>(
        &self,
        block: Ring<S>,
        o: &mut [HalfAccumulator; OT],
        p: &[Operand; PT],
    ) where
        [HalfAccumulator; OT]: Products,
    {
        let v = self.memory.v(block.stage());
        // SAFETY: the caller's promise. V landed with K, whose scores are there.
        unsafe {
            fp8::pin(o);
            wgmma::fence();
            for pt in 0..PT {
                o.operand_rows(p[pt], v.rows(0).skip(v.to_columns(pt as u32)), true);
            }
            wgmma::commit();
        }
    }

    /// Waits for the product of a block, and gives its stage back.
    #[inline(always)]
    unsafe fn settle<const OT: usize>(&self, block: Ring<S>, o: &mut [HalfAccumulator; OT]) {
        // SAFETY: the caller's promise.
        unsafe {
            wgmma::wait::<0>();
            fp8::pin(o);
            // All lanes have read the block's scale.
            barrier::warp();
            block.release(self.memory.full(block.stage()));
        }
    }
}
