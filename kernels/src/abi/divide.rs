//! Division by a number that is known before a launch.
//!
//! A GPU has no instruction that divides integers; a division by a run-time number takes some thirty,
//! and code for the number 0. The host prepares what turns it into a multiplication and a shift
//! (Granlund and Montgomery 1994, "Division by Invariant Integers using Multiplication").

#[cfg(target_arch = "nvptx64")]
use crate::tile::registers::opaque;

/// A number to divide by.
#[repr(C)]
#[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::NoUninit))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Divisor {
    /// The number itself.
    pub value: u32,
    multiplier: u32,
    shift: u32,
}

impl Divisor {
    /// Prepares division by `value`.
    ///
    /// ```
    /// # use kernels::abi::Divisor;
    /// assert_eq!(Divisor::new(7).divide(30), (4, 2));
    /// ```
    ///
    /// # Panics
    /// If `value` is 0.
    pub const fn new(value: u32) -> Self {
        assert!(value > 0, "division by 0");
        // With `l = ceil(log2(value))` and the multiplier `2^(31 + l) / value` rounded up, which has 32
        // bits, the quotient of a dividend below 2^31 is exact.
        let shift = 31 + (u32::BITS - (value - 1).leading_zeros());
        Divisor {
            value,
            multiplier: (1u64 << shift).div_ceil(value as u64) as u32,
            shift,
        }
    }

    /// A copy whose multiplier and shift are read one by one: read together, they leave it in local memory where a branch
    /// reads the number.
    #[cfg(target_arch = "nvptx64")]
    #[inline(always)]
    pub fn one_by_one(&self) -> Self {
        Divisor {
            multiplier: opaque(self.multiplier),
            ..*self
        }
    }

    /// Quotient and remainder of a dividend below 2^31.
    #[inline(always)]
    pub const fn divide(self, dividend: u32) -> (u32, u32) {
        let product = dividend as u64 * self.multiplier as u64;
        let quotient = (product >> self.shift) as u32;
        (
            quotient,
            dividend.wrapping_sub(quotient.wrapping_mul(self.value)),
        )
    }
}

impl Default for Divisor {
    fn default() -> Self {
        Divisor::new(1)
    }
}

#[cfg(test)]
mod tests {
    use super::Divisor;
    use proptest::prelude::*;

    const MAX: u32 = (1 << 31) - 1;

    proptest! {
        #[test]
        fn it_divides(dividend in 0..=MAX, value in 1..=u32::MAX) {
            for value in [value, value % 1000 + 1, 1 << (value % 32), (1 << (value % 32)) | 1] {
                let divisor = Divisor::new(value);
                for dividend in [dividend, dividend - dividend % value, MAX - dividend % 3] {
                    let expected = (dividend / value, dividend % value);
                    prop_assert_eq!(divisor.divide(dividend), expected);
                }
            }
        }

        /// Where rounding would show: just below and at multiples.
        #[test]
        fn multiples_are_exact(value in 1u32..1 << 20, quotient in 1u32..1 << 11) {
            let dividend = value * quotient;
            prop_assume!(dividend <= MAX);
            prop_assert_eq!(Divisor::new(value).divide(dividend), (quotient, 0));
            prop_assert_eq!(Divisor::new(value).divide(dividend - 1), (quotient - 1, value - 1));
        }
    }
}
