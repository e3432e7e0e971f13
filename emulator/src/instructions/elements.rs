//! Elements of the tensor cores' operands, as f32, and their products. Here are those of 16 bits; [`fp8`](super::fp8) has those of 8.

/// A type of elements.
pub(super) trait Element: 'static {
    /// Bytes of an element.
    const BYTES: usize;
    /// The bits of the element of a number, among some of 16 bytes.
    #[inline(always)]
    fn bits(bytes: &[u8; 16], number: usize) -> u32 {
        match Self::BYTES {
            1 => u32::from(bytes[number]),
            _ => u32::from(u16::from_le_bytes([
                bytes[2 * number],
                bytes[2 * number + 1],
            ])),
        }
    }
    /// An element as f32.
    fn widen(bits: u32) -> f32;
    /// The sum and a product, which is exact unless it overflows, rounded to f32.
    fn add_product(sum: f32, a: f32, b: f32) -> f32;
}

/// IEEE's half precision, of 11 bits.
pub(super) struct F16;

/// An [`F16`] on a host that has a fused multiply-add: no product of f16 is rounded in f32, so the sums are equal.
pub(super) struct FusedF16;

/// The upper half of an f32.
pub(super) struct Bf16;

impl Element for F16 {
    const BYTES: usize = 2;

    #[inline(always)]
    fn widen(bits: u32) -> f32 {
        from_f16(bits)
    }

    #[inline(always)]
    fn add_product(sum: f32, a: f32, b: f32) -> f32 {
        sum + a * b
    }
}

impl Element for FusedF16 {
    const BYTES: usize = 2;

    #[inline(always)]
    fn widen(bits: u32) -> f32 {
        from_f16(bits)
    }

    #[inline(always)]
    fn add_product(sum: f32, a: f32, b: f32) -> f32 {
        a.mul_add(b, sum)
    }
}

impl Element for Bf16 {
    const BYTES: usize = 2;

    #[inline(always)]
    fn widen(bits: u32) -> f32 {
        from_bf16(bits)
    }

    #[inline(always)]
    fn add_product(sum: f32, a: f32, b: f32) -> f32 {
        sum + a * b
    }
}

/// An f16 as f32: its bits are shifted into place. A factor of 2^112 corrects the exponent, of
/// subnormals too; infinities and NaN get the largest exponent.
#[inline(always)]
pub(super) fn from_f16(bits: u32) -> f32 {
    let magnitude = (bits & 0x7fff) << 13;
    let scaled = f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23);
    let special = if bits & 0x7c00 == 0x7c00 {
        0x7f80_0000
    } else {
        0
    };
    f32::from_bits(scaled.to_bits() | special | (bits & 0x8000) << 16)
}

/// A bf16 as f32.
#[inline(always)]
pub(super) fn from_bf16(bits: u32) -> f32 {
    f32::from_bits(bits << 16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    #[test]
    fn every_f16_widens_exactly() {
        for bits in 0..=u16::MAX {
            let (found, expected) = (from_f16(u32::from(bits)), f16::from_bits(bits).to_f32());
            assert!(found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan());
        }
    }

    #[test]
    fn fused_products_of_f16_add_as_others() {
        // Zeros, subnormals, the least and largest normal ones, and some between, of both signs.
        let magnitudes = [0, 1, 0x3ff, 0x400, 0x1234, 0x3c01, 0x5a5a, 0x7bff, 0x7c00];
        let elements = magnitudes.map(|bits| [bits, bits | 0x8000]);
        let elements = elements.as_flattened().iter().map(|bits| from_f16(*bits));
        for sum in [0.0, -0.0, 1e-8, -1.0, 3e9, f32::MAX, f32::NEG_INFINITY] {
            for a in elements.clone() {
                for b in elements.clone() {
                    let apart = F16::add_product(sum, a, b);
                    let fused = FusedF16::add_product(sum, a, b);
                    assert!(apart.to_bits() == fused.to_bits() || apart.is_nan() && fused.is_nan());
                }
            }
        }
    }
}
