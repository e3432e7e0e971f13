//! Accumulators of products of 16x16 tiles: in f32, or in f16 at half the registers.

use super::{Accumulator, Element, F16, Operand};
use crate::layout::fragment;
use crate::layout::interval::Interval;
use crate::ptx::convert::f16;
use crate::ptx::{half, mma};

/// A 16x16 tile of sums of products of `E`.
pub trait Accumulate<E: Element>: Copy {
    /// All zeros.
    const ZERO: Self;
    /// Whether sums are f16, which overflows beyond 65504.
    const HALF: bool;

    /// `self += a * b`, where `b` is stored as a pair of B operands.
    ///
    /// # Safety
    /// Every lane of the warp must reach the same call.
    unsafe fn mma(&mut self, a: Operand, b: Operand);

    /// The tile rounded to `E`, as an A operand.
    fn to_operand(self) -> Operand;

    /// The tile in f32.
    fn widen(self) -> Accumulator;
}

impl<E: Element> Accumulate<E> for Accumulator {
    const ZERO: Self = Accumulator::ZERO;
    const HALF: bool = false;

    #[inline(always)]
    unsafe fn mma(&mut self, a: Operand, b: Operand) {
        // SAFETY: convergence is the caller's promise.
        unsafe { Accumulator::mma::<E>(self, a, b) }
    }

    #[inline(always)]
    fn to_operand(self) -> Operand {
        Accumulator::to_operand::<E>(self)
    }

    #[inline(always)]
    fn widen(self) -> Accumulator {
        self
    }
}

/// A 16x16 tile of f16: its two 16x8 halves are the registers of an A operand.
#[derive(Clone, Copy)]
pub struct HalfAccumulator(pub [u32; 4]);

impl Accumulate<F16> for HalfAccumulator {
    const ZERO: Self = HalfAccumulator([0; 4]);
    const HALF: bool = true;

    #[inline(always)]
    unsafe fn mma(&mut self, a: Operand, b: Operand) {
        let [c0, c1, c2, c3] = self.0;
        // SAFETY: convergence is the caller's promise.
        let ([c0, c1], [c2, c3]) = unsafe {
            (
                mma::f16_half([c0, c1], a.0, [b.0[0], b.0[1]]),
                mma::f16_half([c2, c3], a.0, [b.0[2], b.0[3]]),
            )
        };
        self.0 = [c0, c1, c2, c3];
    }

    #[inline(always)]
    fn to_operand(self) -> Operand {
        Operand(self.0)
    }

    #[inline(always)]
    fn widen(self) -> Accumulator {
        let [a, b, c, d] = self
            .0
            .map(|pair| [pair as u16, (pair >> 16) as u16].map(f16::widen));
        Accumulator([a[0], a[1], b[0], b[1], c[0], c[1], d[0], d[1]])
    }
}

impl HalfAccumulator {
    /// Multiplies row `g` by `factors[0]`, row `g + 8` by `factors[1]`: numbers of f16, in kernels of any type.
    #[inline(always)]
    pub fn scale_rows(&mut self, factors: [f32; 2]) {
        for i in 0..4 {
            let factor = factors[i % 2];
            self.0[i] = half::mul(self.0[i], half::pack(factor, factor));
        }
    }

    /// The numbers in f32, in kernels of any type.
    #[inline(always)]
    pub fn to_f32(self) -> Accumulator {
        let mut wide = Accumulator::ZERO;
        for i in 0..4 {
            [wide.0[2 * i], wide.0[2 * i + 1]] = half::widen(self.0[i]);
        }
        wide
    }
}
