//! The gradients in `f64` by their definition, the standard of every check, and the plain algorithm that rounds to
//! the element type after each step, the measure of how close a result can come.
//!
//! Both begin at q, k and v: neither reads the o and lse of the forward pass that they check the gradients of.

use super::bounds::{Errors, Factor, norm};
use crate::forward::Problem;
use crate::forward::reference::max_or_nan;
use crate::options::Head;
use crate::rows::{add_scaled, elements, rows_of, slice_of};
use crate::tensor::Dtype;
use ndarray::{Array1, Array2, ArrayView1, ArrayView2, Axis};
use rayon::prelude::*;
use std::ops::AddAssign;

/// Parts of the rows that are summed at once, whatever the number of threads: sums have one order.
const PARTS: usize = 16;
/// Rows of a part at least: it has sums of its own for all keys.
const ROWS: usize = 32;

/// A key/value head, and what it gives the query heads that it serves.
pub(crate) struct Reference<'a> {
    pub(super) p: &'a Problem,
    /// Options of the query heads.
    pub(super) options: Vec<Head<'a>>,
    /// Element type of the call that is checked.
    pub(super) dtype: Dtype,
    k: ArrayView2<'a, f64>,
    v: ArrayView2<'a, f64>,
    /// `[group * seqlen_q, dim]`.
    pub(super) q: ArrayView2<'a, f64>,
    /// `[group * seqlen_q, dim_v]`.
    pub(super) d_o: ArrayView2<'a, f64>,
    /// `[group * seqlen_q]`.
    d_lse: ArrayView1<'a, f64>,
    pub(super) key_norms: Array1<f64>,
    pub(super) value_norms: Array1<f64>,
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
    /// How far sums in f32 [may](super::check) take each element.
    pub errors: Array2<f64>,
    /// How far roundings to the element type may.
    pub roundings: Array2<f64>,
}

impl Sums {
    fn zeros(shape: [usize; 2]) -> Self {
        let [exact, errors, roundings] = [(); 3].map(|()| Array2::zeros(shape));
        Sums {
            exact,
            errors,
            roundings,
        }
    }

    /// Adds `factor` times a row.
    fn add(&mut self, place: usize, factor: Factor, row: ArrayView1<f64>) {
        let row = elements(&row);
        let [exact, errors, roundings] = self.parts_mut().map(|all| {
            let all = all.as_slice_mut().expect("row-major");
            &mut all[place * row.len()..][..row.len()]
        });
        if !(factor.error > 0.0 || factor.rounding > 0.0) {
            return add_scaled(exact, factor.value, row);
        }
        let sums = exact.iter_mut().zip(errors).zip(roundings);
        for (((exact, error), rounding), x) in sums.zip(row) {
            *exact += factor.value * x;
            *error += factor.error * x.abs();
            *rounding += factor.rounding * x.abs();
        }
    }

    fn append(&mut self, below: &Self) {
        for (all, below) in self.parts_mut().into_iter().zip(below.parts()) {
            all.append(Axis(0), below.view()).expect("as many columns");
        }
    }

    fn parts(&self) -> [&Array2<f64>; 3] {
        [&self.exact, &self.errors, &self.roundings]
    }

    fn parts_mut(&mut self) -> [&mut Array2<f64>; 3] {
        [&mut self.exact, &mut self.errors, &mut self.roundings]
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

/// A query row and the keys that it sees.
pub(crate) struct Row {
    pub keys: Vec<usize>,
    /// Scaled products with the keys.
    pub(super) products: Array1<f64>,
    pub p: Array1<f64>,
    pub ds: Array1<f64>,
    /// Derivatives of scores by scaled products.
    pub(super) derivatives: Array1<f64>,
    /// The row's part in the gradient of its sink.
    pub d_sink: f64,
    /// None of the plain algorithm, which rounds.
    pub errors: Option<Errors>,
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
        let parts = visited.par_chunks(visited.len().div_ceil(PARTS).max(ROWS));
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

    /// The part of the rows `visited`: dq of the rows among `rows`, and their part in dk and dv of `keys`.
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
            let of_dq = rows.binary_search(&number).ok();
            // Both ascend.
            let mut places = keys.iter().enumerate().peekable();
            for (seen, &key) in row.keys.iter().enumerate() {
                while places.next_if(|&(_, wanted)| *wanted < key).is_some() {}
                let of_key = places.next_if(|&(_, wanted)| *wanted == key);
                if of_dq.is_none() && of_key.is_none() {
                    continue;
                }
                let of_product = row.of_product(seen, scale);
                if let Some(place) = of_dq {
                    part.dq.add(place, of_product, self.k.row(key));
                }
                if let Some((place, _)) = of_key {
                    part.dv.add(place, row.of_p(seen), d_o);
                    part.dk.add(place, of_product, q);
                }
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
            add_scaled(slice_of(&mut o), *p, elements(&v));
        }
        let o = o.mapv_into(rounded);
        let delta = d_o.dot(&o) - self.d_lse[number];
        let dp = v.dot(&d_o).mapv_into(rounded);
        let ds = (&p * &(&dp - delta)).mapv_into(rounded);

        let pairs = visible.iter().zip(&products);
        let derivatives = pairs.map(|(&key, &product)| options.derivative([place, key], product));
        let derivatives = derivatives.collect();
        let mut row = Row {
            keys: visible,
            derivatives,
            // Without a sink, or in no sequence, there is no part, whatever the row's d_o.
            d_sink: match options.sink {
                Some(_) if options.sequences.contain(place) => {
                    rounded(-rounded(of_sink / l) * delta)
                }
                _ => 0.0,
            },
            errors: None,
            products,
            p,
            ds,
        };
        if round.is_none() {
            let lse = m + l.ln();
            row.errors = Some(self.errors(number, &row, o.view(), [lse, delta], &dp));
        }
        Some(row)
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
