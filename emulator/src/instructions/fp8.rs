//! FP8: the elements of 8 bits of Hopper's tensor cores, e4m3 and e5m2, to f32 and from it.
//!
//! | format | exponent | fraction | largest | infinities | NaN |
//! |---|---|---|---|---|---|
//! | e4m3 | 4 bits, from -6 | 3 bits | 448 | none | 0x7f, 0xff |
//! | e5m2 | 5 bits, from -14 | 2 bits | 57344 | 0x7c, 0xfc | 0x7d to 0x7f, 0xfd to 0xff |

use super::elements::{Element, from_f16};

/// The NaN that conversions produce, of either format.
const NAN: u8 = 0x7f;

/// A format of 8 bits.
pub(super) trait Fp8: Element {
    /// Bits of the fraction.
    const FRACTION: i32;
    /// The exponent of the least normal number.
    const LEAST: i32;
    /// The largest finite number.
    const LARGEST: u32;

    /// An f32 rounded to nearest even; numbers too large become the largest finite one.
    #[inline(always)]
    fn round(x: f32) -> u8 {
        if x.is_nan() {
            return NAN;
        }
        // Beyond both formats.
        let magnitude = x.abs().min(131_072.0);
        let exponent = ((magnitude.to_bits() >> 23) as i32 - 127).max(Self::LEAST);
        // Units in the last place: the code counts them from that of the binade's start.
        let unit = f32::from_bits(((127 + Self::FRACTION - exponent) as u32) << 23);
        let units = (magnitude * unit).round_ties_even() as u32;
        let code = (((exponent - Self::LEAST) as u32) << Self::FRACTION) + units;
        code.min(Self::LARGEST) as u8 | (x.to_bits() >> 24) as u8 & 0x80
    }
}

/// Four bits of exponent and three of fraction.
pub(super) struct E4m3;

/// Five bits of exponent and two of fraction: the upper half of an f16.
pub(super) struct E5m2;

impl Fp8 for E4m3 {
    const FRACTION: i32 = 3;
    const LEAST: i32 = -6;
    const LARGEST: u32 = 0x7e;
}

impl Fp8 for E5m2 {
    const FRACTION: i32 = 2;
    const LEAST: i32 = -14;
    const LARGEST: u32 = 0x7b;
}

impl Element for E4m3 {
    const BYTES: usize = 1;

    /// The bits, shifted into place; a factor of 2^120 corrects the exponent, of subnormals too.
    #[inline(always)]
    fn widen(bits: u32) -> f32 {
        let scaled = f32::from_bits((bits & 0x7f) << 20) * f32::from_bits((127 + 120) << 23);
        let nan = if bits & 0x7f == 0x7f { 0x7fc0_0000 } else { 0 };
        f32::from_bits(scaled.to_bits() | nan | (bits & 0x80) << 24)
    }

    #[inline(always)]
    fn add_product(sum: f32, a: f32, b: f32) -> f32 {
        sum + a * b
    }
}

impl Element for E5m2 {
    const BYTES: usize = 1;

    #[inline(always)]
    fn widen(bits: u32) -> f32 {
        from_f16(bits << 8)
    }

    #[inline(always)]
    fn add_product(sum: f32, a: f32, b: f32) -> f32 {
        sum + a * b
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of a code by the formats' definition.
    fn defined<E: Fp8>(code: u32) -> f32 {
        let (exponent, fraction) = (
            (code & 0x7f) >> E::FRACTION,
            (code & ((1 << E::FRACTION) - 1)) as f32 / (1 << E::FRACTION) as f32,
        );
        let magnitude = match exponent {
            0 => fraction * 2_f32.powi(E::LEAST),
            _ => (1.0 + fraction) * 2_f32.powi(exponent as i32 - 1 + E::LEAST),
        };
        if code & 0x80 == 0 {
            magnitude
        } else {
            -magnitude
        }
    }

    /// Every finite code, and all between it and the next.
    fn check<E: Fp8>() {
        let next = |x: f32| f32::from_bits(x.to_bits() + 1);
        let before = |x: f32| f32::from_bits(x.to_bits() - 1);
        for sign in [0, 0x80_u8] {
            let signed = |x: f32| if sign == 0 { x } else { -x };
            for code in 0..=E::LARGEST {
                let found = E::widen(code | u32::from(sign));
                let expected = defined::<E>(code | u32::from(sign));
                assert_eq!(found.to_bits(), expected.to_bits(), "{code:#x}");
                assert_eq!(E::round(found), code as u8 | sign, "{code:#x}");
                // The step after the largest one would be as long as that before it.
                let up = match code == E::LARGEST {
                    true => 2.0 * defined::<E>(code) - defined::<E>(code - 1),
                    false => defined::<E>(code + 1),
                };
                let half = (defined::<E>(code) + up) / 2.0;
                let above = (code + 1).min(E::LARGEST) as u8 | sign;
                let even = if code % 2 == 0 {
                    code as u8 | sign
                } else {
                    above
                };
                assert_eq!(
                    E::round(signed(before(half))),
                    code as u8 | sign,
                    "{code:#x}"
                );
                assert_eq!(E::round(signed(half)), even, "{code:#x}");
                assert_eq!(E::round(signed(next(half))), above, "{code:#x}");
            }
            for x in [1e6, f32::MAX, f32::INFINITY] {
                assert_eq!(E::round(signed(x)), E::LARGEST as u8 | sign);
            }
            for x in [0.0, f32::from_bits(1), f32::MIN_POSITIVE, 1e-9] {
                assert_eq!(E::round(signed(x)), sign);
            }
            assert_eq!(E::round(signed(f32::NAN)), NAN);
            assert!(E::widen(u32::from(NAN | sign)).is_nan());
        }
    }

    #[test]
    fn every_e4m3_widens_exactly_and_its_neighbours_round_to_it() {
        assert_eq!(
            (defined::<E4m3>(E4m3::LARGEST), defined::<E4m3>(1)),
            (448.0, 1.0 / 512.0)
        );
        check::<E4m3>();
    }

    #[test]
    fn every_e5m2_widens_exactly_and_its_neighbours_round_to_it() {
        assert_eq!(
            (defined::<E5m2>(E5m2::LARGEST), defined::<E5m2>(1)),
            (57344.0, 1.0 / 65536.0)
        );
        check::<E5m2>();
        assert_eq!(
            [0x7c, 0xfc].map(E5m2::widen),
            [f32::INFINITY, f32::NEG_INFINITY]
        );
        assert!((0x7d..0x80).all(|code| E5m2::widen(code).is_nan()));
    }
}
