//! How a tensor compares with a reference: the parts that all checks share.

use crate::tensor::{Dtype, Element};
use half::{bf16, f16};
use ndarray::{Array1, ArrayView1};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rayon::prelude::*;
use std::collections::BTreeSet;
use std::fmt;

/// How one tensor compares with the reference.
#[derive(Clone, Copy, Debug)]
pub struct Comparison {
    /// Difference of the worst element, the largest in terms of its tolerance; infinite where one side is no number of the
    /// kind of the other.
    pub max_abs_err: f64,
    /// Difference that this element may have.
    pub tolerance: f64,
    /// Index `[batch, head, row, element]` of the worst element; the last is 0 for lse.
    pub worst: [usize; 4],
    /// The worst element.
    pub found: f64,
    /// The reference's element in its place.
    pub expected: f64,
}

impl Comparison {
    /// Whether the worst element's difference is within its tolerance, a finite one.
    pub fn passed(&self) -> bool {
        self.max_abs_err <= self.tolerance && self.tolerance.is_finite()
    }

    /// How much of its tolerance the worst element takes.
    pub(crate) fn share(&self) -> f64 {
        match self.max_abs_err {
            0.0 => 0.0,
            error => error / self.tolerance,
        }
    }

    /// The comparison with the larger measure; `self` where they are equal.
    pub(crate) fn worse(self, other: Self, measure: impl Fn(&Self) -> f64) -> Self {
        if measure(&other) > measure(&self) {
            other
        } else {
            self
        }
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(
            f,
            "error {:.3e}, tolerance {:.3e}, worst at {:?}: {} for {}",
            self.max_abs_err, self.tolerance, self.worst, self.found, self.expected
        )
    }
}

/// A row of a tensor as the reference has it, and what its tolerance is made of.
#[derive(Clone, Debug)]
pub(crate) struct ExpectedRow {
    /// `(batch * heads + head) * seqlen + row`.
    number: usize,
    elements: Array1<f64>,
    /// `max|low - ref|`.
    low: f64,
    /// `max|(ref + 0.3 - 0.3 in low precision) - ref|`.
    rounding: f64,
    /// The error that the rounding of sums may add.
    sums: f64,
    /// The most that each element may be off, by the sizes of what it is a sum of.
    bounds: Array1<f64>,
}

impl ExpectedRow {
    /// Row `number`, in an element type whose plain algorithm finds `low` before it rounds it.
    pub fn new<T: Element>(
        number: usize,
        elements: Array1<f64>,
        low: ArrayView1<f64>,
        sums: f64,
        bounds: Array1<f64>,
    ) -> Self {
        let through_low = |x: f64| round::<T>(round::<T>(x + 0.3) - 0.3);
        let rounding = |x: f64| half_unit(T::DTYPE, x).max((through_low(x) - x).abs());
        let off = |low: Array1<f64>| max_finite((low - &elements).mapv_into(f64::abs));
        ExpectedRow {
            number,
            low: off(low.to_owned()).max(off(low.mapv(round::<T>))),
            rounding: max_finite(elements.mapv(rounding)),
            // Rows that are not finite need no allowance.
            sums: if sums.is_finite() { sums } else { 0.0 },
            bounds: bounds.mapv_into(|bound| if bound.is_finite() { bound } else { 0.0 }),
            elements,
        }
    }

    /// `(batch * heads + head) * seqlen + row`.
    pub fn number(&self) -> usize {
        self.number
    }

    /// The worst element of a tensor's row `[batch, head, row]`, none of which may be off by more than `most`.
    fn worst<T: Element>(&self, [b, h, i]: [usize; 3], tensor: &[T], most: f64) -> Comparison {
        let in_range = |x: f64| match round::<T>(x) {
            rounded if rounded.is_finite() => x,
            // Numbers beyond the range of the type round to infinity.
            rounded => rounded,
        };
        let dim = self.elements.len();
        let element = |d: usize| {
            let found = f64::from(tensor[self.number * dim + d].to_f32());
            Comparison {
                max_abs_err: difference(found, in_range(self.elements[d])),
                tolerance: most.min(self.bounds[d]),
                worst: [b, h, i, d],
                found,
                expected: self.elements[d],
            }
        };
        let worst = (0..dim).map(element);
        let worst = worst.reduce(|a, b| a.worse(b, Comparison::share));
        worst.expect("dim > 0")
    }
}

/// Rows of a `[batch, heads, seqlen, dim]` tensor as the reference has them.
#[derive(Clone, Debug)]
pub(crate) struct ExpectedRows {
    pub heads: usize,
    pub seqlen: usize,
    pub rows: Vec<ExpectedRow>,
}

impl ExpectedRows {
    /// The worst element of the rows of a tensor, whose error may be `factor` times the largest of the plain algorithm, and no
    /// more than the element's own bound.
    ///
    /// # Panics
    /// If there are no rows.
    pub fn compare<T: Element>(&self, tensor: &[T], factor: f64) -> Comparison {
        let largest =
            |part: fn(&ExpectedRow) -> f64| self.rows.iter().map(part).fold(0.0, f64::max);
        let most = factor * largest(|row| row.low)
            + 2.0 * largest(|row| row.rounding)
            + largest(|row| row.sums);
        let worst = |row: &ExpectedRow| row.worst(self.index(row), tensor, most);
        let worse = |a: Comparison, b| a.worse(b, Comparison::share);
        let worst = self.rows.par_iter().map(worst).reduce_with(worse);
        worst.expect("rows to compare")
    }

    /// `[batch, head, row]` of one of the rows.
    pub fn index(&self, row: &ExpectedRow) -> [usize; 3] {
        let (head, i) = (row.number / self.seqlen, row.number % self.seqlen);
        [head / self.heads, head % self.heads, i]
    }

    /// Memory that the rows take.
    pub fn bytes(&self) -> usize {
        let row = |row: &ExpectedRow| size_of::<ExpectedRow>() + row.elements.len() * 16;
        self.rows.iter().map(row).sum()
    }
}

/// `|found - expected|` of two finite numbers. Of others 0 if they are alike, and infinity if not. NaN may stand in the place of an
/// infinity, which is NaN after a product with a number that vanished.
pub(crate) fn difference(found: f64, expected: f64) -> f64 {
    if found.is_finite() && expected.is_finite() {
        (found - expected).abs()
    } else if found == expected || found.is_nan() && !expected.is_finite() {
        0.0
    } else {
        f64::INFINITY
    }
}

/// Numbers of `count` of the rows of `heads` heads of `seqlen` rows, or of all if there are no more, ascending, as
/// [`sample_rows`](crate::check::sample_rows) says.
pub(crate) fn sample(heads: usize, seqlen: usize, count: usize, seed: u64) -> Vec<usize> {
    let total = heads * seqlen;
    if count >= total {
        return (0..total).collect();
    }
    let mut rng = StdRng::seed_from_u64(seed);
    let mut rows = BTreeSet::from([0, total - 1]);
    while rows.len() < count {
        rows.insert(if rng.random() {
            rng.random_range(0..total)
        } else {
            let edge = rng.random_range(0..=seqlen / 64) * 64;
            let row = edge.saturating_sub(rng.random_range(0..2)).min(seqlen - 1);
            rng.random_range(0..heads) * seqlen + row
        });
    }
    rows.into_iter().collect()
}

/// The largest number, at least 0; infinities and NaN have no size to bound.
pub(crate) fn max_finite(numbers: Array1<f64>) -> f64 {
    let finite = numbers.into_iter().filter(|number| number.is_finite());
    finite.fold(0.0, f64::max)
}

/// Half a unit in the last place relative to numbers of any size, and by how much small ones may be off: kernels flush f32 below
/// its least normal number to 0.
pub(crate) fn rounding(dtype: Dtype) -> [f64; 2] {
    let flushed = f64::from(f32::MIN_POSITIVE);
    match dtype {
        Dtype::F16 => {
            let unit = f64::from(f16::EPSILON) / 2.0;
            [unit, unit * f64::from(f16::MIN_POSITIVE)]
        }
        Dtype::Bf16 => [f64::from(bf16::EPSILON) / 2.0, flushed],
        Dtype::F32 => [f64::from(f32::EPSILON) / 2.0, flushed],
    }
}

/// The nearest value of `T`.
pub(crate) fn round<T: Element>(x: f64) -> f64 {
    f64::from(T::from_f32(x as f32).to_f32())
}

/// Half a unit in the last place of `x`, a normal number of the type.
pub(crate) fn half_unit(dtype: Dtype, x: f64) -> f64 {
    let epsilon = match dtype {
        Dtype::F16 => f16::EPSILON.into(),
        Dtype::Bf16 => bf16::EPSILON.into(),
        Dtype::F32 => f64::from(f32::EPSILON),
    };
    x.abs().log2().floor().exp2() * epsilon / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::array;

    /// Infinity, -infinity, NaN and numbers are four things, of which NaN may stand for the infinities.
    #[test]
    fn what_is_not_finite_is_one_of_three() {
        let kinds = [0.5, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
        for (i, found) in kinds.into_iter().enumerate() {
            for (j, expected) in kinds.into_iter().enumerate() {
                let alike = i == j || i == 3 && j > 0;
                let apart = if alike { 0.0 } else { f64::INFINITY };
                assert_eq!(difference(found, expected), apart, "{found} {expected}");
            }
        }
    }

    /// A number that rounds to infinity is infinity, of its own sign.
    #[test]
    fn numbers_beyond_the_type_are_infinite() {
        let beyond = array![70_000.0, -70_000.0];
        let bounds = array![1.0, 1.0];
        let row = ExpectedRow::new::<f16>(0, beyond.clone(), beyond.view(), 0.0, bounds);
        let error = |found: [f32; 2]| {
            let found = found.map(f16::from_f32);
            row.worst([0; 3], &found, 1.0).max_abs_err
        };
        let most = f32::INFINITY;
        assert_eq!(error([most, -most]), 0.0);
        assert_eq!(error([most, most]), f64::INFINITY);
        assert_eq!(error([65504.0, -most]), f64::INFINITY);
    }
}
