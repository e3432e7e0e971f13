//! Compares dq, dk and dv with the gradients in `f64`, row by row.
//!
//! Each follows FlashAttention's own rule for gradients: its largest error may be three times the error of a plain
//! implementation that rounds to the element type after each step, plus twice the error of rounding, as
//! [o](crate::check):
//!
//! `max|d - ref| <= 3 max|low - ref| + 2 max|(ref + 0.3 - 0.3 in low precision) - ref|`.
//!
//! **Each element** has a bound of its own, too, and the smaller one holds: the rule's is of the worst row, and grows with
//! scores and values that have no part in the element. The bound is what sums in f32 add, and half a unit in the last place of the
//! result.
//!
//! In f16 and bf16 it adds roundings to the type, all to one side. With `u` half a unit in the last place, and at the least half of
//! the least subnormal number: `2 u` of P times a row of `d_o` in dv. In dq and dk `2 u` of dS, and of P times `dP - delta`, since P
//! is rounded before; P again, where a softcap's derivative makes it small first; and P times the error of delta, which all keys
//! of a row share. That is of o, `2 u |d_o o|` and `6 u sqrt(sum of (d_o o)^2)`, and of the weights that o is made of, `u |d_o o|`
//! and `3 u sqrt(sum of (P dP)^2)`.
//!
//! **Sums in f32** may add to both. It is little, but elements in f32 have no other error. With
//! `w = 2^-24`, a sum of `n` products of two rows may be off by `w (2 |a| |b| + sqrt(n) |a b|)`: by the norms if its terms
//! have any sign, by its value if they have one. So are each score, `dP` and `delta`. The given lse is off by the mean of
//! its row's scores and by `3 w |lse|`, o by as much of the values. With `w (sqrt(n) + 16)` for the last
//! sums, each element of P and dS has its error; times the elements of k, q or `d_o`, they add up. Where a score that counts may
//! be off by more than 1/2, a weight may be any from 0 to 1, unless no other counts.
//!
//! The gradients of sinks and of a bias are sums, of which each term may be off by what lse, delta and the rounding of o
//! in delta may take it. Options add to scores and lse what they add in the [forward pass](crate::check).
//!
//! Where the reference is not finite, the result must not be finite either, and the other way round.

mod options;

use super::reference::{Gradients, Reference, Sums};
use crate::comparison::{Comparison, ExpectedRow, ExpectedRows, round, sample};
use crate::forward::Problem;
use crate::options::HostOptions;
use crate::tensor::Element;
use ndarray::{Array1, Array2};
use rayon::prelude::*;
use std::fmt;

/// Tensors that a backward pass read and wrote: row-major tensors in host memory.
///
/// o and lse are not among them: the reference has its own.
#[derive(Clone, Copy, Debug)]
pub struct Backward<'a, T> {
    /// Sizes and options.
    pub problem: &'a Problem,
    /// Tensors of options.
    pub options: HostOptions<'a>,
    /// `[batch, heads, seqlen_q, dim]`.
    pub q: &'a [T],
    /// `[batch, kv_heads, seqlen_kv, dim]`.
    pub k: &'a [T],
    /// `[batch, kv_heads, seqlen_kv, dim_v]`.
    pub v: &'a [T],
    /// `[batch, heads, seqlen_q, dim_v]`.
    pub d_o: &'a [T],
    /// `[batch, heads, seqlen_q]`; zeros if there is none.
    pub d_lse: Option<&'a [f32]>,
    /// `[batch, heads, seqlen_q, dim]`.
    pub dq: &'a [T],
    /// `[batch, kv_heads, seqlen_kv, dim]`.
    pub dk: &'a [T],
    /// `[batch, kv_heads, seqlen_kv, dim_v]`.
    pub dv: &'a [T],
    /// `[heads]`; `None` if there are no sinks, or their gradient is not compared, which takes all rows of all heads.
    pub d_sinks: Option<&'a [f32]>,
    /// Shape, with extents of 1 in summed axes, and row-major elements; `None` as for `d_sinks`.
    pub d_bias: Option<([usize; 4], &'a [f32])>,
}

/// How the gradients compare with the reference.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Report {
    /// Rows of dq compared.
    pub rows: usize,
    /// Rows of dk and of dv compared.
    pub keys: usize,
    /// All elements of dq in these rows.
    pub dq: Comparison,
    /// All elements of dk in these rows.
    pub dk: Comparison,
    /// All elements of dv in these rows.
    pub dv: Comparison,
    /// The gradients of all sinks, if they were given.
    pub d_sinks: Option<Comparison>,
    /// All elements of the gradient of the bias, if it was given.
    pub d_bias: Option<Comparison>,
}

impl Report {
    /// Whether all are within their tolerance.
    pub fn passed(&self) -> bool {
        self.all().all(|(_, gradient)| gradient.passed())
    }

    /// The gradients with their names.
    fn all(&self) -> impl Iterator<Item = (&'static str, Comparison)> {
        let all = [
            ("dq", Some(self.dq)),
            ("dk", Some(self.dk)),
            ("dv", Some(self.dv)),
            ("d_sinks", self.d_sinks),
            ("d_bias", self.d_bias),
        ];
        all.into_iter()
            .filter_map(|(name, gradient)| gradient.map(|gradient| (name, gradient)))
    }

    /// The gradient that comes closest to its tolerance, or exceeds it most.
    pub fn worst(&self) -> Comparison {
        let gradients = self.all().map(|(_, gradient)| gradient);
        let worst = gradients.reduce(|a, b| a.worse(b, Comparison::share));
        worst.expect("three at least")
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} rows, {} keys", self.rows, self.keys)?;
        for (name, gradient) in self.all() {
            write!(f, "; {name} {gradient}")?;
        }
        Ok(())
    }
}

/// The number of every key of a [valid](Problem::validate) problem, `(batch * kv_heads + kv_head) * seqlen_kv + key`.
pub fn all_keys(problem: &Problem) -> Vec<usize> {
    (0..problem.batch * problem.kv_heads * problem.seqlen_kv).collect()
}

/// The numbers of `count` keys of a [valid](Problem::validate) problem (or all, if there are no more), ascending: the first and the last, and of the others
/// about one half anywhere and one half at the edges of tiles.
///
/// A key's gradients need the softmax of all rows that see it. So the keys of a large problem are from a few heads,
/// among them the last: as many as take some seconds to check.
pub fn sample_keys(problem: &Problem, count: usize, seed: u64) -> Vec<usize> {
    const PRODUCTS: f64 = 2e10;
    let heads = problem.batch * problem.kv_heads;
    if count >= heads * problem.seqlen_kv {
        return all_keys(problem);
    }
    let per_head = problem.flops() / heads as f64;
    let chosen = ((PRODUCTS / per_head) as usize).clamp(1, heads);
    let keys = sample(chosen, problem.seqlen_kv, count, seed).into_iter();
    // From the first head to the last, evenly spaced.
    let head = |chosen_head: usize| (chosen_head + 1) * heads / chosen - 1;
    keys.map(|key| head(key / problem.seqlen_kv) * problem.seqlen_kv + key % problem.seqlen_kv)
        .collect()
}

/// Compares the given rows of dq and the given rows of dk and dv, ascending numbers of [rows](crate::check::all_rows)
/// and [keys](all_keys), on all threads of the current rayon pool.
///
/// # Panics
/// If `rows` or `keys` is empty or has a number that none has, or if a tensor has another size than the problem says.
pub fn check<T: Element>(backward: &Backward<T>, rows: &[usize], keys: &[usize]) -> Report {
    Expected::new(backward, rows, keys).compare(backward)
}

/// The gradients of some rows and keys by the reference, with their tolerances: found once, they serve every result of
/// the same inputs.
#[derive(Clone, Debug)]
pub struct Expected {
    dq: ExpectedRows,
    dk: ExpectedRows,
    dv: ExpectedRows,
    d_sinks: Option<ExpectedRows>,
    d_bias: Option<ExpectedRows>,
}

impl Expected {
    /// Reads what `backward` read, not its gradients, on all threads of the current rayon pool. Rows and keys are as for
    /// [`check`]. The gradients of options are those that `backward` has.
    ///
    /// # Panics
    /// If an input has another size than the problem says, or options are of another problem.
    pub fn new<T: Element>(backward: &Backward<T>, rows: &[usize], keys: &[usize]) -> Self {
        let p = backward.problem;
        let (group_rows, head_keys) = (p.group() * p.seqlen_q, p.seqlen_kv);
        let heads = (0..p.batch * p.kv_heads).into_par_iter();
        let of_heads: Vec<[Vec<ExpectedRow>; 3]> = heads
            .map(|head| {
                let within = |numbers: &[usize], each: usize| -> Vec<usize> {
                    let [first, end] = [head, head + 1]
                        .map(|head| numbers.partition_point(|&number| number < head * each));
                    let numbers = numbers[first..end].iter();
                    numbers.map(|number| number - head * each).collect()
                };
                let (rows, keys) = (within(rows, group_rows), within(keys, head_keys));
                of_head(backward, head, &rows, &keys)
            })
            .collect();
        let [mut dq, mut dk, mut dv] = [
            (p.heads, p.seqlen_q),
            (p.kv_heads, p.seqlen_kv),
            (p.kv_heads, p.seqlen_kv),
        ]
        .map(|(heads, seqlen)| ExpectedRows {
            heads,
            seqlen,
            rows: Vec::new(),
        });
        for [of_dq, of_dk, of_dv] in of_heads {
            dq.rows.extend(of_dq);
            dk.rows.extend(of_dk);
            dv.rows.extend(of_dv);
        }
        let [d_sinks, d_bias] = options::expected(backward);
        Expected {
            dq,
            dk,
            dv,
            d_sinks,
            d_bias,
        }
    }

    /// Compares the gradients of a pass that read the same inputs.
    ///
    /// # Panics
    /// If there are no rows or no keys, or if a gradient has another size than the problem says.
    pub fn compare<T: Element>(&self, backward: &Backward<T>) -> Report {
        let of_option = |expected: &Option<ExpectedRows>, found: Option<&[f32]>| {
            let (expected, found) = expected.as_ref().zip(found)?;
            Some(expected.compare(found, 3.0))
        };
        Report {
            rows: self.dq.rows.len(),
            keys: self.dk.rows.len(),
            dq: self.dq.compare(backward.dq, 3.0),
            dk: self.dk.compare(backward.dk, 3.0),
            dv: self.dv.compare(backward.dv, 3.0),
            d_sinks: of_option(&self.d_sinks, backward.d_sinks),
            d_bias: of_option(&self.d_bias, backward.d_bias.map(|(_, d_bias)| d_bias)),
        }
    }

    /// Memory that the rows take.
    pub fn bytes(&self) -> usize {
        let options = [&self.d_sinks, &self.d_bias];
        let all = [&self.dq, &self.dk, &self.dv].into_iter();
        all.chain(options.into_iter().flatten())
            .map(ExpectedRows::bytes)
            .sum()
    }
}

/// The inputs of a key/value head and of the query heads that it serves.
struct HeadInputs {
    k: Array2<f64>,
    v: Array2<f64>,
    q: Array2<f64>,
    d_o: Array2<f64>,
    d_lse: Array1<f64>,
}

impl HeadInputs {
    fn new<T: Element>(backward: &Backward<T>, head: usize) -> Self {
        let p = backward.problem;
        let (group_rows, head_keys) = (p.group() * p.seqlen_q, p.seqlen_kv);
        let widen = |tensor: &[T], rows: usize, dim: usize| -> Array2<f64> {
            let elements = &tensor[head * rows * dim..][..rows * dim];
            let element = |(row, d): (usize, usize)| f64::from(elements[row * dim + d].to_f32());
            Array2::from_shape_fn((rows, dim), element)
        };
        HeadInputs {
            k: widen(backward.k, head_keys, p.dim),
            v: widen(backward.v, head_keys, p.dim_v),
            q: widen(backward.q, group_rows, p.dim),
            d_o: widen(backward.d_o, group_rows, p.dim_v),
            d_lse: match backward.d_lse {
                None => Array1::zeros(group_rows),
                Some(d_lse) => {
                    let part = d_lse[head * group_rows..][..group_rows].iter();
                    part.map(|&d_lse| f64::from(d_lse)).collect()
                }
            },
        }
    }

    fn reference<'r, T: Element>(
        &'r self,
        backward: &'r Backward<T>,
        head: usize,
    ) -> Reference<'r> {
        let p = backward.problem;
        let (batch, first) = (head / p.kv_heads, head % p.kv_heads * p.group());
        let heads = (first..first + p.group()).map(|head| backward.options.head(p, [batch, head]));
        Reference::new(
            p,
            heads.collect(),
            T::DTYPE,
            [self.k.view(), self.v.view()],
            [self.q.view(), self.d_o.view()],
            self.d_lse.view(),
        )
    }
}

/// dq, dk and dv of these rows and keys of a key/value head and of the query heads that it serves.
fn of_head<T: Element>(
    backward: &Backward<T>,
    head: usize,
    rows: &[usize],
    keys: &[usize],
) -> [Vec<ExpectedRow>; 3] {
    if rows.is_empty() && keys.is_empty() {
        return [(); 3].map(|()| Vec::new());
    }
    let p = backward.problem;
    let (group_rows, head_keys) = (p.group() * p.seqlen_q, p.seqlen_kv);
    let head_inputs = HeadInputs::new(backward, head);
    let reference = head_inputs.reference(backward, head);
    let exact = reference.gradients(rows, keys, None);
    let low = reference.gradients(rows, keys, Some(round::<T>));

    type Part = fn(&Gradients) -> &Sums;
    let expected = |each: usize, numbers: &[usize], part: Part| {
        let (exact, low) = (part(&exact), part(&low));
        let rows = numbers.iter().enumerate().map(|(place, &number)| {
            let (of_sums, bounds) = exact.bounds(place, T::DTYPE);
            let (exact, low) = (exact.exact.row(place).to_owned(), low.exact.row(place));
            ExpectedRow::new::<T>(head * each + number, exact, low, of_sums, bounds)
        });
        rows.collect()
    };
    [
        expected(group_rows, rows, |all| &all.dq),
        expected(head_keys, keys, |all| &all.dk),
        expected(head_keys, keys, |all| &all.dv),
    ]
}

#[cfg(test)]
mod tests {
    use super::{Backward, Report, all_keys, check, sample_keys};
    use crate::check::{all_rows, sample_rows};
    use crate::device::Device;
    use crate::forward::Problem;
    use crate::options::{HostOptions, Window};
    use crate::random;
    use crate::tensor::{Element, Tensor};
    use crate::{Attention, BackwardInputs, GradientsMut};
    use half::{bf16, f16};
    use std::collections::BTreeSet;

    const PROBLEM: Problem = Problem {
        batch: 2,
        heads: 2,
        kv_heads: 1,
        seqlen_q: 70,
        seqlen_kv: 65,
        dim: 16,
        dim_v: 16,
        causal: true,
        scale: 0.5,
        window: Window::NONE,
        softcap: None,
    };
    /// `[1, 1, 60]` of dq, in the middle of a tile.
    const ROW: usize = 3 * 70 + 60;
    /// `[1, 0, 40]` of dk and dv.
    const KEY: usize = 65 + 40;

    /// The gradients of random inputs.
    struct Right<T> {
        problem: Problem,
        inputs: [Vec<T>; 4],
        d_lse: Vec<f32>,
        gradients: [Vec<T>; 3],
    }

    impl<T: Element> Right<T> {
        fn new(problem: Problem) -> Self {
            let [q, k, v] = random::inputs(&problem, 1);
            let [d_o, _, d_lse] = random::inputs::<f32>(&problem, 2);
            let d_o = d_o.into_iter().map(T::from_f32).collect();
            let rows = problem.lse_shape().iter().product();
            let d_lse = d_lse.into_iter().cycle().take(rows).collect();
            Self::of(problem, [q, k, v, d_o], d_lse)
        }

        fn of(problem: Problem, inputs: [Vec<T>; 4], d_lse: Vec<f32>) -> Self {
            let [q_shape, kv_shape] = [problem.q_shape(), problem.k_shape()];
            let shapes = [q_shape, kv_shape, kv_shape, q_shape];
            let cpu = Device::cpu();
            let tensor = |i: usize| Tensor::new(&cpu, shapes[i], &inputs[i]).expect("valid");
            let [q, k, v, d_o] = [0, 1, 2, 3].map(tensor);
            let attention = Attention::new().causal(problem.causal).scale(problem.scale);
            let (o, lse) = attention.forward(&q, &k, &v).expect("valid");
            let mut gradients = [0, 1, 2].map(tensor);
            let [dq, dk, dv] = &mut gradients;
            let of_lse = Tensor::new(&cpu, problem.lse_shape(), &d_lse).expect("valid");
            let given = BackwardInputs::new(&q, &k, &v, &o, &lse, &d_o).d_lse(&of_lse);
            attention
                .backward_into(&given, GradientsMut::new(dq, dk, dv))
                .expect("valid");
            Right {
                problem,
                inputs,
                d_lse,
                gradients: gradients.map(|gradient| gradient.to_vec().expect("on the CPU")),
            }
        }

        fn backward(&self) -> Backward<'_, T> {
            let [q, k, v, d_o] = &self.inputs;
            let [dq, dk, dv] = &self.gradients;
            Backward {
                problem: &self.problem,
                options: HostOptions::default(),
                q,
                k,
                v,
                d_o,
                d_lse: Some(&self.d_lse),
                dq,
                dk,
                dv,
                d_sinks: None,
                d_bias: None,
            }
        }

        /// Checks all rows after `spoil` changed dq, dk and dv.
        fn spoilt(mut self, spoil: impl Fn(&mut [Vec<T>; 3])) -> Report {
            spoil(&mut self.gradients);
            check(
                &self.backward(),
                &all_rows(&self.problem),
                &all_keys(&self.problem),
            )
        }
    }

    /// Tolerances are at most `largest`, and this many times the error.
    fn right_results<T: Element>(largest: f64, times: f64) {
        let report = Right::<T>::new(PROBLEM).spoilt(|_| ());
        assert!(report.passed(), "{report}");
        assert_eq!((report.rows, report.keys), (280, 130));
        for gradient in [report.dq, report.dk, report.dv] {
            let (error, tolerance) = (gradient.max_abs_err, gradient.tolerance);
            assert!(error > 0.0 && tolerance < largest, "{report}");
            assert!(tolerance < times * error, "{report}");
        }
    }

    #[test]
    fn a_right_result_passes() {
        right_results::<f16>(0.05, 20.0);
        right_results::<bf16>(0.4, 20.0);
        right_results::<f32>(6e-4, 400.0);
    }

    #[test]
    fn one_wrong_element_fails_and_is_named() {
        let wrong = |tensor: usize, row: usize| {
            let report = Right::<f16>::new(PROBLEM).spoilt(|gradients| {
                gradients[tensor][row * 16 + 3] += f16::from_f32(0.1);
            });
            let found = [report.dq, report.dk, report.dv];
            let passed = found.map(|gradient| gradient.passed());
            (passed, found[tensor].worst)
        };
        assert_eq!(wrong(0, ROW), ([false, true, true], [1, 1, 60, 3]));
        assert_eq!(wrong(1, KEY), ([true, false, true], [1, 0, 40, 3]));
        assert_eq!(wrong(2, KEY), ([true, true, false], [1, 0, 40, 3]));
    }

    /// Mistakes of kernels: a block of keys left out, a mask one off, a head of the group, delta, the scale.
    #[test]
    fn wrong_sums_are_noticed() {
        let expect_failures = |other: Problem, change: fn(&mut Right<bf16>), failing: [bool; 3]| {
            let right = Right::<bf16>::new(PROBLEM);
            let mut wrong = Right::<bf16>::of(other, right.inputs.clone(), right.d_lse.clone());
            wrong.problem = PROBLEM;
            change(&mut wrong);
            let report = wrong.spoilt(|_| ());
            let failed = [report.dq, report.dk, report.dv].map(|gradient| !gradient.passed());
            assert_eq!(failed, failing, "{report}");
        };
        let full = Problem {
            causal: false,
            ..PROBLEM
        };
        expect_failures(full, |_| (), [true; 3]);
        let percent = Problem {
            scale: 0.55,
            ..PROBLEM
        };
        expect_failures(percent, |_| (), [true; 3]);
        let without_d_lse = |wrong: &mut Right<bf16>| {
            let without = vec![0.0; wrong.d_lse.len()];
            let inputs = wrong.inputs.clone();
            wrong.gradients = Right::of(PROBLEM, inputs, without).gradients;
        };
        expect_failures(PROBLEM, without_d_lse, [true, true, false]);
        let one_head = |wrong: &mut Right<bf16>| {
            let mut inputs = wrong.inputs.clone();
            // The second head gives nothing.
            inputs[3][70 * 16..140 * 16].fill(bf16::ZERO);
            let mut d_lse = wrong.d_lse.clone();
            d_lse[70..140].fill(0.0);
            let [_, dk, dv] = Right::of(PROBLEM, inputs, d_lse).gradients;
            wrong.gradients[1] = dk;
            wrong.gradients[2] = dv;
        };
        expect_failures(PROBLEM, one_head, [false, true, true]);
    }

    #[test]
    fn finite_and_not_finite_are_told_apart() {
        for tensor in 0..3 {
            let report = Right::<f16>::new(PROBLEM).spoilt(|gradients| {
                gradients[tensor][KEY * 16] = f16::NAN;
            });
            let found = [report.dq, report.dk, report.dv][tensor];
            assert_eq!(found.max_abs_err, f64::INFINITY, "{report}");
        }
        // Rows 0 to 4 see no key.
        let report = Right::<f16>::new(PROBLEM).spoilt(|[dq, ..]| dq[3 * 16] = f16::NAN);
        assert_eq!((report.passed(), report.dq.worst), (false, [0, 0, 3, 0]));
        let nan_in_q = |spoil: fn(&mut [Vec<f16>; 3])| {
            let mut right = Right::<f16>::new(PROBLEM);
            right.inputs[0][ROW * 16] = f16::NAN;
            let right = Right::of(PROBLEM, right.inputs, right.d_lse);
            right.spoilt(spoil).passed()
        };
        assert!(nan_in_q(|_| ()));
        // One head: no other row has a finite tolerance.
        let infinite = |tensor: usize, element: usize| {
            let p = Problem {
                batch: 1,
                heads: 1,
                causal: false,
                ..PROBLEM
            };
            let mut right = Right::<f16>::new(p);
            right.inputs[tensor][element] = f16::NEG_INFINITY;
            let report = Right::of(p, right.inputs, right.d_lse).spoilt(|_| ());
            assert!(report.passed(), "{report}");
            let found = [report.dq, report.dk, report.dv];
            found.map(|gradient| gradient.tolerance < 0.05)
        };
        for tensor in 0..4 {
            assert_eq!(infinite(tensor, 40 * 16 + 3), [true; 3], "tensor {tensor}");
        }
        assert!(!nan_in_q(|[dq, ..]| dq[ROW * 16 + 5] = f16::ONE));
    }

    #[test]
    fn tolerances_of_f32_are_tight() {
        for tensor in 0..3 {
            let right = Right::<f32>::new(PROBLEM);
            let report = right.spoilt(|gradients| {
                let rounded = gradients[tensor].iter().map(|x| f16::from_f32(*x).to_f32());
                gradients[tensor] = rounded.collect();
            });
            assert!(!report.passed(), "{report}");
        }
    }

    #[test]
    fn samples_have_the_last_key_and_few_heads() {
        for count in [2, 10, 129] {
            let keys = sample_keys(&PROBLEM, count, 5);
            assert!(keys.len().abs_diff(count) <= 1 && keys.is_sorted_by(|a, b| a < b));
            assert_eq!((keys[0], keys.last()), (0, Some(&129)));
        }
        assert_eq!(sample_keys(&PROBLEM, 130, 5), all_keys(&PROBLEM));
        let large = Problem {
            seqlen_q: 8192,
            seqlen_kv: 8192,
            dim: 64,
            batch: 3,
            ..PROBLEM
        };
        let keys = sample_keys(&large, 256, 5);
        let heads: BTreeSet<usize> = keys.iter().map(|key| key / 8192).collect();
        assert_eq!((heads.len(), heads.last()), (1, Some(&2)));
    }

    #[test]
    fn samples_are_as_right_as_all() {
        let right = Right::<f16>::new(PROBLEM);
        let (rows, keys) = (sample_rows(&PROBLEM, 20, 0), sample_keys(&PROBLEM, 20, 0));
        let report = check(&right.backward(), &rows, &keys);
        assert!(report.passed() && report.dk.tolerance > 0.0, "{report}");
    }
}
