//! How far roundings may take a row of a pass in FP8 from the exact result of rounded inputs.

use super::Rounded;
use crate::comparison::rounding;
use crate::forward::bounds::{Bounds, DEVIATIONS, Term, Terms};
use crate::forward::reference::{F32_UNIT, Query, Reference, Row};
use crate::rows::elements;
use crate::tensor::Element;
use ndarray::{Array1, Axis, s};
use std::f64::consts::LN_2;

/// Half a unit in the last place of e4m3, relative to numbers of any size.
const UNIT: f64 = 1.0 / 16.0;
/// The error of small probabilities, relative to the largest, which is 2^3 or more.
const LEAST: f64 = 1.0 / (1 << 13) as f64;
/// The error of small probabilities of a row whose reference rose, relative to its sum, which is then 1450 or more.
const LEAST_OF_SUM: f64 = 1.0 / (1 << 20) as f64;
/// Half a unit in the last place of f16, relative to numbers of any size.
const HALF_UNIT: f64 = 1.0 / 2048.0;
/// Products that a sum takes in at a time.
const SLICE: usize = 32;
/// Of sums in two levels, as many slices as let 0.5 % of a sum be cut: the inner level's lose 0.43 % (docs/fp8.md).
const INNER_STEPS: f64 = 40.0;

impl Reference<'_> {
    /// The [bounds](crate::check) of a row in FP8, of this one of all entries' heads.
    pub fn fp8_bounds<T: Element>(
        &self,
        query: &Query,
        exact: &Row,
        rounded: &Rounded,
        head: usize,
    ) -> Bounds {
        if !exact.lse.is_finite() {
            let o = Array1::zeros(exact.o.len());
            return Bounds { o, lse: 0.0 };
        }
        let (batch, head) = (head / self.p.heads, head % self.p.heads);
        let means = rounded.means_of(batch, self.p.kv_head(head));
        let means = means.mapv(f64::from);
        let means = means.as_slice().expect("new");
        let terms = self.fp8_terms(query, exact);
        let of_keys = &terms.all[..terms.all.len() - 1];
        let logs = of_keys.iter().map(|term| term.log);
        let highest = logs.fold(f64::NEG_INFINITY, f64::max).exp();
        let values = self.values_of(query);
        let zeros = || Array1::<f64>::zeros(exact.o.len());
        let (mut squares, mut moved, mut sizes) = (zeros(), zeros(), zeros());
        let mut keys: Vec<usize> = (0..of_keys.len()).collect();
        let weight = |&key: &usize| (of_keys[key].log * 1e9).round() as i64;
        keys.sort_unstable_by_key(weight);
        for like in keys.chunk_by(|a, b| weight(a) == weight(b)) {
            let mut sum = zeros();
            for &key in like {
                let Term { log, error } = of_keys[key];
                let (p, value) = (log.exp(), values.row(key));
                let lost = p.min((UNIT * p).max(LEAST * highest).max(LEAST_OF_SUM));
                let change = p * error.exp_m1();
                let of_results = elements(&value).iter().zip(means).zip(&exact.o);
                let sums = sum.iter_mut().zip(&mut moved).zip(&mut sizes);
                for (((sum, moved), sizes), ((value, mean), o)) in sums.zip(of_results) {
                    *sum += lost * (value - mean);
                    *moved += change * (value - o).abs();
                    *sizes += p * (value - mean).abs();
                }
            }
            for (squares, sum) in squares.iter_mut().zip(&sum) {
                *squares += sum * sum;
            }
        }
        if let Some(Term { log, error }) = terms.all.last() {
            let change = log.exp() * error.exp_m1();
            moved.zip_mut_with(&exact.o, |moved, o| *moved += change * o.abs());
        }
        let [unit, least] = rounding(T::DTYPE);
        let mut steps = of_keys.len().div_ceil(SLICE) as f64;
        if rounded.has_levels {
            steps = steps.min(INNER_STEPS);
        }
        let parts = moved.iter().zip(&squares).zip(&sizes).zip(&exact.o);
        let o = parts.map(|(((moved, squares), sizes), o)| {
            // Sums are cut, and rounded to f16.
            let cut = (steps / 8192.0 + HALF_UNIT * steps.sqrt()).min(1.0) * sizes;
            moved
                + DEVIATIONS * squares.sqrt()
                + cut
                + 8.0 * F32_UNIT * o.abs()
                + least.max(unit * o.abs())
        });
        Bounds {
            o: o.collect(),
            lse: terms.raised() + F32_UNIT * (exact.lse.abs() + 64.0),
        }
    }

    /// The row's keys, and the sink behind them.
    fn fp8_terms(&self, query: &Query, exact: &Row) -> Terms {
        let scale = f64::from(self.p.scale).abs();
        // Scores within bounds are rounded, and so is the instruction that bounds them.
        let within = |score: f64, of_product: f64| match self.p.softcap {
            Some(cap) => of_product.min(2.0 * f64::from(cap)) + 3.0 * HALF_UNIT * score.abs(),
            None => of_product,
        };
        let scores = self.scores(query);
        let highest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let terms = query.keys.iter().zip(scores).map(|(&key, &score)| {
            let key = self.keys.slice(s![key, ..]);
            let slices = query.q.axis_chunks_iter(Axis(0), SLICE);
            let slices = slices.zip(key.axis_chunks_iter(Axis(0), SLICE));
            let (_, squares) = slices.fold((0.0, 0.0), |(sum, squares), (q, key)| {
                let sum: f64 = sum + q.dot(&key);
                (sum, squares + sum * sum)
            });
            let of_sums = DEVIATIONS * HALF_UNIT * scale * squares.sqrt();
            // In base 2 a pair of f16 has the distance from the maximum, and up to 3 and 5.8 more.
            let of_pairs = HALF_UNIT * (2.0 * (highest - score) + 9.0 * LN_2);
            Term {
                log: score - exact.lse,
                error: within(score, of_sums) + of_pairs + 4.0 * HALF_UNIT,
            }
        });
        let sink = f64::from(query.options.sink());
        let of_sink = Term {
            log: sink - exact.lse,
            error: if sink.is_finite() {
                4.0 * F32_UNIT * sink.abs()
            } else {
                0.0
            },
        };
        Terms::new(terms.chain([of_sink]).collect())
    }
}
