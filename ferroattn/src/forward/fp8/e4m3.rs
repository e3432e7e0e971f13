//! The numbers of e4m3: four bits of an exponent and three behind the point, no infinity.

/// The largest number.
const MOST: f32 = 448.0;

/// The number of e4m3 that is nearest, of two the even one; the largest beyond it. NaN stays.
pub fn nearest(x: f32) -> f32 {
    if x.is_nan() {
        return x;
    }
    let magnitude = x.abs().min(MOST);
    // Below 2^-6 all numbers lie as far apart as above it.
    let exponent = ((magnitude.to_bits() >> 23) as i32 - 127).max(-6);
    let step = f32::powi(2.0, exponent - 3);
    ((magnitude / step).round_ties_even() * step).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    /// All numbers that are not negative, ascending.
    fn numbers() -> Vec<f32> {
        let of = |bits: i32| match (bits >> 3, bits & 7) {
            (0, mantissa) => mantissa as f32 * f32::powi(2.0, -9),
            (exponent, mantissa) => (8 + mantissa) as f32 * f32::powi(2.0, exponent - 10),
        };
        (0..0x7f).map(of).collect()
    }

    #[test]
    fn numbers_stay_and_others_move_to_the_nearest() {
        let numbers = numbers();
        assert_eq!((numbers[1], numbers[0x7e]), (f32::powi(2.0, -9), 448.0));
        for (i, pair) in numbers.windows(2).enumerate() {
            let [low, high] = [pair[0], pair[1]];
            assert_eq!(nearest(low), low);
            assert_eq!(nearest(-high), -high);
            let middle = (low + high) / 2.0;
            let even = if i % 2 == 0 { low } else { high };
            assert_eq!(nearest(middle), even, "{middle}");
            assert_eq!(nearest(middle.next_down()), low);
            assert_eq!(nearest(-middle.next_up()), -high);
        }
    }

    #[test]
    fn what_is_beyond_becomes_the_largest() {
        for x in [448.5, 464.0, 465.0, 1e30, f32::INFINITY] {
            assert_eq!(nearest(x), 448.0);
            assert_eq!(nearest(-x), -448.0);
        }
        assert!(nearest(f32::NAN).is_nan());
    }
}
