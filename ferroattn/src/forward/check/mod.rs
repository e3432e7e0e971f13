//! Compares o and lse with the [reference](crate::reference), row by row.
//!
//! **o** follows FlashAttention's own rule: its largest error may be twice the error of a plain
//! implementation in the element type, plus twice the error of rounding at the size of typical values:
//!
//! `max|o - ref| <= 2 max|low - ref| + 2 max|(ref + 0.3 - 0.3 in low precision) - ref|`.
//!
//! Where few different values of o are exact in the element type (all rows of V are equal, say), both maxima may
//! be 0 by luck. So `low` also counts before its last rounding, and the second maximum is at least half a unit in
//! the last place of any `ref`.
//!
//! **Each element** has a bound of its own, too, and the smaller one holds: the rule's is of the worst row, and grows with
//! scores and values that have no part in the element. With `u` half a unit in the last place of the type, and `w = 2^-24`:
//!
//! - A score is off by `d`, the sum of its roundings in f32: in f16 and bf16 `dim` of a product no larger than `|scale| |q| |k|`
//!   (Cauchy-Schwarz), in f32 `3 w |scale| sqrt(sum of S^2)` of the sums `S` on the way of the dot product, at least five
//!   standard deviations; and `8 w` for the exponential. It changes its key's weight `p` by `p (e^d - 1)`, which moves o by as
//!   much of `|v - o|`.
//! - Where a score that counts may be off by more than 1/2, weights are not known, but o is a mean of values: it moves no
//!   further than to the value of one key that counts. Keys count whose weight may be `e^-40` of the largest.
//! - A score beyond f32 is the largest f32 on all devices, and not off.
//! - Weights in f16 and bf16 are rounded by `u`. All may be rounded to one side, which takes o off by `u |o|`, or each to its
//!   own, by `3 u sqrt(sum of (p v)^2)`: five standard deviations.
//! - The rounding of o takes `u |o|`, and sums in f32 some `w` of the sum of `p |v|` for each step.
//!
//! **lse** is `f32` throughout, so each row has a bound of its own: what all `d` together raise it by, `ln(sum of p e^d)`, and `w`
//! times the square root of the number of keys for the roundings of the row sum, which average out, `|lse|` for the result's own,
//! and 64 for the approximate exponential and logarithm.
//!
//! **Sums in f16** ([`Accumulation::Half`]) have `u = 2^-11`. First the query is scaled, in base 2,
//! and rounded, and each score is rounded after every 16 of its products. The check computes these
//! roundings and allows what they do to o and lse: they are the same in equal keys, so statistics do
//! not bound them. A processor may also round elsewhere, say after 8 products, or break a tie the
//! other way, so each rounding of a sum `S` may differ by `u |S|`. These errors are independent, and
//! a score's is `d = 3 u sqrt(sum of S^2)`: the most that 9 roundings can do, and at least five
//! standard deviations of more. As above, it changes the key's weight by `c`, moves o by `c (v - o)`
//! and lse by `c`. The moves of keys with equal sums add up; the moves of other keys are independent, so the
//! root of the sum of their squares counts. Last, products with V are rounded every 16 keys in sums
//! of up to 64: a slice of 16 is part of up to 4 sums, each of which may be off by `u |sum of p v|`.
//!
//! **Options** add to `d`: `4 w` of the capped score, of each bias and of their sum, and in f16 and bf16 `2^-20` of the softcap,
//! as far as a GPU's instruction for the hyperbolic tangent is off. A sink is a key without a value, off by `4 w` of its logit.
//!
//! **FP8** has [rounded](crate::Rounded) inputs, as the reference has then. Probabilities are rounded to e4m3, whose `u` is `2^-4`, those
//! below `2^-10` of the largest by `2^-14` of it. V has lost the mean `a` of its column: that moves o by `3 u sqrt(sum of (p (v - a))^2)`,
//! where keys with equal weights count as one. Scores are sums in f16, rounded after 32 products, and their exponentials pairs of
//! f16: `d` is `3 2^-11 |scale| sqrt(sum of S^2)`, and `2^-11` of the score's distance from the maximum, and `2^-9`. The tensor
//! cores may cut `2^-13` of O for 32 keys. Of inputs in f32, which the CPU alone has, no other number is rounded: bounds are those of f32.
//!
//! Where the reference is not finite, the result must not be finite either, and the other way round.
//! An lse of -inf must be exactly that.

#[cfg(test)]
mod tests;

use super::Problem;
use super::fp8::Rounded;
use super::reference::{Query, Reference};
pub use crate::comparison::Comparison;
use crate::comparison::{ExpectedRow, ExpectedRows, difference, max_finite, sample};
use crate::gemm::Accumulation;
use crate::options::{Head, HostOptions};
use crate::tensor::{Dtype, Element};
use ndarray::{Array1, ArrayView4};
use rayon::prelude::*;
use std::fmt;

/// The inputs and results of a forward pass: row-major tensors in host memory.
#[derive(Clone, Copy, Debug)]
pub struct Forward<'a, T> {
    /// Sizes and options.
    pub problem: &'a Problem,
    /// Tensors of options.
    pub options: HostOptions<'a>,
    /// `[batch, heads, seqlen_q, dim]`.
    pub q: &'a [T],
    /// `[batch, kv_heads, seqlen_kv, dim]`, or a [cache](crate::Attention::cache_entries), or [pages](crate::Attention::pages).
    pub k: &'a [T],
    /// `[batch, kv_heads, seqlen_kv, dim_v]`, or a cache, or pages.
    pub v: &'a [T],
    /// `[batch, heads, seqlen_q, dim_v]`.
    pub o: &'a [T],
    /// `[batch, heads, seqlen_q]`.
    pub lse: &'a [f32],
    /// The type that products were summed in.
    pub acc: Accumulation,
}

/// How o and lse compare with the reference.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Report {
    /// Rows compared.
    pub rows: usize,
    /// All elements of o in these rows.
    pub o: Comparison,
    /// The lse of these rows; the tolerance belongs to the worst row.
    pub lse: Comparison,
}

impl Report {
    /// Whether both are within their tolerance.
    pub fn passed(&self) -> bool {
        self.o.passed() && self.lse.passed()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} rows: o {}; lse {}", self.rows, self.o, self.lse)
    }
}

/// The number of every row of a [valid](Problem::validate) problem, `(batch * heads + head) * seqlen_q + row`.
pub fn all_rows(problem: &Problem) -> Vec<usize> {
    (0..problem.batch * problem.heads * problem.seqlen_q).collect()
}

/// The numbers of `count` rows of a [valid](Problem::validate) problem (or all, if there are no more), ascending: the first and the last,
/// and of the others about one half anywhere and one half at the edges of tiles.
pub fn sample_rows(problem: &Problem, count: usize, seed: u64) -> Vec<usize> {
    sample(problem.batch * problem.heads, problem.seqlen_q, count, seed)
}

/// Compares the given rows, ascending [numbers](all_rows), on all threads of the current rayon
/// pool.
///
/// # Panics
/// If `rows` is empty or has a number that no row has, or if a tensor has another size than the problem says.
pub fn check<T: Element>(forward: &Forward<T>, rows: &[usize]) -> Report {
    Expected::new(forward, rows).compare(forward)
}

/// The o and lse of some rows by the reference, with their tolerances: found once, they serve every result of the same
/// inputs.
#[derive(Clone, Debug)]
pub struct Expected {
    o: ExpectedRows,
    lse: Vec<ExpectedLse>,
}

/// The lse of a row.
#[derive(Clone, Copy, Debug)]
struct ExpectedLse {
    lse: f64,
    tolerance: f64,
}

impl Expected {
    /// Reads what `forward` read, not its o and lse, on all threads of the current rayon pool. Rows are ascending
    /// [numbers](all_rows).
    ///
    /// # Panics
    /// If an input has another size than the problem says, or options are of another problem.
    pub fn new<T: Element>(forward: &Forward<T>, rows: &[usize]) -> Self {
        let Some(fp8) = forward.options.fp8() else {
            return Self::find(forward, rows, |reference, row| {
                of_row(forward, reference, row)
            });
        };
        let p = forward.problem;
        let inputs = [
            (forward.q, p.q_shape()),
            (forward.k, p.k_shape()),
            (forward.v, p.v_shape()),
        ];
        let [q, k, v] =
            inputs.map(|(tensor, shape)| ArrayView4::from_shape(shape, tensor).expect("its shape"));
        let rounded = Rounded::of_call(fp8, p, &forward.options, [q, k, v]);
        match T::DTYPE {
            // The CPU's alone.
            Dtype::F32 => Self::of_rounded_in_f32(p, forward.options, &rounded, rows),
            Dtype::F16 | Dtype::Bf16 => Self::of_rounded::<T>(p, forward.options, &rounded, rows),
        }
    }

    /// [`new`](Self::new) of a pass in [FP8](crate::Attention::fp8), whose inputs were rounded so and whose o is in `T`.
    ///
    /// # Panics
    /// If an input has another size than the problem says, or options are of another problem.
    pub fn of_rounded<T: Element>(
        problem: &Problem,
        options: HostOptions,
        rounded: &Rounded,
        rows: &[usize],
    ) -> Self {
        Self::find_rounded(
            problem,
            options,
            rounded,
            rows,
            |forward, reference, row| of_fp8_row::<T>(forward, reference, rounded, row),
        )
    }

    /// [`of_rounded`](Self::of_rounded) with o in f32, of a pass that rounds nothing else: the CPU's.
    ///
    /// # Panics
    /// The conditions of [`of_rounded`](Self::of_rounded).
    pub fn of_rounded_in_f32(
        problem: &Problem,
        options: HostOptions,
        rounded: &Rounded,
        rows: &[usize],
    ) -> Self {
        Self::find_rounded(problem, options, rounded, rows, of_row)
    }

    /// The rows of a pass on rounded inputs.
    fn find_rounded(
        problem: &Problem,
        options: HostOptions,
        rounded: &Rounded,
        rows: &[usize],
        of_row: impl Fn(&Forward<f32>, &Reference, usize) -> (ExpectedRow, ExpectedLse) + Sync,
    ) -> Self {
        let [q, k, v] = [&rounded.q, &rounded.k, &rounded.v];
        let [q, k, v] = [q, k, v].map(|tensor| tensor.as_slice().expect("row-major"));
        let of_rounded = Forward::<f32> {
            problem: &rounded.problem(problem),
            options,
            q,
            k,
            v,
            o: &[],
            lse: &[],
            acc: Accumulation::default(),
        };
        Self::find(&of_rounded, rows, |reference, row| {
            of_row(&of_rounded, reference, row)
        })
    }

    /// The rows, each with the reference of its key/value head.
    fn find<T: Element>(
        forward: &Forward<T>,
        rows: &[usize],
        of_row: impl Fn(&Reference, usize) -> (ExpectedRow, ExpectedLse) + Sync,
    ) -> Self {
        let p = forward.problem;
        let kv_head = |row: usize| row / p.seqlen_q / p.group();
        let by_kv_head: Vec<&[usize]> = rows.chunk_by(|&a, &b| kv_head(a) == kv_head(b)).collect();
        let of_head = |rows: &[usize]| {
            let (batch, head) = (kv_head(rows[0]) / p.kv_heads, kv_head(rows[0]) % p.kv_heads);
            let [k, v] = [(forward.k, p.dim), (forward.v, p.dim_v)]
                .map(|(tensor, dim)| forward.options.keys_of(p, tensor, dim, [batch, head]));
            let reference = Reference::new(p, &k, &v);
            let of_row = |&row: &usize| of_row(&reference, row);
            rows.par_iter().map(of_row).collect::<Vec<_>>()
        };
        let (rows, lse) = by_kv_head.into_par_iter().flat_map(of_head).unzip();
        let (heads, seqlen) = (p.heads, p.seqlen_q);
        Expected {
            o: ExpectedRows {
                heads,
                seqlen,
                rows,
            },
            lse,
        }
    }

    /// Compares o and lse of a pass that read the same inputs.
    ///
    /// # Panics
    /// If there are no rows, or if o or lse has another size than the problem says.
    pub fn compare<T: Element>(&self, forward: &Forward<T>) -> Report {
        let excess = |lse: &Comparison| lse.max_abs_err - lse.tolerance;
        let rows = self.o.rows.iter().zip(&self.lse);
        let lse = rows
            .map(|(row, expected)| expected.compare(self.o.index(row), forward.lse[row.number()]));
        let worst = lse.reduce(|a, b| a.worse(b, excess));
        Report {
            rows: self.lse.len(),
            o: self.o.compare(forward.o, 2.0),
            lse: worst.expect("rows to compare"),
        }
    }

    /// Memory that the rows take.
    pub fn bytes(&self) -> usize {
        self.o.bytes() + size_of_val(&self.lse[..])
    }
}

impl ExpectedLse {
    fn compare(self, [b, h, i]: [usize; 3], found: f32) -> Comparison {
        let found = f64::from(found);
        let sees_none = [found, self.lse].map(|lse| lse == f64::NEG_INFINITY);
        Comparison {
            max_abs_err: match sees_none[0] == sees_none[1] {
                true => difference(found, self.lse),
                false => f64::INFINITY,
            },
            tolerance: self.tolerance,
            worst: [b, h, i, 0],
            found,
            expected: self.lse,
        }
    }
}

/// The expected result of row `row`.
fn of_row<T: Element>(
    forward: &Forward<T>,
    reference: &Reference,
    row: usize,
) -> (ExpectedRow, ExpectedLse) {
    let q = query_of(forward, row);
    let query = Query::new(
        options_of(forward, row),
        row % forward.problem.seqlen_q,
        q.view(),
    );
    let exact = reference.exact(&query);
    let low = reference.low::<T>(&query);
    let bounds = reference.bounds::<T>(&query, &exact);
    let (o_sums, lse_sums) = match (T::DTYPE, forward.acc) {
        // The plain algorithm rounds no less than this.
        (Dtype::F32, _) => (max_finite(bounds.o.clone()), 0.0),
        (_, Accumulation::Single) => (0.0, 0.0),
        (_, Accumulation::Half) => reference.half_sums(&query, &exact),
    };
    let lse = ExpectedLse {
        lse: exact.lse,
        tolerance: bounds.lse + lse_sums,
    };
    let most = match forward.acc {
        Accumulation::Half => bounds.o + o_sums,
        Accumulation::Single => bounds.o,
    };
    (
        ExpectedRow::new::<T>(row, exact.o, low.o.view(), o_sums, most),
        lse,
    )
}

/// The expected result in `T` of row `row` of a pass in FP8, whose inputs are rounded.
fn of_fp8_row<T: Element>(
    forward: &Forward<f32>,
    reference: &Reference,
    rounded: &Rounded,
    row: usize,
) -> (ExpectedRow, ExpectedLse) {
    let p = forward.problem;
    let q = query_of(forward, row);
    let query = Query::new(options_of(forward, row), row % p.seqlen_q, q.view());
    let exact = reference.exact(&query);
    let head = row / p.seqlen_q;
    let bounds = reference.fp8_bounds::<T>(&query, &exact, rounded, head);
    let lse = ExpectedLse {
        lse: exact.lse,
        tolerance: bounds.lse,
    };
    // Probabilities of another maximum are rounded elsewhere: no result stands for others.
    let most = max_finite(bounds.o.clone());
    let o = exact.o.clone();
    (
        ExpectedRow::new::<T>(row, exact.o, o.view(), most, bounds.o),
        lse,
    )
}

/// The elements of a row of q.
fn query_of<T: Element>(forward: &Forward<T>, row: usize) -> Array1<f64> {
    let dim = forward.problem.dim;
    let q = forward.q[row * dim..][..dim].iter();
    q.map(|x| f64::from(x.to_f32())).collect()
}

/// The options of a row's head.
fn options_of<'a, T>(forward: &'a Forward<T>, row: usize) -> Head<'a> {
    let p = forward.problem;
    let head = row / p.seqlen_q;
    forward.options.head(p, [head / p.heads, head % p.heads])
}
