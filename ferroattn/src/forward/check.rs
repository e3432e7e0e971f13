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
//! cores may cut `2^-13` of O for 32 keys.
//!
//! Where the reference is not finite, the result must not be finite either, and the other way round.
//! An lse of -inf must be exactly that.

use super::Problem;
use super::fp8::Rounded;
use super::reference::{Query, Reference};
pub use crate::comparison::Comparison;
use crate::comparison::{ExpectedRow, ExpectedRows, difference, max_finite, sample};
use crate::gemm::Accumulation;
use crate::options::{Head, HostOptions};
use crate::tensor::{Dtype, Element};
use ndarray::Array1;
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
        if forward.options.fp8().is_none() {
            return Self::find(forward, rows, |reference, row| {
                of_row(forward, reference, row)
            });
        }
        let rounded = Rounded::of_slices(forward.problem, forward.q, forward.k, forward.v);
        let [q, k, v] = [&rounded.q, &rounded.k, &rounded.v];
        let [q, k, v] = [q, k, v].map(|tensor| tensor.as_slice().expect("row-major"));
        let of_rounded = Forward::<f32> {
            problem: forward.problem,
            options: forward.options,
            q,
            k,
            v,
            o: &[],
            lse: &[],
            acc: forward.acc,
        };
        Self::find(&of_rounded, rows, |reference, row| {
            of_fp8_row::<T>(&of_rounded, reference, &rounded, row)
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
    let means = rounded.means_of(head / p.heads, p.kv_head(head % p.heads));
    let bounds = reference.fp8_bounds::<T>(&query, &exact, means);
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

#[cfg(test)]
mod tests {
    use super::super::cpu;
    use super::Problem;
    use super::{Element, Forward, Report, all_rows, check, sample_rows};
    use crate::gemm::Accumulation;
    use crate::options::{HostOptions, Window};
    use half::{bf16, f16};
    use ndarray::{Array4, ArrayView4};
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};
    use rand_distr::StandardNormal;

    const PROBLEM: Problem = Problem {
        batch: 2,
        heads: 2,
        kv_heads: 1,
        seqlen_q: 70,
        seqlen_kv: 65,
        dim: 8,
        dim_v: 8,
        causal: true,
        scale: 0.5,
        window: Window::NONE,
        softcap: None,
    };
    /// `[1, 1, 60]`, in the middle of a tile.
    const ROW: usize = 3 * 70 + 60;

    /// Checks all rows of a right result after `spoil` changed its o and lse.
    fn spoilt<T: Element>(spoil: impl Fn(&mut [T], &mut [f32])) -> Report {
        spoilt_with(|_| (), spoil)
    }

    /// Checks all rows of a right result in which `prepare` changed V, after `spoil` changed its o and lse.
    fn spoilt_with<T: Element>(
        prepare: impl Fn(&mut [T]),
        spoil: impl Fn(&mut [T], &mut [f32]),
    ) -> Report {
        let mut rng = StdRng::seed_from_u64(1);
        let mut random = |len| -> Vec<T> {
            (0..len)
                .map(|_| T::from_f32(rng.sample(StandardNormal)))
                .collect()
        };
        let (q, k, mut v) = (random(4 * 70 * 8), random(2 * 65 * 8), random(2 * 65 * 8));
        prepare(&mut v);
        let view = |data, shape| ArrayView4::from_shape(shape, data).expect("row-major");
        let (q_shape, kv_shape) = (PROBLEM.q_shape(), PROBLEM.k_shape());
        let mut o = Array4::from_elem(q_shape, T::from_f32(f32::NAN));
        let mut lse = vec![f32::NAN; 4 * 70];
        let [k_view, v_view] = [&k, &v].map(|data| view(data, kv_shape));
        cpu::forward(
            &PROBLEM,
            &HostOptions::default(),
            view(&q, q_shape),
            k_view,
            v_view,
            o.view_mut(),
            &mut lse,
        );
        let mut o = o.into_raw_vec_and_offset().0;
        spoil(&mut o, &mut lse);
        check(
            &Forward {
                problem: &PROBLEM,
                options: HostOptions::default(),
                q: &q,
                k: &k,
                v: &v,
                o: &o,
                lse: &lse,
                acc: Accumulation::Single,
            },
            &all_rows(&PROBLEM),
        )
    }

    #[test]
    fn a_right_result_passes() {
        let report = spoilt::<f16>(|_, _| ());
        assert!(report.passed(), "{report}");
        assert_eq!(report.rows, 280);
        assert!(
            report.o.max_abs_err > 0.0 && report.o.tolerance < 5e-3,
            "{report}"
        );
        assert!(report.lse.tolerance < 2e-5, "{report}");
    }

    #[test]
    fn one_wrong_element_fails_and_is_named() {
        let report = spoilt::<f16>(|o, _| o[ROW * 8 + 3] += f16::from_f32(0.01));
        assert!(!report.o.passed() && report.lse.passed(), "{report}");
        assert_eq!(report.o.worst, [1, 1, 60, 3]);
    }

    /// Probabilities in bf16 do not add up to their sum in f32, so o may fall next to V's row.
    #[test]
    fn equal_rows_of_v_leave_room_for_one_unit() {
        let equal = |v: &mut [bf16]| v.fill(bf16::from_f32(2.015625));
        let below = |units: u16| {
            let lower = move |o: &mut [bf16], _: &mut [f32]| {
                o[ROW * 8] = bf16::from_bits(o[ROW * 8].to_bits() - units);
            };
            spoilt_with(equal, lower)
        };
        let [right, one, four] = [0, 1, 4].map(below);
        assert_eq!(right.o.max_abs_err.max(1e-12), 1e-12, "{right}");
        assert!(one.passed() && !four.passed(), "{one}, {four}");
    }

    #[test]
    fn one_wrong_lse_fails_and_is_named() {
        let report = spoilt::<f16>(|_, lse| lse[ROW] += 1e-4);
        assert!(report.o.passed() && !report.lse.passed(), "{report}");
        assert_eq!(report.lse.worst, [1, 1, 60, 0]);
    }

    #[test]
    fn finite_and_not_finite_are_told_apart() {
        let report = spoilt::<f16>(|o, _| o[ROW * 8] = f16::NAN);
        assert_eq!(
            (report.passed(), report.o.max_abs_err),
            (false, f64::INFINITY)
        );
        // Rows 0 to 4 see no key: an lse of -inf and nothing else.
        for wrong in [f32::NAN, f32::INFINITY, -1e30] {
            let report = spoilt::<f16>(|_, lse| lse[3] = wrong);
            assert!(
                !report.passed() && report.lse.worst == [0, 0, 3, 0],
                "{report}"
            );
        }
        let report = spoilt::<f16>(|_, lse| lse[ROW] = f32::NEG_INFINITY);
        assert!(!report.passed(), "{report}");
    }

    #[test]
    fn tolerances_of_f32_are_tight() {
        let report = spoilt::<f32>(|_, _| ());
        assert!(report.passed(), "{report}");
        assert!(report.o.tolerance < 20.0 * report.o.max_abs_err, "{report}");
        let rounded = |o: &mut [f32], _: &mut [f32]| {
            o.iter_mut().for_each(|x| *x = f16::from_f32(*x).to_f32());
        };
        assert!(!spoilt(rounded).o.passed());
        assert!(!spoilt::<f32>(|o, _| o[ROW * 8 + 3] += 1e-4).o.passed());
    }

    /// Sums in f16 as a device has them, which rounds after every `width` products, but with the products of
    /// 16 elements of a row and a key times `factor(row, key, slice)`.
    fn in_half(p: &Problem, width: usize, factor: impl Fn(usize, usize, usize) -> f64) -> Report {
        let mut rng = StdRng::seed_from_u64(1);
        let mut random = |shape: [usize; 4]| -> Vec<f16> {
            (0..shape.iter().product())
                .map(|_| f16::from_f32(rng.sample(StandardNormal)))
                .collect()
        };
        let half = |x: f64| f64::from(f16::from_f32(x as f32));
        let (q, k, v) = (
            random(p.q_shape()),
            random(p.k_shape()),
            random(p.v_shape()),
        );
        let (mut o, mut lse) = (vec![f16::NAN; q.len()], vec![f32::NAN; p.seqlen_q]);
        let row_of = |data: &[f16], row: usize| -> Vec<f64> {
            data[row * p.dim..][..p.dim]
                .iter()
                .map(|x| x.to_f64())
                .collect()
        };
        let scale = half(f64::from(p.scale) * std::f64::consts::LOG2_E);
        for i in 0..p.seqlen_q {
            let q: Vec<f64> = row_of(&q, i).iter().map(|x| half(x * scale)).collect();
            let score = |j: usize| {
                let k = row_of(&k, j);
                (0..p.dim).step_by(width).fold(0.0, |sum, first| {
                    let columns = first..p.dim.min(first + width);
                    let products: f64 = columns.map(|d| q[d] * k[d]).sum();
                    half(sum + factor(i, j, first / 16) * products)
                })
            };
            let scores: Vec<f64> = p.keys(i).map(score).collect();
            let m = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - m).exp2()).collect();
            let l: f64 = weights.iter().sum();
            let keys: Vec<usize> = (0..scores.len()).collect();
            for d in 0..p.dim {
                let step = |keys: &[usize]| {
                    keys.chunks(width).fold(0.0, |sum, keys| {
                        let product = |&j: &usize| half(weights[j]) * v[j * p.dim + d].to_f64();
                        half(sum + keys.iter().map(product).sum::<f64>())
                    })
                };
                let sum: f64 = keys.chunks(64).map(step).sum();
                o[i * p.dim + d] = f16::from_f64(sum / l);
            }
            lse[i] = ((m + l.log2()) * std::f64::consts::LN_2) as f32;
        }
        let forward = Forward {
            problem: p,
            options: HostOptions::default(),
            q: &q,
            k: &k,
            v: &v,
            o: &o,
            lse: &lse,
            acc: Accumulation::Half,
        };
        check(&forward, &all_rows(p))
    }

    fn one_head(seqlen_q: usize, seqlen_kv: usize, dim: usize, scale: f32) -> Problem {
        Problem {
            batch: 1,
            heads: 1,
            kv_heads: 1,
            seqlen_q,
            seqlen_kv,
            dim,
            dim_v: dim,
            causal: false,
            scale,
            window: Window::NONE,
            softcap: None,
        }
    }

    #[test]
    fn sums_in_f16_pass() {
        for (seqlen_q, seqlen_kv) in [(1, 1), (3, 2), (5, 20), (20, 300)] {
            for dim in [8, 64, 200, 1024] {
                for scale in [0.0, 1.0 / (dim as f32).sqrt(), -0.3, 1.0, 20.0] {
                    let p = one_head(seqlen_q, seqlen_kv, dim, scale);
                    for width in [8, 16] {
                        let report = in_half(&p, width, |_, _, _| 1.0);
                        assert!(report.passed(), "{p:?}, width {width}: {report}");
                    }
                }
            }
        }
    }

    /// Of ordinary scores the tolerance is a few times the error, not hundreds of times.
    #[test]
    fn tolerances_of_sums_in_f16_are_tight() {
        for dim in [8, 64, 256, 1024] {
            let p = one_head(50, 100, dim, 1.0 / (dim as f32).sqrt());
            let report = in_half(&p, 16, |_, _, _| 1.0);
            assert!(report.o.max_abs_err > report.o.tolerance / 20.0, "{report}");
        }
    }

    #[test]
    fn wrong_scores_in_f16_are_noticed() {
        type Factor = fn(usize, usize, usize) -> f64;
        let wrong: [(&str, [usize; 3], Factor); 5] = [
            (
                "a key off by a percent",
                [4, 8, 64],
                |_, key, _| match key {
                    5 => 1.01,
                    _ => 1.0,
                },
            ),
            (
                "a slice of one key left out",
                [4, 200, 64],
                |_, key, slice| match (key, slice) {
                    (150, 2) => 0.0,
                    _ => 1.0,
                },
            ),
            (
                "a slice of one row left out",
                [20, 200, 512],
                |row, _, slice| match (row, slice) {
                    (17, 31) => 0.0,
                    _ => 1.0,
                },
            ),
            (
                "a slice left out",
                [4, 200, 1024],
                |_, _, slice| match slice {
                    63 => 0.0,
                    _ => 1.0,
                },
            ),
            ("a scale off by a percent", [4, 200, 64], |_, _, _| 1.01),
        ];
        for (what, [seqlen_q, seqlen_kv, dim], factor) in wrong {
            let p = one_head(seqlen_q, seqlen_kv, dim, 1.0 / (dim as f32).sqrt());
            assert!(in_half(&p, 16, |_, _, _| 1.0).passed());
            let report = in_half(&p, 16, factor);
            assert!(!report.passed(), "{what}: {report}");
        }
    }

    #[test]
    fn samples_are_distinct_rows_with_both_ends() {
        for count in [2, 10, 279] {
            let rows = sample_rows(&PROBLEM, count, 5);
            assert!(
                rows.len() == count || rows.len() == count + 1,
                "{} of {count}",
                rows.len()
            );
            assert!(rows.is_sorted_by(|a, b| a < b));
            assert_eq!((rows[0], rows.last()), (0, Some(&279)));
        }
        assert_eq!(sample_rows(&PROBLEM, 280, 5), all_rows(&PROBLEM));
        let tall = Problem {
            seqlen_q: 100_000,
            ..PROBLEM
        };
        let at_edge = |row: &usize| [0, 63].contains(&(row % 100_000 % 64));
        let edges = sample_rows(&tall, 100, 5)
            .into_iter()
            .filter(at_edge)
            .count();
        assert!(edges > 30, "{edges} rows at tile edges");
    }
}
