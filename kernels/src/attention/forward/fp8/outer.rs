//! Sums in two levels: O of some blocks of keys is added to outer sums.
//!
//! The tensor cores cut sums of e4m3 towards zero: with each 32 keys O loses up to 2^-13 of its size. Values whose mean stays in them add up
//! to an O that grows with the keys, and so does the loss: 7 % at 4096 keys. O of 384 keys loses 0.4 %, however many follow (docs/fp8.md).

use crate::ptx::half;
use crate::tile::{Accumulator, HalfAccumulator};

/// Outer sums of a thread's part of O.
pub trait Outer<const OT: usize>: Copy {
    /// Keys between two sums of O; 0 if there is one level.
    const KEYS: u32;

    /// Whether q may be of 16 bits. Inputs that are e4m3 have two levels.
    const ROUNDS_Q: bool = Self::KEYS == 0;

    /// Outer sums of 0.
    const ZERO: Self;

    /// Takes in O, of which what f16 does not hold beside the sum is left.
    fn take(&mut self, o: &mut [HalfAccumulator; OT]);

    /// Multiplies the lane's two rows.
    fn scale(&mut self, factors: [f32; 2]);

    /// Tile `dt` of O with its outer sums.
    fn with(&self, o: HalfAccumulator, dt: usize) -> Accumulator;
}

/// One level: all of O is in its place.
#[derive(Clone, Copy)]
pub struct OneLevel;

impl<const OT: usize> Outer<OT> for OneLevel {
    const KEYS: u32 = 0;

    const ZERO: Self = OneLevel;

    #[inline(always)]
    fn take(&mut self, _: &mut [HalfAccumulator; OT]) {}

    #[inline(always)]
    fn scale(&mut self, _: [f32; 2]) {}

    #[inline(always)]
    fn with(&self, o: HalfAccumulator, _: usize) -> Accumulator {
        o.to_f32()
    }
}

/// Two levels, in f16 each: the inner one keeps what the outer one does not hold.
#[derive(Clone, Copy)]
pub struct TwoLevels<const OT: usize>([HalfAccumulator; OT]);

impl<const OT: usize> Outer<OT> for TwoLevels<OT> {
    const KEYS: u32 = 384;

    const ZERO: Self = TwoLevels([HalfAccumulator([0; 4]); OT]);

    /// The sum of two numbers and what rounding takes from it are exact (Dekker 1971), unless O is the larger one.
    #[inline(always)]
    fn take(&mut self, o: &mut [HalfAccumulator; OT]) {
        for dt in 0..OT {
            for i in 0..4 {
                let (outer, o) = (&mut self.0[dt].0[i], &mut o[dt].0[i]);
                let sum = half::add(*outer, *o);
                *o = half::sub(*o, half::sub(sum, *outer));
                *outer = sum;
            }
        }
    }

    #[inline(always)]
    fn scale(&mut self, factors: [f32; 2]) {
        for tile in &mut self.0 {
            tile.scale_rows(factors);
        }
    }

    #[inline(always)]
    fn with(&self, o: HalfAccumulator, dt: usize) -> Accumulator {
        let [mut sums, outer] = [o.to_f32(), self.0[dt].to_f32()];
        for i in 0..8 {
            sums.0[i] += outer.0[i];
        }
        sums
    }
}
