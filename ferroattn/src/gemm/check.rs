//! Compares C with the product in `f64`, element by element.
//!
//! An element may differ from the exact sum by the rounding of the result to its type, and by the loss
//! of adding up `k` products in the accumulator's precision. Tensor cores add 16 products at a time to
//! the accumulator and cut all of them off some bits below the largest. With `P` the largest partial
//! sum or product on the way, an f32 accumulator may lose `2^-21 P` a step, which allows each product
//! to be cut off. An f16 accumulator loses up to `2^-11 P` a step by rounding, to either side: over
//! many steps the losses grow with the square root of their number, and four times this is allowed.
//!
//! NaN must be NaN, and an infinity the same infinity. Where `P` is beyond the accumulator's range, only
//! one thing is checked: a sum of infinities is not finite.

use super::{Accumulation, GemmProblem};
use crate::comparison::{self, Comparison};
use crate::tensor::{Dtype, Element};
use half::{bf16, f16};
use rayon::prelude::*;

/// The operands and the result of a product: row-major matrices in host memory.
#[derive(Clone, Copy, Debug)]
pub struct Product<'a, T> {
    /// Sizes.
    pub problem: GemmProblem,
    /// Type of the accumulator.
    pub accumulation: Accumulation,
    /// `[m, k]`.
    pub a: &'a [T],
    /// `[n, k]`.
    pub b: &'a [T],
    /// `[m, n]`.
    pub c: &'a [T],
}

/// `count` indices below `extent`, or all if there are no more, ascending: the first and the last, and
/// of the others about half anywhere and half at the edges of tiles.
pub fn sample(extent: usize, count: usize, seed: u64) -> Vec<usize> {
    comparison::sample(1, extent, count, seed)
}

/// Compares the elements of some rows and columns, on all threads of the current rayon pool. Gives the
/// element that is furthest from its exact value in terms of its own tolerance, at
/// `[0, 0, row, column]`; `None` if there are no elements.
///
/// # Panics
/// If a matrix has fewer elements than the problem says, or no such row or column.
pub fn check<T: Element>(
    product: &Product<T>,
    rows: &[usize],
    columns: &[usize],
) -> Option<Comparison> {
    let GemmProblem { n, k, .. } = product.problem;
    let widen = |matrix: &[T], row: usize| {
        let mut wide = vec![0.0_f32; k];
        T::to_f32_slice(&matrix[row * k..][..k], &mut wide);
        wide
    };
    let panel = |columns: &[usize]| {
        let mut panel = vec![[0.0_f32; COLUMNS]; k];
        for (place, &j) in columns.iter().enumerate() {
            let b = widen(product.b, j);
            b.iter()
                .zip(&mut panel)
                .for_each(|(b, row)| row[place] = *b);
        }
        panel
    };
    let panels: Vec<_> = columns.par_chunks(COLUMNS).map(panel).collect();
    let worse = |a: Comparison, b| a.worse(b, |c| c.max_abs_err / c.tolerance);
    let of_row = |&i: &usize| {
        let a = widen(product.a, i);
        let of_panel = |(columns, panel): (&[usize], &Vec<_>)| {
            let sums = sums(&a, panel);
            let of_column = |(&j, sum): (&usize, Sum)| {
                let found = f64::from(product.c[i * n + j].to_f32());
                compare::<T>(product.accumulation, k, sum, found, [0, 0, i, j])
            };
            columns.iter().zip(sums).map(of_column).reduce(worse)
        };
        let panels = columns.chunks(COLUMNS).zip(&panels);
        panels.filter_map(of_panel).reduce(worse)
    };
    rows.par_iter().filter_map(of_row).reduce_with(worse)
}

/// Largest finite value, distance from 1 to the next value, and least normal value of a type.
fn limits(dtype: Dtype) -> [f64; 3] {
    let [max, epsilon, normal] = [f32::MAX, f32::EPSILON, f32::MIN_POSITIVE].map(f64::from);
    match dtype {
        Dtype::F16 => [f16::MAX, f16::EPSILON, f16::MIN_POSITIVE].map(f64::from),
        Dtype::Bf16 => [max, bf16::EPSILON.into(), normal],
        Dtype::F32 => [max, epsilon, normal],
    }
}

/// Columns whose sums grow at once, as vectors of the host.
const COLUMNS: usize = 8;

/// An element of the exact product, and the largest finite partial sum or product on the way.
#[derive(Clone, Copy)]
struct Sum {
    exact: f64,
    largest: f64,
}

/// The products of a row of A with some columns of B: `b[p]` has their elements `p`.
fn sums(a: &[f32], b: &[[f32; COLUMNS]]) -> [Sum; COLUMNS] {
    let (mut exact, mut largest) = ([0.0_f64; COLUMNS], [0.0_f64; COLUMNS]);
    for (&a, b) in a.iter().zip(b) {
        for ((exact, largest), &b) in exact.iter_mut().zip(&mut largest).zip(b) {
            let product = f64::from(a) * f64::from(b);
            *exact += product;
            for size in [exact.abs(), product.abs()] {
                // No comparison holds of NaN.
                if size > *largest && size < f64::INFINITY {
                    *largest = size;
                }
            }
        }
    }
    std::array::from_fn(|column| Sum {
        exact: exact[column],
        largest: largest[column],
    })
}

fn compare<T: Element>(
    accumulation: Accumulation,
    k: usize,
    Sum { exact, largest }: Sum,
    found: f64,
    worst: [usize; 4],
) -> Comparison {
    let steps = (k / 16 + 1) as f64;
    let (lost, range) = match accumulation {
        Accumulation::Single => (steps * 2_f64.powi(-21), f64::from(f32::MAX)),
        Accumulation::Half => {
            let lost = steps.min(4.0 * steps.sqrt()) * 2_f64.powi(-11);
            (lost, f64::from(f16::MAX))
        }
    };
    let [max, epsilon, normal] = limits(T::DTYPE);
    let tolerance = exact.abs() * epsilon / 2.0 + normal * epsilon + lost * largest;
    let right = |right: bool| if right { 0.0 } else { f64::INFINITY };
    let max_abs_err = if exact.is_nan() {
        right(found.is_nan())
    } else if largest * (1.0 + epsilon) >= range {
        right(exact.is_finite() || !found.is_finite())
    } else if exact.is_infinite() {
        right(found == exact)
    } else if found.is_infinite() {
        // Rounded up from near the largest value, or from beyond.
        right(found.signum() == exact.signum() && exact.abs() + tolerance > max)
    } else if found.is_nan() {
        f64::INFINITY
    } else {
        (found - exact).abs()
    };
    Comparison {
        max_abs_err,
        tolerance: if tolerance.is_finite() {
            tolerance
        } else {
            1.0
        },
        worst,
        found,
        expected: exact,
    }
}

#[cfg(test)]
mod tests {
    use super::{Accumulation, GemmProblem, Product, check, sample};
    use crate::comparison::Comparison;
    use half::f16;
    use ndarray::{Array2, ArrayView2};
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};
    use rand_distr::StandardNormal;

    const P: GemmProblem = GemmProblem {
        m: 20,
        n: 30,
        k: 1000,
    };

    /// Checks a product after `spoil` changed its A, or its C.
    fn spoilt(spoil_a: impl Fn(&mut [f16]), spoil_c: impl Fn(&mut [f16])) -> Comparison {
        let mut rng = StdRng::seed_from_u64(1);
        let mut random = |len| -> Vec<f16> {
            (0..len)
                .map(|_| f16::from_f32(rng.sample(StandardNormal)))
                .collect()
        };
        let (mut a, b) = (random(P.m * P.k), random(P.n * P.k));
        let computed_with = a.clone();
        spoil_a(&mut a);
        let view = |data, rows| ArrayView2::from_shape([rows, P.k], data).expect("row-major");
        let mut c = Array2::from_elem([P.m, P.n], f16::NAN);
        super::super::cpu::gemm(view(&computed_with, P.m), view(&b, P.n), c.view_mut());
        let mut c = c.into_raw_vec_and_offset().0;
        spoil_c(&mut c);
        let product = Product {
            problem: P,
            accumulation: Accumulation::Single,
            a: &a,
            b: &b,
            c: &c,
        };
        let all = |extent| (0..extent).collect::<Vec<_>>();
        check(&product, &all(P.m), &all(P.n)).expect("elements")
    }

    #[test]
    fn a_right_product_passes() {
        let found = spoilt(|_| (), |_| ());
        assert!(found.passed() && found.max_abs_err > 0.0, "{found}");
    }

    #[test]
    fn one_wrong_element_fails_and_is_named() {
        for wrong in [f16::from_f32(3.0), f16::NAN, f16::INFINITY] {
            let found = spoilt(|_| (), |c| c[7 * P.n + 5] = wrong);
            assert!(!found.passed() && found.worst == [0, 0, 7, 5], "{found}");
        }
    }

    /// One product in a thousand.
    #[test]
    fn a_product_left_out_is_noticed() {
        let found = spoilt(|a| a[3 * P.k + 999] = f16::from_f32(3.0), |_| ());
        assert!(!found.passed() && found.worst[2] == 3, "{found}");
    }

    #[test]
    fn infinities_and_nan_must_be_there() {
        for special in [f16::INFINITY, f16::NAN] {
            let found = spoilt(|a| a[3 * P.k] = special, |_| ());
            assert!(!found.passed() && found.worst[2] == 3, "{found}");
        }
    }

    #[test]
    fn samples_are_distinct_with_both_ends() {
        assert_eq!(sample(3, 5, 0), [0, 1, 2]);
        let indices = sample(1000, 50, 7);
        assert_eq!((indices.len(), indices[0], indices[49]), (50, 0, 999));
        assert!(indices.is_sorted_by(|a, b| a < b));
    }
}
