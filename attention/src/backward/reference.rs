//! The gradients in `f64` by their definition, the standard of every check, and the plain algorithm that rounds to
//! the element type after each step, the measure of how close a result can come.
//!
//! Both begin at q, k and v: neither reads the o and lse of the forward pass that they check the gradients of.

use crate::comparison::{half_unit, max_finite};
use crate::forward::Problem;
use crate::forward::reference::max_or_nan;
use crate::options::{Head, rows_of, tanh_error};
use crate::tensor::Dtype;
use ndarray::{Array1, Array2, ArrayView1, ArrayView2, Axis};
use rayon::prelude::*;

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
    keys: Sizes,
    values: Sizes,
}

/// Rows of gradients, and how far sums in f32 [may](super::check) take the elements of each row.
pub(crate) struct Gradients {
    pub dq: Array2<f64>,
    pub dk: Array2<f64>,
    pub dv: Array2<f64>,
    pub dq_sums: Array1<f64>,
    pub dk_sums: Array1<f64>,
    pub dv_sums: Array1<f64>,
}

/// Norms and largest elements of rows.
struct Sizes {
    norms: Array1<f64>,
    elements: Array1<f64>,
}

impl Sizes {
    fn of(rows: ArrayView2<f64>) -> Self {
        Sizes {
            norms: rows.map_axis(Axis(1), norm),
            elements: rows.map_axis(Axis(1), largest),
        }
    }
}

fn norm(row: ArrayView1<f64>) -> f64 {
    row.dot(&row).sqrt()
}

/// The largest finite element.
fn largest(row: ArrayView1<f64>) -> f64 {
    max_finite(row.mapv(f64::abs))
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
    /// Allowance for the sink's part, by these sums and the rounding of o in delta.
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
            keys: Sizes::of(k),
            values: Sizes::of(v),
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
            sum.dk_sums += &part.dk_sums;
            sum.dv_sums += &part.dv_sums;
            sum.dq
                .append(Axis(0), part.dq.view())
                .expect("as many columns");
            sum.dq_sums
                .append(Axis(0), part.dq_sums.view())
                .expect("one axis");
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
            let by_product = |seen: usize| scale * row.ds[seen] * row.derivatives[seen];
            let moved_by_product =
                |seen: usize| scale.abs() * row.ds_errors[seen] * row.derivatives[seen];
            if let Ok(place) = rows.binary_search(&number) {
                let mut dq = part.dq.row_mut(place);
                for (seen, &key) in row.keys.iter().enumerate() {
                    dq.scaled_add(by_product(seen), &self.k.row(key));
                    part.dq_sums[place] += moved_by_product(seen) * self.keys.elements[key];
                }
            }
            let [q_size, d_o_size] = [q, d_o].map(largest);
            for (place, &key) in keys.iter().enumerate() {
                let Ok(seen) = row.keys.binary_search(&key) else {
                    continue;
                };
                part.dv.row_mut(place).scaled_add(row.p[seen], &d_o);
                part.dk.row_mut(place).scaled_add(by_product(seen), &q);
                part.dv_sums[place] += row.p_errors[seen] * d_o_size;
                part.dk_sums[place] += moved_by_product(seen) * q_size;
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
            o_error: half_unit(self.dtype, 1.0) * norm((&d_o * &o).view()),
            products,
            p_errors: Array1::zeros(p.len()),
            ds_errors: Array1::zeros(p.len()),
            p,
            ds,
        };
        if round.is_none() {
            let lse = m + l.ln();
            self.add_errors(&mut row, o.view(), lse, delta, &dp);
        }
        Some(row)
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
            [&self.keys, &self.values].map(|all| all.norms.select(Axis(0), &row.keys));
        let tanh = tanh_error(self.dtype);
        let (q_norm, d_o_norm) = (f64::from(self.p.scale).abs() * norm(q), norm(d_o));
        let (mut mean_error, mut mean_norm) = (0.0, 0.0);
        for (j, &p) in row.p.iter().enumerate().filter(|(_, p)| **p > 0.0) {
            let score = lse + p.ln();
            let product = row.derivatives[j] * of_sum(dim, q_norm * key_norms[j], row.products[j]);
            let of_options = options.error([place, row.keys[j]], row.products[j], tanh);
            row.p_errors[j] = product + of_options + UNIT * score.abs();
            mean_error += p * row.p_errors[j];
            mean_norm += p * value_norms[j];
        }
        let lse_error = mean_error + UNIT * (lse.abs() + (keys as f64).sqrt() + 8.0);
        let delta_error =
            of_sum(dim_v, d_o_norm * norm(o), delta) + (mean_error + UNIT) * d_o_norm * mean_norm;
        // The sums of dq, of dk and of dv, too.
        let sums = UNIT * (8.0 + (self.q.nrows().max(keys) as f64).sqrt());
        for (j, &p) in row.p.iter().enumerate().filter(|(_, p)| **p > 0.0) {
            let relative = row.p_errors[j] + lse_error + sums;
            let dp_error = of_sum(dim_v, d_o_norm * value_norms[j], dp[j]);
            row.p_errors[j] = p * relative;
            row.ds_errors[j] = p * (relative * (dp[j] - delta).abs() + dp_error + delta_error);
        }
        let sink = f64::from(options.sink());
        if sink.is_finite() && options.sequences.contain(place) {
            let relative = lse_error + UNIT * (4.0 * sink.abs() + 8.0);
            let of_delta = delta_error + row.o_error;
            row.d_sink_error = (sink - lse).exp() * (relative * delta.abs() + of_delta);
        }
    }
}

impl Gradients {
    fn zeros(rows: usize, keys: usize, p: &Problem) -> Self {
        Gradients {
            dq: Array2::zeros((rows, p.dim)),
            dk: Array2::zeros((keys, p.dim)),
            dv: Array2::zeros((keys, p.dim_v)),
            dq_sums: Array1::zeros(rows),
            dk_sums: Array1::zeros(keys),
            dv_sums: Array1::zeros(keys),
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
            [all.dq, all.dk, all.dv]
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
            for (some, all) in [some.dq, some.dk, some.dv].into_iter().zip(&all) {
                prop_assert_eq!(some, all.slice(s![..;3, ..]));
            }
            let rows_alone = reference.gradients(&rows, &[], None).dq;
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
