//! Plain attention in `f64`, the standard of every check, and the same algorithm rounded to the
//! element type after each step, the measure of how close a result can come.

use super::Problem;
use crate::comparison::{max_finite, round};
use crate::options::Head;
use crate::rows::{add_scaled, elements, rows_of, slice_of};
use crate::tensor::Element;
use half::f16;
use ndarray::{Array1, Array2, ArrayView1, Axis, CowArray, Ix2};
use std::cell::OnceCell;
use std::f32::consts::LOG2_E;
use std::f64::consts::LN_2;

/// One key/value head, ready to answer for any query row of the heads it serves.
pub(crate) struct Reference<'a> {
    pub(super) p: &'a Problem,
    pub(super) keys: Array2<f64>,
    /// Scaled and rounded to the element type.
    low_keys: Array2<f64>,
    values: Array2<f64>,
    /// Norms of the keys.
    pub(super) key_norms: Array1<f64>,
}

/// A query row of one of the heads.
pub(crate) struct Query<'a> {
    /// The head's options.
    pub(super) options: Head<'a>,
    /// Its place in the sequence.
    pub(super) row: usize,
    /// Its elements.
    pub(super) q: ArrayView1<'a, f64>,
    /// The keys that it sees.
    pub(super) keys: Vec<usize>,
    /// Its scaled products with them, once they are found, and its scores.
    products: OnceCell<Array1<f64>>,
    scores: OnceCell<Array1<f64>>,
}

/// Products that sums in f16 take in between two roundings.
const SLICE: usize = 16;
/// Half a unit in the last place of f16, relative to numbers of any size.
const UNIT: f64 = 1.0 / 2048.0;
/// Half a unit in the last place of f32, relative to numbers of any size.
pub(crate) const F32_UNIT: f64 = 1.0 / (1 << 24) as f64;

/// The results that a query row should give.
pub(crate) struct Row {
    /// The output.
    pub o: Array1<f64>,
    /// Natural log of the sum of the exponentials of the scores, the sink among them.
    pub lse: f64,
}

impl<'a> Query<'a> {
    /// Row `row` of the head with these options.
    pub fn new(options: Head<'a>, row: usize, q: ArrayView1<'a, f64>) -> Self {
        Query {
            keys: options.keys(row),
            options,
            row,
            q,
            products: OnceCell::new(),
            scores: OnceCell::new(),
        }
    }

    /// The number of keys that the row sees.
    pub fn keys(&self) -> usize {
        self.keys.len()
    }
}

impl<'a> Reference<'a> {
    /// Converts k and v of one head, row-major.
    pub fn new<T: Element>(p: &'a Problem, k: &[T], v: &[T]) -> Self {
        let [keys, values] = [(k, p.dim), (v, p.dim_v)].map(|(head, dim): (&[T], usize)| {
            let element = |(j, d): (usize, usize)| f64::from(head[j * dim + d].to_f32());
            Array2::from_shape_fn((p.seqlen_kv, dim), element)
        });
        let scaled_keys = &keys * f64::from(p.scale);
        Reference {
            p,
            key_norms: keys.map_axis(Axis(1), |key| key.dot(&key).sqrt()),
            low_keys: scaled_keys.mapv(round::<T>),
            keys,
            values,
        }
    }

    /// The exact result.
    pub fn exact(&self, query: &Query) -> Row {
        self.attend(query, self.scores(query).clone(), |x| x)
    }

    /// The result of an implementation that keeps scores and probabilities in `T`, before o is rounded to `T`.
    ///
    /// The scale is applied to the keys first, so that a product of large q and k whose score is
    /// ordinary does not overflow.
    pub fn low<T: Element>(&self, query: &Query) -> Row {
        let products = self.visible(query, &self.low_keys).dot(&query.q);
        let products = products.mapv_into(round::<T>);
        let scores = self.scored(query, products, round::<T>);
        self.attend(query, scores, round::<T>)
    }

    /// How far from the exact result sums in f16 [may](crate::check) take a row's o, at most of its
    /// elements, and its lse.
    pub fn half_sums(&self, query: &Query, exact: &Row) -> (f64, f64) {
        let factor = round::<f16>(f64::from(self.p.scale * LOG2_E));
        let q = query.q.iter().map(|x| round::<f16>(x * factor));
        let q: Vec<f64> = q.collect();
        let keys = self.visible(query, &self.keys);
        let (products, errors): (Vec<f64>, Vec<f64>) = keys
            .rows()
            .into_iter()
            .map(|key| {
                let slices = q.chunks(SLICE).zip(key.axis_chunks_iter(Axis(0), SLICE));
                let (sum, squares) = slices.fold((0.0, 0.0), |(sum, squares), (q, key)| {
                    let sum = round::<f16>(sum + key.dot(&ArrayView1::from(q)));
                    (sum, squares + sum * sum)
                });
                (LN_2 * sum, 3.0 * UNIT * LN_2 * f64::sqrt(squares))
            })
            .unzip();
        let products = Array1::from(products);
        let scores = self.scored(query, products.clone(), |x| x);
        let half = self.attend(query, scores.clone(), |x| x);
        if !(half.lse.is_finite() && exact.lse.is_finite()) {
            return (0.0, 0.0);
        }

        let values = self.visible(query, &self.values);
        let weight = |j: usize| (scores[j] - half.lse).exp();
        // Keys with the same sums have the same errors.
        let (mut o_squares, mut lse_squares) = (Array1::<f64>::zeros(self.p.dim_v), 0.0);
        let mut keys: Vec<usize> = (0..scores.len()).collect();
        let sums = |&j: &usize| [products[j].to_bits(), errors[j].to_bits()];
        keys.sort_unstable_by_key(sums);
        for like in keys.chunk_by(|a, b| sums(a) == sums(b)) {
            let mut moved = Array1::<f64>::zeros(self.p.dim_v);
            let mut changed = 0.0;
            for &j in like {
                let change = (scores[j] + errors[j] - half.lse).exp() - weight(j);
                changed += change;
                moved.scaled_add(change.min(1.0), &(&values.row(j) - &half.o));
            }
            lse_squares += changed * changed;
            o_squares += &(&moved * &moved);
        }
        let mut sums = Array1::<f64>::zeros(self.p.dim_v);
        let slices = values.axis_chunks_iter(Axis(0), SLICE);
        for (first, values) in (0..).step_by(SLICE).zip(slices) {
            let mut sum = Array1::<f64>::zeros(self.p.dim_v);
            for (j, value) in (first..).zip(values.rows()) {
                sum.scaled_add(weight(j), &value);
            }
            sums += &sum.mapv_into(f64::abs);
        }
        // Each slice is part of its own sum and of later ones, in steps of up to 64 keys.
        let roundings = scores.len().div_ceil(SLICE).min(4) as f64;
        let rounding = (&half.o - &exact.o).mapv_into(f64::abs);
        let errors = rounding + o_squares.mapv_into(f64::sqrt) + sums * (roundings * UNIT);
        (
            max_finite(errors),
            (half.lse - exact.lse).abs() + lse_squares.sqrt(),
        )
    }

    /// The keys or values that a row sees.
    fn visible<'b>(&self, query: &Query, tensor: &'b Array2<f64>) -> CowArray<'b, f64, Ix2> {
        rows_of(tensor.view(), &query.keys)
    }

    /// The values that a row sees.
    pub(super) fn values_of(&self, query: &Query) -> CowArray<'_, f64, Ix2> {
        self.visible(query, &self.values)
    }

    /// The row's scaled products with the keys that it sees.
    pub(super) fn products<'b>(&self, query: &'b Query) -> &'b Array1<f64> {
        let products = || self.visible(query, &self.keys).dot(&query.q) * f64::from(self.p.scale);
        query.products.get_or_init(products)
    }

    /// The row's scores.
    pub(super) fn scores<'b>(&self, query: &'b Query) -> &'b Array1<f64> {
        let scores = || self.scored(query, self.products(query).clone(), |x| x);
        query.scores.get_or_init(scores)
    }

    /// Scores from scaled products of the row.
    fn scored(
        &self,
        query: &Query,
        products: Array1<f64>,
        round: impl Fn(f64) -> f64,
    ) -> Array1<f64> {
        if query.options.is_plain() {
            return products;
        }
        let mut scores = products;
        for (&key, score) in query.keys.iter().zip(&mut scores) {
            *score = query.options.score([query.row, key], *score, &round);
        }
        scores
    }

    /// The row's results, from the values and its scores.
    fn attend(&self, query: &Query, scores: Array1<f64>, round: impl Fn(f64) -> f64) -> Row {
        let sink = f64::from(query.options.sink());
        let m = scores.iter().copied().fold(sink, max_or_nan);
        let mut o = Array1::zeros(self.p.dim_v);
        if m == f64::NEG_INFINITY {
            return Row { o, lse: m };
        }
        let exponentials = scores.mapv_into(|score| (score - m).exp());
        let l = exponentials.sum() + (sink - m).exp();
        let values = self.visible(query, &self.values);
        for (e, value) in exponentials.iter().zip(values.rows()) {
            add_scaled(slice_of(&mut o), round(e / l), elements(&value));
        }
        Row { o, lse: m + l.ln() }
    }
}

/// The larger of two numbers, NaN if either is NaN.
pub(crate) fn max_or_nan(a: f64, b: f64) -> f64 {
    if a.is_nan() || a > b { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::Problem;
    use super::{Query, Reference, Row};
    use crate::options::{HostOptions, Window};
    use half::f16;
    use ndarray::{Array1, ArrayView1};

    const DIM: usize = 8;

    /// One head whose keys and values have only their first element set.
    fn exact(q: f64, keys: &[f32], values: &[f32], causal_row: Option<usize>) -> Row {
        let p = Problem {
            batch: 1,
            heads: 1,
            kv_heads: 1,
            seqlen_q: keys.len(),
            seqlen_kv: keys.len(),
            dim: DIM,
            dim_v: DIM,
            causal: causal_row.is_some(),
            scale: 0.5,
            window: Window::NONE,
            softcap: None,
        };
        let widen = |firsts: &[f32]| -> Vec<f16> {
            let row = |&x| (0..DIM).map(move |d| f16::from_f32(if d == 0 { x } else { 0.0 }));
            firsts.iter().flat_map(row).collect()
        };
        let (k, v) = (widen(keys), widen(values));
        let reference = Reference::new(&p, &k, &v);
        let mut query = Array1::zeros(DIM);
        query[0] = q;
        reference.exact(&Query::new(
            HostOptions::default().head(&p, [0, 0]),
            causal_row.unwrap_or(0),
            ArrayView1::from(&query),
        ))
    }

    fn assert_close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-14, "{found}, not {expected}");
    }

    #[test]
    fn equal_scores_average_the_values() {
        let row = exact(0.0, &[1.0, 2.0, 3.0, 4.0], &[1.0, 2.0, 3.0, 6.0], None);
        assert_close(row.o[0], 3.0);
        assert_close(row.lse, 4_f64.ln());
        assert_eq!(row.o[1], 0.0);
    }

    #[test]
    fn weights_are_the_softmax_of_scaled_scores() {
        // Scores 0.5 * 2 * [0, 3] = [0, 3].
        let row = exact(2.0, &[0.0, 3.0], &[10.0, 20.0], None);
        let e = 3_f64.exp();
        assert_close(row.o[0], (10.0 + 20.0 * e) / (1.0 + e));
        assert_close(row.lse, (1.0 + e).ln());
    }

    #[test]
    fn large_scores_do_not_overflow() {
        let row = exact(2000.0, &[1.0, -1.0], &[5.0, 7.0], None);
        assert_close(row.o[0], 5.0);
        assert_close(row.lse, 1000.0);
    }

    #[test]
    fn causal_rows_see_a_prefix_even_before_a_nan() {
        let row = exact(0.0, &[1.0, 1.0, f32::NAN], &[2.0, 4.0, f32::NAN], Some(1));
        assert_close(row.o[0], 3.0);
        let row = exact(0.0, &[1.0, 1.0, f32::NAN], &[2.0, 4.0, 8.0], Some(2));
        assert!(row.o[0].is_nan() && row.lse.is_nan());
    }

    #[test]
    fn scores_of_minus_infinity_see_nothing() {
        let row = exact(1.0, &[f32::NEG_INFINITY; 2], &[2.0, 4.0], None);
        assert_eq!(row.lse, f64::NEG_INFINITY);
        assert!(row.o.iter().all(|&x| x == 0.0));
    }
}
