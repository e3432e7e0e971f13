//! 16x16 tiles in the registers of a warp.

use super::Element;
use crate::layout::fragment;
use crate::layout::interval::Interval;
use crate::ptx::math;

/// A 16x16 tile of f32: [`fragment::accumulator`] says which element a lane's `[i]` is.
///
/// Index it with constants only, in loops that unroll. An index that is known only at run time would put
/// the array into local memory.
#[derive(Clone, Copy)]
pub struct Accumulator(pub [f32; 8]);

impl Accumulator {
    /// All zeros.
    pub const ZERO: Self = Accumulator([0.0; 8]);

    /// `self += a * b`, where `b` is stored as a pair of B operands.
    ///
    /// # Safety
    /// Every lane of the warp must reach the same call.
    #[inline(always)]
    pub unsafe fn mma<E: Element>(&mut self, a: Operand, b: Operand) {
        let [c0, c1, c2, c3, c4, c5, c6, c7] = self.0;
        // SAFETY: convergence is the caller's promise.
        let ([c0, c1, c2, c3], [c4, c5, c6, c7]) = unsafe {
            (
                E::mma([c0, c1, c2, c3], a.0, [b.0[0], b.0[1]]),
                E::mma([c4, c5, c6, c7], a.0, [b.0[2], b.0[3]]),
            )
        };
        self.0 = [c0, c1, c2, c3, c4, c5, c6, c7];
    }

    /// Adds another tile.
    #[inline(always)]
    pub fn add(&mut self, other: Accumulator) {
        for i in 0..8 {
            self.0[i] += other.0[i];
        }
    }

    /// Adds another tile times a factor.
    #[inline(always)]
    pub fn add_times(&mut self, other: Accumulator, factor: f32) {
        for i in 0..8 {
            self.0[i] = math::fma(other.0[i], factor, self.0[i]);
        }
    }

    /// Every element negated.
    #[inline(always)]
    pub fn negate(self) -> Self {
        Accumulator(self.0.map(|x| -x))
    }

    /// The tile rounded to `E`, as an A operand: its layout needs no exchange between lanes.
    #[inline(always)]
    pub fn to_operand<E: Element>(self) -> Operand {
        let [a, b, c, d, e, f, g, h] = self.0;
        Operand([E::pack(a, b), E::pack(c, d), E::pack(e, f), E::pack(g, h)])
    }

    /// The lane's elements of row `g` (`r = 0`) or `g + 8` (`r = 1`).
    #[inline(always)]
    pub fn row(&self, r: usize) -> [f32; 4] {
        [
            self.0[2 * r],
            self.0[2 * r + 1],
            self.0[2 * r + 4],
            self.0[2 * r + 5],
        ]
    }

    /// Replaces the lane's elements of row `g + 8 r`.
    #[inline(always)]
    pub fn set_row(&mut self, r: usize, row: [f32; 4]) {
        [
            self.0[2 * r],
            self.0[2 * r + 1],
            self.0[2 * r + 4],
            self.0[2 * r + 5],
        ] = row;
    }

    /// Multiplies row `g` by `factors[0]` and row `g + 8` by `factors[1]`.
    #[inline(always)]
    pub fn scale_rows(&mut self, factors: [f32; 2]) {
        for i in 0..8 {
            self.0[i] *= factors[i / 2 % 2];
        }
    }

    /// Puts NaN where `count` is not 0.
    #[inline(always)]
    pub fn spoil(&mut self, count: Accumulator) {
        for i in 0..8 {
            if count.0[i] != 0.0 {
                self.0[i] = f32::NAN;
            }
        }
    }

    /// Puts 0 into the columns that `columns[0]` lacks in row `g`, and `columns[1]` in row `g + 8`.
    #[inline(always)]
    pub fn zero_columns(&mut self, lane: u32, columns: [impl Interval; 2]) {
        let columns = columns.map(|c| c.counted_from(fragment::accumulator(lane, 0).1 as i32));
        for i in 0..8 {
            if !columns[i / 2 % 2].contains(fragment::accumulator(0, i as u32).1 as i32) {
                self.0[i] = 0.0;
            }
        }
    }

    /// Multiplies each element by the operand's at its place.
    #[inline(always)]
    pub fn multiply_by<E: Element>(&mut self, operand: Operand) {
        for i in 0..8 {
            self.0[i] *= E::widen((operand.0[i / 2] >> (16 * (i % 2))) as u16);
        }
    }

    /// Puts -inf into the columns that `keys[0]` lacks in row `g`, and `keys[1]` in row `g + 8`.
    #[inline(always)]
    pub fn mask_columns(&mut self, lane: u32, keys: [impl Interval; 2]) {
        // A lane's columns are the columns of lane 0 plus the lane's first: to compare constants with shifted
        // intervals saves the registers that the columns would take.
        let keys = keys.map(|keys| keys.counted_from(fragment::accumulator(lane, 0).1 as i32));
        for i in 0..8 {
            if !keys[i / 2 % 2].contains(fragment::accumulator(0, i as u32).1 as i32) {
                self.0[i] = f32::NEG_INFINITY;
            }
        }
    }
}

/// A 16x16 tile of 16-bit elements: an A operand, or a pair of B operands
/// ([`fragment::operand_a`], [`fragment::operand_b`]).
#[derive(Clone, Copy)]
pub struct Operand(pub [u32; 4]);

impl Operand {
    /// All zeros.
    pub const ZERO: Self = Operand([0; 4]);

    /// Every element negated.
    #[inline(always)]
    pub fn negate(self) -> Self {
        Operand(self.0.map(|pair| pair ^ 0x8000_8000))
    }

    /// An A operand: 1 in the columns of `keys[0]` in row `g` and of `keys[1]` in row `g + 8`, else 0.
    #[inline(always)]
    pub fn ones<E: Element>(lane: u32, keys: [impl Interval; 2]) -> Self {
        let one = E::one();
        let mut ones = [0; 4];
        for r in 0..4 {
            let column = fragment::operand_a(lane, r as u32).1 as i32;
            let keys = keys[r % 2];
            let lo = if keys.contains(column) { one } else { 0 };
            let hi = if keys.contains(column + 1) {
                one << 16
            } else {
                0
            };
            ones[r] = lo | hi;
        }
        Operand(ones)
    }

    /// The first of several, which then moves behind them: registers have no index.
    #[inline(always)]
    pub fn take_turn<const N: usize>(operands: &mut [Self; N]) -> Self {
        let first = operands[0];
        for i in 1..N {
            operands[i - 1] = operands[i];
        }
        operands[N - 1] = first;
        first
    }

    /// Non-zero if an element is infinite or NaN.
    #[inline(always)]
    pub fn non_finite<E: Element>(self) -> u32 {
        let [a, b, c, d] = self.non_finite_signs::<E>();
        a | b | c | d
    }

    /// The tile with zeros in the place of infinities and NaN, and a tile with ones there and zeros elsewhere.
    #[inline(always)]
    pub fn split_non_finite<E: Element>(self) -> (Self, Self) {
        let found = self.non_finite_signs::<E>().map(|signs| signs >> 15);
        let mut finite = self.0;
        for r in 0..4 {
            finite[r] &= !(found[r] * 0xffff);
        }
        let one = E::one();
        (Operand(finite), Operand(found.map(|f| f * one)))
    }

    /// The sign bit of every element that is infinite or NaN: adding one carries into it only from an exponent
    /// of all ones.
    #[inline(always)]
    fn non_finite_signs<E: Element>(self) -> [u32; 4] {
        let (exponents, lsbs) = (E::exponents(), E::exponent_lsbs());
        self.0.map(|r| ((r & exponents) + lsbs) & 0x8000_8000)
    }
}
