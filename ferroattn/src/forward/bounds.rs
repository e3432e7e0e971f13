//! How far roundings may take a row from the exact result, by the sizes of what is rounded.

use super::reference::{F32_UNIT, Query, Reference, Row};
use crate::comparison::rounding;
use crate::options::tanh_error;
use crate::rows::{elements, slice_of};
use crate::tensor::{Dtype, Element};
use ndarray::Array1;
use std::f64::consts::LOG2_E;

/// Keys whose weight is below `e^-40` of the largest have no part that a result shows.
const NEGLIGIBLE: f64 = 40.0;
/// Errors of scores up to which a weight's change is about proportional to them.
const SMALL: f64 = 0.5;
/// By how many times the root of the sum of the squares of independent roundings, at their largest, their sum may be off:
/// five standard deviations.
pub(crate) const DEVIATIONS: f64 = 3.0;

/// The most that a row's o and lse may be off.
pub(crate) struct Bounds {
    pub o: Array1<f64>,
    pub lse: f64,
}

/// A term of a softmax.
#[derive(Clone, Copy)]
pub(crate) struct Term {
    /// The logarithm of its weight.
    pub log: f64,
    /// How far its score may be off.
    pub error: f64,
}

/// The terms of a softmax whose scores may be off.
pub(crate) struct Terms {
    pub all: Vec<Term>,
    /// The least that the largest score can be.
    surely: f64,
    /// The largest error of a term that counts.
    pub largest: f64,
}

impl Terms {
    pub fn new(all: Vec<Term>) -> Self {
        let least = all.iter().map(|term| term.log - term.error);
        let surely = least.fold(f64::NEG_INFINITY, f64::max);
        let mut terms = Terms {
            all,
            surely,
            largest: 0.0,
        };
        let errors = terms
            .all
            .iter()
            .filter(|term| terms.counts(term))
            .map(|term| term.error);
        terms.largest = errors.fold(0.0, f64::max);
        terms
    }

    /// Whether a term may have a weight that a result shows.
    pub fn counts(&self, term: &Term) -> bool {
        term.log + term.error >= self.surely - NEGLIGIBLE
    }

    /// Whether weights change about in proportion to the errors of their scores.
    pub fn are_close(&self) -> bool {
        self.largest <= SMALL
    }

    /// How far all errors together could raise the logarithm of the sum.
    pub fn raised(&self) -> f64 {
        let highest = |term: &Term| term.log + term.error;
        let most = self
            .all
            .iter()
            .map(highest)
            .fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = self
            .all
            .iter()
            .map(|term| (highest(term) - most).exp())
            .sum();
        most + sum.ln()
    }
}

impl Reference<'_> {
    /// The [bounds](super::check) of a row.
    pub fn bounds<T: Element>(&self, query: &Query, exact: &Row) -> Bounds {
        if !exact.lse.is_finite() {
            let o = Array1::zeros(exact.o.len());
            return Bounds { o, lse: 0.0 };
        }
        let terms = self.terms::<T>(query);
        let count = query.keys() as f64;
        let own = F32_UNIT * (exact.lse.abs() + count.sqrt() + 64.0);
        let [unit, least] = rounding(T::DTYPE);
        let highest = terms
            .all
            .iter()
            .map(|term| term.log)
            .fold(f64::NEG_INFINITY, f64::max);
        let [p_unit, p_least] = match T::DTYPE {
            Dtype::F32 => [0.0; 2],
            // The least is that of a weight beside the largest one, before the division by their sum.
            _ => [unit, least * highest.exp()],
        };
        let is_close = terms.are_close();
        // Of each element: what errors of scores move it by, squares of rounded terms, and sizes of terms.
        let [mut moved, mut squares, mut sizes] =
            [(); 3].map(|()| Array1::<f64>::zeros(exact.o.len()));
        let values = self.values_of(query);
        let of_sink = Array1::zeros(exact.o.len());
        let values = values.rows().into_iter().chain([of_sink.view()]);
        let o = exact.o.as_slice().expect("contiguous");
        for (term, value) in terms.all.iter().zip(values) {
            let value = elements(&value);
            let p = term.log.exp();
            let rounded = p.min(p_least.max(p_unit * p));
            let change = match (terms.counts(term), is_close) {
                (true, true) => p * term.error.exp_m1(),
                (true, false) => 1.0,
                (false, _) => 0.0,
            };
            let sums = slice_of(&mut moved).iter_mut().zip(o);
            for ((moved, o), value) in sums.zip(value) {
                let away = change * (value - o).abs();
                *moved = match is_close {
                    true => *moved + away,
                    // Any mean of the values.
                    false => moved.max(away),
                };
            }
            let sums = slice_of(&mut squares).iter_mut().zip(slice_of(&mut sizes));
            for ((squares, sizes), value) in sums.zip(value) {
                *squares += (rounded * value).powi(2);
                *sizes += p * value.abs();
            }
        }
        let deviations = DEVIATIONS.min(count.sqrt());
        let steps = match T::DTYPE {
            // Sums of a processor's are rounded to nearest.
            Dtype::F32 => 8.0 + 3.0 * count.sqrt(),
            // Tensor cores cut off what they add, two bits behind the sum's last one, for 16 keys at a time.
            _ => 8.0 + count / 4.0,
        };
        let raised = if is_close { terms.largest.exp() } else { 1.0 };
        let parts = moved.iter().zip(&squares).zip(&sizes).zip(&exact.o);
        let o = parts.map(|(((moved, squares), sizes), o)| {
            let size = o.abs();
            let of_p = p_unit * size + deviations * squares.sqrt();
            let of_sums = F32_UNIT * (steps * sizes + 8.0 * size);
            moved * raised + of_p + of_sums + least.max(unit * size)
        });
        Bounds {
            o: o.collect(),
            lse: terms.raised() + own,
        }
    }

    /// The row's keys, and the sink behind them.
    fn terms<T: Element>(&self, query: &Query) -> Terms {
        let options = &query.options;
        let tanh = tanh_error(T::DTYPE);
        let q_norm = query.q.dot(&query.q).sqrt();
        let (products, scores) = (self.products(query), self.scores(query));
        let sink = f64::from(options.sink());
        let most = scores.iter().copied().fold(sink, f64::max);
        // A huge lse has no room for it.
        let sum = scores
            .iter()
            .chain([&sink])
            .map(|score| (score - most).exp());
        let sum = sum.sum::<f64>().ln();
        let keys = query.keys.iter().zip(products).zip(scores);
        let terms = keys.map(|((&key, &product), &score)| {
            let place = [query.row, key];
            let sums = options.derivative(place, product).abs()
                * self.product_error::<T>(query, q_norm, key);
            let error = match is_bound(score) {
                true => 0.0,
                false => sums + options.error(place, product, tanh),
            };
            let log = score - most - sum;
            Term { log, error }
        });
        let of_sink = Term {
            log: sink - most - sum,
            error: match sink.is_finite() {
                true => 4.0 * F32_UNIT * sink.abs(),
                false => 0.0,
            },
        };
        Terms::new(terms.chain([of_sink]).collect())
    }

    /// How far sums in f32 may take a scaled product of a query and a key.
    fn product_error<T: Element>(&self, query: &Query, q_norm: f64, key: usize) -> f64 {
        let scale = f64::from(self.p.scale).abs();
        match T::DTYPE {
            Dtype::F32 => {
                let products = query.q.iter().zip(self.keys.row(key)).map(|(q, k)| q * k);
                let (_, squares) = products.fold((0.0, 0.0), |(sum, squares), product| {
                    let sum: f64 = sum + product;
                    (sum, squares + sum * sum)
                });
                F32_UNIT * (3.0 * scale * f64::sqrt(squares) + 8.0)
            }
            _ => F32_UNIT * (self.p.dim as f64 * scale * q_norm * self.key_norms[key] + 8.0),
        }
    }
}

/// Whether a score is so large that all devices have the largest f32 in its place, whatever its roundings.
pub(crate) fn is_bound(score: f64) -> bool {
    score.abs() >= f64::from(f32::MAX) / LOG2_E
}
