//! The gradients in `f64` by their definition, the standard of every check, and the plain algorithm that rounds to
//! the element type after each step, the measure of how close a result can come.
//!
//! Both begin at q, k and v: neither reads the o and lse of the forward pass that they check the gradients of.

use crate::comparison::rounding;
use crate::forward::Problem;
use crate::forward::bounds::{DEVIATIONS, Term, Terms, is_bound};
use crate::forward::reference::max_or_nan;
use crate::options::{Head, rows_of, tanh_error};
use crate::tensor::Dtype;
use ndarray::{Array1, Array2, ArrayView1, ArrayView2, Axis, Zip};
use rayon::prelude::*;
use std::ops::AddAssign;

/// Half a unit in the last place of f32, relative to numbers of any size.
const UNIT: f64 = 1.0 / (1 << 24) as f64;
/// Parts of the rows that are summed at once, whatever the number of threads: sums have one order.
const PARTS: usize = 16;

/// A key/value head, and what it gives the query heads that it serves.
pub(crate) struct Reference<'a> {
    p: &'a Problem,
    /// Options of the query heads.
    options: Vec<Head<'a>>,
    /// Element type of the call that is checked.
    dtype: Dtype,
    k: ArrayView2<'a, f64>,
    v: ArrayView2<'a, f64>,
    /// `[group * seqlen_q, dim]`.
    q: ArrayView2<'a, f64>,
    /// `[group * seqlen_q, dim_v]`.
    d_o: ArrayView2<'a, f64>,
    /// `[group * seqlen_q]`.
    d_lse: ArrayView1<'a, f64>,
    key_norms: Array1<f64>,
    value_norms: Array1<f64>,
}

/// Rows of gradients.
pub(crate) struct Gradients {
    pub dq: Sums,
    pub dk: Sums,
    pub dv: Sums,
}

/// Rows of a gradient: sums whose terms are products.
#[derive(Clone)]
pub(crate) struct Sums {
    pub exact: Array2<f64>,
    /// How far sums in f32, and o in delta, [may](super::check) take each element.
    pub errors: Array2<f64>,
}

impl Sums {
    fn zeros(shape: [usize; 2]) -> Self {
        let [exact, errors] = [(); 2].map(|()| Array2::zeros(shape));
        Sums { exact, errors }
    }

    /// Adds `factor` times a row, a factor that may be off by `error`.
    fn add(&mut self, place: usize, [factor, error]: [f64; 2], row: ArrayView1<f64>) {
        self.exact.row_mut(place).scaled_add(factor, &row);
        if error > 0.0 {
            let mut errors = self.errors.row_mut(place);
            let add = |errors: &mut f64, element: &f64| *errors += error * element.abs();
            Zip::from(&mut errors).and(&row).for_each(add);
        }
    }

    fn append(&mut self, below: &Self) {
        for (all, below) in self.parts_mut().into_iter().zip(below.parts()) {
            all.append(Axis(0), below.view()).expect("as many columns");
        }
    }

    fn parts(&self) -> [&Array2<f64>; 2] {
        [&self.exact, &self.errors]
    }

    fn parts_mut(&mut self) -> [&mut Array2<f64>; 2] {
        [&mut self.exact, &mut self.errors]
    }
}

impl AddAssign<&Sums> for Sums {
    fn add_assign(&mut self, other: &Sums) {
        for (sum, other) in self.parts_mut().into_iter().zip(other.parts()) {
            *sum += other;
        }
    }
}

fn norms(rows: ArrayView2<f64>) -> Array1<f64> {
    rows.map_axis(Axis(1), norm)
}

fn norm(row: ArrayView1<f64>) -> f64 {
    row.dot(&row).sqrt()
}

/// How far a sum in f32 of `len` products of two rows may be off, by their norms and its value.
fn of_sum(len: usize, norms: f64, sum: f64) -> f64 {
    UNIT * (2.0 * norms + (len as f64).sqrt() * sum.abs())
}

/// A query row and the keys that it sees.
pub(crate) struct Row {
    number: usize,
    pub keys: Vec<usize>,
    /// Scaled products with the keys.
    products: Array1<f64>,
    pub p: Array1<f64>,
    pub ds: Array1<f64>,
    /// Derivatives of scores by scaled products.
    derivatives: Array1<f64>,
    /// The row's part in the gradient of its sink.
    pub d_sink: f64,
    /// Allowance for elements of P, by sums in f32.
    p_errors: Array1<f64>,
    /// Allowance for elements of dS, by the same sums.
    pub ds_errors: Array1<f64>,
    /// Allowance for the derivatives.
    slope_errors: Array1<f64>,
    /// Allowance for the sink's part, by the same sums, and by the rounding of o in delta.
    pub d_sink_error: f64,
    /// Allowance for delta, by the rounding of o.
    pub o_error: f64,
}

impl<'a> Reference<'a> {
    /// k is `[seqlen_kv, dim]`, v `[seqlen_kv, dim_v]`, q `[group * seqlen_q, dim]`, the heads one after the other, d_o
    /// `[group * seqlen_q, dim_v]`, and d_lse `[group * seqlen_q]`. `options` are of these heads, `dtype` is what the call computes in.
    pub fn new(
        p: &'a Problem,
        options: Vec<Head<'a>>,
        dtype: Dtype,
        [k, v]: [ArrayView2<'a, f64>; 2],
        [q, d_o]: [ArrayView2<'a, f64>; 2],
        d_lse: ArrayView1<'a, f64>,
    ) -> Self {
        Reference {
            p,
            options,
            dtype,
            k,
            v,
            q,
            d_o,
            d_lse,
            key_norms: norms(k),
            value_norms: norms(v),
        }
    }

    /// dq of these rows of q, and dk and dv of these keys, both ascending: exact, or of an implementation that rounds
    /// after each step, which has no allowance for sums.
    pub fn gradients(
        &self,
        rows: &[usize],
        keys: &[usize],
        round: Option<fn(f64) -> f64>,
    ) -> Gradients {
        let all_rows: Vec<usize>;
        let visited = match keys {
            [] => rows,
            // All rows have a part in dk and dv.
            _ => {
                all_rows = (0..self.q.nrows()).collect();
                &all_rows
            }
        };
        let parts = visited.par_chunks(visited.len().div_ceil(PARTS).max(1));
        let parts: Vec<Gradients> = parts
            .map(|part| {
                let of_part = |row: &usize| part.binary_search(row).is_ok();
                let rows: Vec<usize> = rows.iter().copied().filter(of_part).collect();
                self.part(part, &rows, keys, round)
            })
            .collect();
        let mut sum = Gradients::zeros(0, keys.len(), self.p);
        for part in parts {
            sum.dk += &part.dk;
            sum.dv += &part.dv;
            sum.dq.append(&part.dq);
        }
        sum
    }

    /// What the rows `visited` give: dq of the rows among `rows`, and their part in dk and dv of `keys`.
    fn part(
        &self,
        visited: &[usize],
        rows: &[usize],
        keys: &[usize],
        round: Option<fn(f64) -> f64>,
    ) -> Gradients {
        let scale = f64::from(self.p.scale);
        let mut part = Gradients::zeros(rows.len(), keys.len(), self.p);
        for &number in visited {
            let Some(row) = self.row(number, round) else {
                continue;
            };
            let (q, d_o) = (self.q.row(number), self.d_o.row(number));
            let by_product = |seen: usize| {
                let slope = row.derivatives[seen];
                let of_o = match self.dtype {
                    Dtype::F32 => row.p[seen] * row.o_error,
                    // The plain algorithm rounds o, too.
                    _ => 0.0,
                };
                let [ds, error] = [row.ds[seen], row.ds_errors[seen] + of_o];
                let error = slope.abs() * error + row.slope_errors[seen] * (ds.abs() + error);
                [scale * slope * ds, scale.abs() * error]
            };
            if let Ok(place) = rows.binary_search(&number) {
                for (seen, &key) in row.keys.iter().enumerate() {
                    part.dq.add(place, by_product(seen), self.k.row(key));
                }
            }
            for (place, &key) in keys.iter().enumerate() {
                let Ok(seen) = row.keys.binary_search(&key) else {
                    continue;
                };
                part.dv.add(place, [row.p[seen], row.p_errors[seen]], d_o);
                part.dk.add(place, by_product(seen), q);
            }
        }
        part
    }

    /// P and dS of row `number`; `None` if it sees no key with a finite score, and has no sink.
    pub fn row(&self, number: usize, round: Option<fn(f64) -> f64>) -> Option<Row> {
        let rounded = |x| round.map_or(x, |round| round(x));
        let options = &self.options[number / self.p.seqlen_q];
        let place = number % self.p.seqlen_q;
        let visible = options.keys(place);
        let [k, v] = [self.k, self.v].map(|all| rows_of(all, &visible));
        let (q, d_o) = (self.q.row(number), self.d_o.row(number));
        let scale = f64::from(self.p.scale);
        let products = k.dot(&q).mapv_into(|product| rounded(scale * product));
        let score = |(&key, &product)| options.score([place, key], product, rounded);
        let scores: Array1<f64> = visible.iter().zip(&products).map(score).collect();
        let sink = f64::from(options.sink());
        let m = scores.iter().copied().fold(sink, max_or_nan);
        if m == f64::NEG_INFINITY {
            return None;
        }
        let exponentials = scores.mapv_into(|score| (score - m).exp());
        let of_sink = (sink - m).exp();
        let l = exponentials.sum() + of_sink;
        let p = exponentials.mapv_into(|e| rounded(e / l));
        let mut o = Array1::<f64>::zeros(self.p.dim_v);
        for (p, v) in p.iter().zip(v.rows()) {
            o.scaled_add(*p, &v);
        }
        let o = o.mapv_into(rounded);
        let delta = d_o.dot(&o) - self.d_lse[number];
        let dp = v.dot(&d_o).mapv_into(rounded);
        let ds = (&p * &(&dp - delta)).mapv_into(rounded);

        let pairs = visible.iter().zip(&products);
        let derivatives = pairs.map(|(&key, &product)| options.derivative([place, key], product));
        let derivatives = derivatives.collect();
        let mut row = Row {
            number,
            keys: visible,
            derivatives,
            // Without a sink, or in no sequence, there is no part, whatever the row's d_o.
            d_sink: match options.sink {
                Some(_) if options.sequences.contain(place) => {
                    rounded(-rounded(of_sink / l) * delta)
                }
                _ => 0.0,
            },
            d_sink_error: 0.0,
            o_error: 0.0,
            products,
            p_errors: Array1::zeros(p.len()),
            ds_errors: Array1::zeros(p.len()),
            slope_errors: Array1::zeros(p.len()),
            p,
            ds,
        };
        if round.is_none() {
            let lse = m + l.ln();
            self.add_errors(&mut row, o.view(), lse, delta, &dp);
        }
        Some(row)
    }

    /// How far delta may be off by the rounding of o: in f32, which has no other allowance for it, at the most.
    fn o_error(&self, row: &Row, o: ArrayView1<f64>) -> f64 {
        let [unit, _] = rounding(self.dtype);
        let d_o = self.d_o.row(row.number);
        let independent = norm((&d_o * &o).view());
        match self.dtype {
            Dtype::F32 => unit * (2.0 * d_o.dot(&o).abs() + 2.0 * DEVIATIONS * independent),
            _ => unit * independent,
        }
    }

    /// Finds what sums in f32 may change a row's P and dS by.
    fn add_errors(
        &self,
        row: &mut Row,
        o: ArrayView1<f64>,
        lse: f64,
        delta: f64,
        dp: &Array1<f64>,
    ) {
        let (dim, dim_v, keys) = (self.p.dim, self.p.dim_v, row.p.len());
        let (q, d_o) = (self.q.row(row.number), self.d_o.row(row.number));
        let options = &self.options[row.number / self.p.seqlen_q];
        let place = row.number % self.p.seqlen_q;
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
        let delta_error =
            of_sum(dim_v, d_o_norm * norm(o), delta) + (mean_error + UNIT) * d_o_norm * values;
        row.o_error = self.o_error(row, o);
        // The sums of dq, of dk and of dv, too.
        let sums = UNIT * (16.0 + (keys as f64).sqrt() + (self.q.nrows().max(keys) as f64).sqrt());
        for (j, term) in terms.all[..keys].iter().enumerate() {
            let p = row.p[j];
            let changed = changed(p, term);
            let dp_error = of_sum(dim_v, d_o_norm * value_norms[j], dp[j]);
            row.p_errors[j] = changed + p * sums;
            // A derivative `1 - tanh²` is off by the product, and by roundings near 1.
            row.slope_errors[j] = self.p.softcap.map_or(0.0, |cap| {
                let product = of_sum(dim, q_norm * key_norms[j], row.products[j]);
                let of_product = 2.0 * product / f64::from(cap);
                row.derivatives[j].abs() * of_product.min(1.0) + 2.0 * tanh + 4.0 * UNIT
            });
            row.ds_errors[j] = row.p_errors[j] * (dp[j] - delta).abs()
                + (p + changed).min(1.0) * (dp_error + delta_error);
        }
        if sink.is_finite() && options.sequences.contain(place) {
            let p = (sink - lse).exp();
            let changed = changed(p, &of_sink) + p * UNIT * (24.0 + (keys as f64).sqrt());
            let weight = (p + changed).min(1.0);
            row.d_sink_error = changed * delta.abs() + weight * (delta_error + row.o_error);
        }
    }
}

impl Gradients {
    fn zeros(rows: usize, keys: usize, p: &Problem) -> Self {
        Gradients {
            dq: Sums::zeros([rows, p.dim]),
            dk: Sums::zeros([keys, p.dim]),
            dv: Sums::zeros([keys, p.dim_v]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Reference;
    use crate::forward::Problem;
    use crate::options::Window;
    use crate::options::samples::{Sample, samples_of};
    use crate::tensor::Dtype;
    use ndarray::{Array1, Array2, s};
    use proptest::prelude::*;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};
    use rand_distr::StandardNormal;

    /// Inputs of one key/value head.
    #[derive(Clone)]
    struct Inputs {
        k: Array2<f64>,
        v: Array2<f64>,
        /// `[group * seqlen_q, dim]`.
        q: Array2<f64>,
        d_o: Array2<f64>,
        d_lse: Array1<f64>,
        /// `[group]`, `-inf` where there are none.
        sinks: Array1<f64>,
        /// Added to scores, `[group * seqlen_q, seqlen_kv]`.
        bias: Array2<f64>,
    }

    impl Inputs {
        fn random(sample: &Sample) -> Self {
            let (p, seed) = (&sample.problem, sample.seed);
            let mut rng = StdRng::seed_from_u64(seed);
            let rows = p.group() * p.seqlen_q;
            let mut random = |rows, dim| {
                Array2::from_shape_simple_fn((rows, dim), || rng.sample(StandardNormal))
            };
            Inputs {
                k: random(p.seqlen_kv, p.dim),
                v: random(p.seqlen_kv, p.dim_v),
                q: random(rows, p.dim),
                d_o: random(rows, p.dim_v),
                d_lse: random(rows, 1).remove_axis(ndarray::Axis(1)),
                bias: Array2::zeros((rows, p.seqlen_kv)),
                sinks: (0..p.group()).map(|head| sample.sink(head)).collect(),
            }
        }

        /// `sum(d_o * o) + sum(d_lse * lse)` over the rows of sequences, by plain loops.
        fn loss(&self, sample: &Sample) -> f64 {
            let p = &sample.problem;
            let mut loss = 0.0;
            for (row, q) in self.q.rows().into_iter().enumerate() {
                let i = row % p.seqlen_q;
                let place = |j: usize| [0, row / p.seqlen_q, i, j];
                let visible = (0..p.seqlen_kv).filter(|&j| sample.sees(place(j)));
                let visible: Vec<usize> = visible.collect();
                let product = |j: usize| f64::from(p.scale) * self.k.row(j).dot(&q);
                let score = |j: usize| sample.score(place(j), product(j)) + self.bias[[row, j]];
                let sink = self.sinks[row / p.seqlen_q];
                let sum = visible.iter().map(|&j| score(j).exp()).sum::<f64>() + sink.exp();
                if sum == 0.0 || !sample.is_in_sequence(0, i) {
                    continue;
                }
                let lse = sum.ln();
                for &j in &visible {
                    let weight = (score(j) - lse).exp();
                    loss += weight * self.v.row(j).dot(&self.d_o.row(row));
                }
                loss += self.d_lse[row] * lse;
            }
            loss
        }

        fn reference<'r>(&'r self, sample: &'r Sample) -> Reference<'r> {
            let p = &sample.problem;
            let options = sample.attention().host_options(p).expect("on the CPU");
            let heads = (0..p.heads).map(|head| options.head(p, [0, head]));
            let kv = [self.k.view(), self.v.view()];
            let queries = [self.q.view(), self.d_o.view()];
            Reference::new(
                p,
                heads.collect(),
                Dtype::F32,
                kv,
                queries,
                self.d_lse.view(),
            )
        }

        /// dq, dk and dv of all rows and keys.
        fn gradients(&self, sample: &Sample) -> [Array2<f64>; 3] {
            let [rows, keys] = [&self.q, &self.k].map(|x| (0..x.nrows()).collect::<Vec<_>>());
            let all = self.reference(sample).gradients(&rows, &keys, None);
            [all.dq.exact, all.dk.exact, all.dv.exact]
        }
    }

    /// Samples of one key/value head.
    fn small() -> impl Strategy<Value = Sample> {
        samples_of((Just(1), Just(1), 1..=3_usize, 1..=9_usize, 1..=9_usize))
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn gradients_are_central_differences(sample in small()) {
            let inputs = Inputs::random(&sample);
            let found = inputs.gradients(&sample);
            let tensors: [fn(&mut Inputs) -> &mut Array2<f64>; 3] =
                [|inputs| &mut inputs.q, |inputs| &mut inputs.k, |inputs| &mut inputs.v];
            // Five points: of two, the error is STEP² times the third derivative, thousands under a low softcap.
            const STEP: f64 = 1e-4;
            let expected = |move_by: &dyn Fn(&mut Inputs, f64)| {
                let [down2, down, up, up2] = [-2.0, -1.0, 1.0, 2.0].map(|steps| {
                    let mut moved = inputs.clone();
                    move_by(&mut moved, steps * STEP);
                    moved.loss(&sample)
                });
                (8.0 * (up - down) - (up2 - down2)) / (12.0 * STEP)
            };
            for ((tensor, found), name) in tensors.into_iter().zip(found).zip(["dq", "dk", "dv"]) {
                for (place, found) in found.indexed_iter() {
                    let expected = expected(&|inputs, step| tensor(inputs)[place] += step);
                    prop_assert!(
                        (found - expected).abs() < 1e-6 * (1.0 + expected.abs()),
                        "{name}{place:?} is {found}, not {expected}"
                    );
                }
            }
            let reference = inputs.reference(&sample);
            for number in 0..inputs.q.nrows() {
                let mut found = vec![0.0; inputs.k.nrows()];
                if let Some(row) = reference.row(number, None) {
                    row.keys.iter().zip(&row.ds).for_each(|(&key, ds)| found[key] = *ds);
                }
                for (key, found) in found.into_iter().enumerate() {
                    let expected = expected(&|inputs, step| inputs.bias[[number, key]] += step);
                    prop_assert!(
                        (found - expected).abs() < 1e-6 * (1.0 + expected.abs()),
                        "dS[{number}, {key}] is {found}, not {expected}"
                    );
                }
            }
            for head in 0..sample.problem.heads {
                let seqlen_q = sample.problem.seqlen_q;
                let rows = head * seqlen_q..(head + 1) * seqlen_q;
                let parts = rows.filter_map(|row| reference.row(row, None));
                let found: f64 = parts.map(|row| row.d_sink).sum();
                let expected = expected(&|inputs, step| inputs.sinks[head] += step);
                prop_assert!(
                    (found - expected).abs() < 1e-6 * (1.0 + expected.abs()),
                    "d_sinks[{head}] is {found}, not {expected}"
                );
            }
        }

        /// Some rows and keys give the same numbers as all of them.
        #[test]
        fn rows_and_keys_may_be_chosen(sample in small()) {
            let inputs = Inputs::random(&sample);
            let all = inputs.gradients(&sample);
            let every_third = |x: &Array2<f64>| (0..x.nrows()).step_by(3).collect::<Vec<_>>();
            let [rows, keys] = [&inputs.q, &inputs.k].map(every_third);
            let reference = inputs.reference(&sample);
            let some = reference.gradients(&rows, &keys, None);
            for (some, all) in [some.dq, some.dk, some.dv].map(|some| some.exact).into_iter().zip(&all) {
                prop_assert_eq!(some, all.slice(s![..;3, ..]));
            }
            let rows_alone = reference.gradients(&rows, &[], None).dq.exact;
            prop_assert_eq!(rows_alone, all[0].slice(s![..;3, ..]));
        }
    }

    /// Hidden pairs have no part in any gradient, whatever they hold, nor have rows that see no key.
    #[test]
    fn nan_stays_where_the_mask_hides_it() {
        let p = Problem {
            batch: 1,
            heads: 1,
            kv_heads: 1,
            seqlen_q: 5,
            seqlen_kv: 3,
            dim: 8,
            dim_v: 8,
            causal: true,
            scale: 0.5,
            window: Window::NONE,
            softcap: None,
        };
        let sample = Sample::from(p);
        let right = Inputs::random(&sample).gradients(&sample);
        let with_nan = |spoil: fn(&mut Inputs)| {
            let mut inputs = Inputs::random(&sample);
            spoil(&mut inputs);
            inputs.gradients(&sample)
        };
        // Rows 0 and 1 see no key.
        let blind = with_nan(|inputs| {
            inputs.q.slice_mut(s![..2, ..]).fill(f64::NAN);
            inputs.d_o.slice_mut(s![..2, ..]).fill(f64::INFINITY);
            inputs.d_lse.slice_mut(s![..2]).fill(f64::NAN);
        });
        assert_eq!(blind, right);
        assert!(right[0].slice(s![..2, ..]).iter().all(|&dq| dq == 0.0));
        // Row 4 alone sees key 2.
        let last = with_nan(|inputs| inputs.v[[2, 3]] = f64::NAN);
        let not_finite = last.map(|tensor| {
            let rows = tensor.rows().into_iter().enumerate();
            let wrong = rows.filter(|(_, row)| row.iter().any(|x| !x.is_finite()));
            wrong.map(|(row, _)| row).collect::<Vec<_>>()
        });
        assert_eq!(not_finite, [vec![4], vec![0, 1, 2], vec![]]);
    }
}
