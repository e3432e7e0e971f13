//! Sums of products of FP8 with the few bits that Hopper's tensor cores keep, a [model](add_products) of them.
//!
//! DeepSeek-V3's technical report (arXiv 2412.19437, "Increasing Accumulation Precision" and "Higher FP8 GEMM Accumulation
//! Precision in Tensor Cores"): tensor cores align 32 products by the largest exponent, use the highest 14 bits of each and
//! truncate the others.

use super::tiles::Tile;

/// Bits of a product below the one of the largest exponent.
const FRACTION: i32 = 13;

/// `sums += left * right`. The products of a sum and its old value lose what lies 13 bits below the largest exponent among them.
pub(super) fn add_products<const DEPTH: usize>(
    sums: &mut [Tile<f32>],
    left: &[[f32; DEPTH]],
    right: &[[f32; 8]; DEPTH],
) {
    for (tile, left) in sums.iter_mut().zip(left.as_chunks::<8>().0) {
        for (sums, left) in tile.iter_mut().zip(left) {
            for (column, sum) in sums.iter_mut().enumerate() {
                let products = left.iter().zip(right).map(|(a, b)| a * b[column]);
                *sum = truncated_sum(*sum, products);
            }
        }
    }
}

/// A sum whose terms are truncated towards zero. All sums of what is left are exact in f64.
fn truncated_sum(sum: f32, products: impl Iterator<Item = f32> + Clone) -> f32 {
    let terms = std::iter::once(sum).chain(products).map(f64::from);
    let largest = terms.clone().fold(0.0, |most: f64, x| most.max(x.abs()));
    let plain: f64 = terms.clone().sum();
    if largest == 0.0 || !plain.is_finite() {
        return plain as f32;
    }
    let exponent = f64::from_bits(largest.to_bits() & 0x7ff << 52);
    let unit = exponent / f64::from(1 << FRACTION);
    let units: f64 = terms.map(|x| (x / unit).trunc()).sum();
    (units * unit) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_keep_13_bits_below_the_largest_exponent() {
        let unit = 2_f32.powi(-FRACTION);
        for (sum, products, expected) in [
            (1.5, [unit, 0.0], 1.5 + unit),
            (1.5, [0.99 * unit, 0.99 * unit], 1.5),
            (1.5, [-0.99 * unit, -1.01 * unit], 1.5 - unit),
            // A product of the largest exponent truncates the old sum.
            (unit, [4.0, -4.0], 0.0),
            (0.0, [0.0, -0.0], 0.0),
            (f32::INFINITY, [1.0, 1.0], f32::INFINITY),
        ] {
            assert_eq!(truncated_sum(sum, products.into_iter()), expected);
        }
        assert!(truncated_sum(f32::NAN, [1.0].into_iter()).is_nan());
    }
}
