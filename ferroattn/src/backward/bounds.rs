//! How far roundings may take P, dS and the sums of them from the exact ones, by the sizes of what is rounded.

use super::reference::{Reference, Row, Sums};
use crate::comparison::{max_finite, rounding};
use crate::forward::bounds::{DEVIATIONS, Term, Terms, is_bound};
use crate::forward::reference::F32_UNIT as UNIT;
use crate::options::tanh_error;
use crate::tensor::Dtype;
use ndarray::{Array1, ArrayView1, Axis};

/// Roundings to the element type that P and dS each have at most: the second one of dS times a softcap's derivative.
const ROUNDINGS: f64 = 2.0;

/// Errors of a row's P and dS, by key.
pub(crate) struct Errors {
    /// Errors of P by sums in f32.
    p: Array1<f64>,
    /// Errors of dS by the sums.
    ds: Array1<f64>,
    /// Sizes of `dP - delta`.
    away: Array1<f64>,
    /// Errors of the derivatives.
    slopes: Array1<f64>,
    /// Error of the sink's part by the sums.
    d_sink: f64,
    /// Error of delta by the roundings of o, and of the weights that o was made of.
    delta: f64,
    /// Half a unit in the last place of P and dS, and by how much small ones may be off; 0 where they stay in f32.
    units: [f64; 2],
}

/// A factor of a sum's term.
#[derive(Clone, Copy, Default)]
pub(crate) struct Factor {
    pub value: f64,
    /// How far sums in f32 may take it.
    pub error: f64,
    /// How far roundings to the element type may take it.
    pub rounding: f64,
}

pub(super) fn norm(row: ArrayView1<f64>) -> f64 {
    row.dot(&row).sqrt()
}

/// How far a sum in f32 of `len` products of two rows may be off, by their norms and its value.
fn of_sum(len: usize, norms: f64, sum: f64) -> f64 {
    UNIT * (2.0 * norms + (len as f64).sqrt() * sum.abs())
}

impl Errors {
    /// How far roundings to the element type may take a number.
    fn rounded(&self, value: f64) -> f64 {
        let [unit, least] = self.units;
        ROUNDINGS * least.max(unit * value.abs())
    }
}

impl Row {
    /// P of the key at place `seen`.
    pub fn of_p(&self, seen: usize) -> Factor {
        let value = self.p[seen];
        self.factor(value, |errors| (errors.p[seen], errors.rounded(value)))
    }

    /// dS of the key at place `seen`.
    pub fn of_ds(&self, seen: usize) -> Factor {
        let value = self.ds[seen];
        self.factor(value, |errors| {
            let p = self.p[seen];
            // dS is made of a P that is rounded: a small P by much.
            let of_p = errors.rounded(p) * errors.away[seen];
            (
                errors.ds[seen],
                errors.rounded(value) + of_p + p * errors.delta,
            )
        })
    }

    /// The gradient of the product with the key at place `seen`, from dS.
    pub fn of_product(&self, seen: usize, scale: f64) -> Factor {
        let (ds, slope) = (self.of_ds(seen), self.derivatives[seen]);
        self.factor(scale * slope * ds.value, |errors| {
            let off = errors.slopes[seen];
            let error = slope.abs() * ds.error + off * (ds.value.abs() + ds.error);
            // P may be rounded after the derivative made it small, and dS again.
            let [_, least] = errors.units;
            let small = ROUNDINGS * least * (1.0 + errors.away[seen]);
            let rounding = (slope.abs() + off) * ds.rounding + small;
            (scale.abs() * error, scale.abs() * rounding)
        })
    }

    /// The row's part in the gradient of its sink.
    pub fn of_sink(&self) -> Factor {
        self.factor(self.d_sink, |errors| (errors.d_sink, 0.0))
    }

    fn factor(&self, value: f64, errors: impl Fn(&Errors) -> (f64, f64)) -> Factor {
        let (error, rounding) = self.errors.as_ref().map(errors).unwrap_or_default();
        Factor {
            value,
            error,
            rounding,
        }
    }
}

impl Sums {
    /// How far sums in f32 may take the elements of a row, and how far each of them may be off in all.
    pub fn bounds(&self, place: usize, dtype: Dtype) -> (f64, Array1<f64>) {
        let [unit, least] = rounding(dtype);
        let [exact, errors, roundings] =
            [&self.exact, &self.errors, &self.roundings].map(|all| all.row(place));
        let all = &errors + &roundings;
        let of_sums = max_finite(match dtype {
            // Nothing else allows for the rounding of o.
            Dtype::F32 => all.clone(),
            _ => errors.to_owned(),
        });
        let bounds = all + exact.mapv(|x| least.max(unit * x.abs()));
        (of_sums, bounds)
    }
}

impl Reference<'_> {
    /// How far delta may be off by the roundings of o, and of the weights that the forward pass made it of: all to one side, or
    /// each to its own.
    fn delta_error(&self, number: usize, row: &Row, o: ArrayView1<f64>, dp: &Array1<f64>) -> f64 {
        let [unit, least] = rounding(self.dtype);
        let d_o = self.d_o.row(number);
        let sum = d_o.dot(&o).abs();
        let of_o = 2.0 * sum + 2.0 * DEVIATIONS * norm((&d_o * &o).view());
        let of_p = match self.dtype {
            Dtype::F32 => 0.0,
            _ => sum + DEVIATIONS * norm((&row.p * dp).view()),
        };
        let small = least * d_o.iter().map(|x| x.abs()).sum::<f64>();
        unit * (of_o + of_p) + small
    }

    /// The errors of the P and dS of row `number`.
    pub(super) fn errors(
        &self,
        number: usize,
        row: &Row,
        o: ArrayView1<f64>,
        [lse, delta]: [f64; 2],
        dp: &Array1<f64>,
    ) -> Errors {
        let (dim, dim_v, keys) = (self.p.dim, self.p.dim_v, row.p.len());
        let (q, d_o) = (self.q.row(number), self.d_o.row(number));
        let options = &self.options[number / self.p.seqlen_q];
        let place = number % self.p.seqlen_q;
        let [key_norms, value_norms] =
            [&self.key_norms, &self.value_norms].map(|all| all.select(Axis(0), &row.keys));
        let tanh = tanh_error(self.dtype);
        let (q_norm, d_o_norm) = (f64::from(self.p.scale).abs() * norm(q), norm(d_o));
        let unbound = |score: f64| if is_bound(score) { 0.0 } else { score.abs() };
        let term = |j: usize| {
            let (pair, product) = ([place, row.keys[j]], row.products[j]);
            let score = options.score(pair, product, |x| x);
            let sums = row.derivatives[j].abs() * of_sum(dim, q_norm * key_norms[j], product);
            let error = match is_bound(score) {
                true => 0.0,
                false => sums + options.error(pair, product, tanh) + UNIT * score.abs(),
            };
            Term {
                log: score - lse,
                error,
            }
        };
        let sink = f64::from(options.sink());
        let of_sink = Term {
            log: sink - lse,
            error: UNIT * 4.0 * if sink.is_finite() { sink.abs() } else { 0.0 },
        };
        let terms = Terms::new((0..keys).map(term).chain([of_sink]).collect());
        let is_alone = terms.all.iter().filter(|term| terms.counts(term)).count() == 1;
        // The mean of the weights' changes, which each of them takes part in.
        let mean_error = match (terms.are_close(), is_alone) {
            (true, _) => row
                .p
                .iter()
                .zip(&terms.all)
                .filter(|(p, _)| **p > 0.0)
                .map(|(p, term)| p * term.error)
                .sum(),
            (false, true) => 0.0,
            (false, false) => 1.0,
        };
        let changed = |p: f64, term: &Term| match (terms.are_close(), is_alone) {
            (true, _) => p * (term.error + mean_error + UNIT * 3.0 * unbound(lse)),
            (false, false) if terms.counts(term) => p.max(1.0 - p),
            _ => 0.0,
        };
        let values: f64 = row
            .p
            .iter()
            .zip(&value_norms)
            .map(|(p, norm)| p * norm)
            .sum();
        let of_delta =
            of_sum(dim_v, d_o_norm * norm(o), delta) + (mean_error + UNIT) * d_o_norm * values;
        let zeros = || Array1::zeros(keys);
        let mut errors = Errors {
            p: zeros(),
            ds: zeros(),
            away: dp.mapv(|dp| (dp - delta).abs()),
            slopes: zeros(),
            d_sink: 0.0,
            delta: self.delta_error(number, row, o, dp),
            units: match self.dtype {
                Dtype::F32 => [0.0; 2],
                dtype => rounding(dtype),
            },
        };
        // The sums of dq, of dk and of dv, too.
        let sums = UNIT * (16.0 + (keys as f64).sqrt() + (self.q.nrows().max(keys) as f64).sqrt());
        for (j, term) in terms.all[..keys].iter().enumerate() {
            let p = row.p[j];
            let changed = changed(p, term);
            let dp_error = of_sum(dim_v, d_o_norm * value_norms[j], dp[j]);
            errors.p[j] = changed + p * sums;
            // A derivative `1 - tanh²` is off by the product, and by roundings near 1.
            errors.slopes[j] = self.p.softcap.map_or(0.0, |cap| {
                let product = of_sum(dim, q_norm * key_norms[j], row.products[j]);
                let of_product = 2.0 * product / f64::from(cap);
                row.derivatives[j].abs() * of_product.min(1.0) + 2.0 * tanh + 4.0 * UNIT
            });
            errors.ds[j] =
                errors.p[j] * errors.away[j] + (p + changed).min(1.0) * (dp_error + of_delta);
        }
        if sink.is_finite() && options.sequences.contain(place) {
            let p = (sink - lse).exp();
            let changed = changed(p, &of_sink) + p * UNIT * (24.0 + (keys as f64).sqrt());
            let weight = (p + changed).min(1.0);
            errors.d_sink = changed * delta.abs() + weight * (of_delta + errors.delta);
        }
        errors
    }
}
