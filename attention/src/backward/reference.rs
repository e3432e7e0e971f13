//! The gradients in `f64` by their definition, the standard of every check, and the plain algorithm that rounds to
//! the element type after each step, the measure of how close a result can come.
//!
//! Both begin at q, k and v: neither reads the o and lse of the forward pass that they check the gradients of.

use crate::comparison::max_finite;
use crate::forward::Problem;
use crate::forward::reference::max_or_nan;
use ndarray::{Array1, Array2, ArrayView1, ArrayView2, Axis, s};
use rayon::prelude::*;

/// Half a unit in the last place of f32, relative to numbers of any size.
const UNIT: f64 = 1.0 / (1 << 24) as f64;
/// Parts of the rows that are summed at once, whatever the number of threads: sums have one order.
const PARTS: usize = 16;

/// A key/value head, and what it gives the query heads that it serves.
pub(crate) struct Reference<'a> {
    p: &'a Problem,
    k: ArrayView2<'a, f64>,
    v: ArrayView2<'a, f64>,
    /// `[group * seqlen_q, dim]`.
    q: ArrayView2<'a, f64>,
    /// `[group * seqlen_q, dim]`.
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
struct Row {
    p: Array1<f64>,
    ds: Array1<f64>,
    /// What sums in f32 may change elements of P by.
    p_errors: Array1<f64>,
    /// What they may change elements of dS by.
    ds_errors: Array1<f64>,
}

impl<'a> Reference<'a> {
    /// k and v are `[seqlen_kv, dim]`; q and d_o are `[group * seqlen_q, dim]`, the heads one after the other, and d_lse
    /// is `[group * seqlen_q]`.
    pub fn new(
        p: &'a Problem,
        [k, v]: [ArrayView2<'a, f64>; 2],
        [q, d_o]: [ArrayView2<'a, f64>; 2],
        d_lse: ArrayView1<'a, f64>,
    ) -> Self {
        Reference {
            p,
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
        let mut sum = Gradients::zeros(0, keys.len(), self.p.dim);
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

    /// What the rows `visited` give: dq of those among `rows`, and their part in dk and dv of `keys`.
    fn part(
        &self,
        visited: &[usize],
        rows: &[usize],
        keys: &[usize],
        round: Option<fn(f64) -> f64>,
    ) -> Gradients {
        let scale = f64::from(self.p.scale);
        let mut part = Gradients::zeros(rows.len(), keys.len(), self.p.dim);
        for &number in visited {
            let Some(row) = self.row(number, round) else {
                continue;
            };
            let (q, d_o) = (self.q.row(number), self.d_o.row(number));
            if let Ok(place) = rows.binary_search(&number) {
                let mut dq = part.dq.row_mut(place);
                for (ds, k) in row.ds.iter().zip(self.k.rows()) {
                    dq.scaled_add(scale * ds, &k);
                }
                let moved = row.ds_errors.iter().zip(&self.keys.elements);
                let moved: f64 = moved.map(|(error, k)| error * k).sum();
                part.dq_sums[place] = scale.abs() * moved;
            }
            let [q_size, d_o_size] = [q, d_o].map(largest);
            for (place, &key) in keys.iter().enumerate() {
                if key >= row.p.len() {
                    break;
                }
                part.dv.row_mut(place).scaled_add(row.p[key], &d_o);
                part.dk.row_mut(place).scaled_add(scale * row.ds[key], &q);
                part.dv_sums[place] += row.p_errors[key] * d_o_size;
                part.dk_sums[place] += scale.abs() * row.ds_errors[key] * q_size;
            }
        }
        part
    }

    /// P and dS of row `number`; `None` if it sees no key with a finite score.
    fn row(&self, number: usize, round: Option<fn(f64) -> f64>) -> Option<Row> {
        let rounded = |x| round.map_or(x, |round| round(x));
        let visible = ..self.p.key_limit(number % self.p.seqlen_q);
        let [k, v] = [self.k, self.v].map(|all| all.slice_move(s![visible, ..]));
        let (q, d_o) = (self.q.row(number), self.d_o.row(number));
        let scale = f64::from(self.p.scale);
        let scores = k.dot(&q).mapv_into(|product| rounded(scale * product));
        let m = scores.iter().copied().fold(f64::NEG_INFINITY, max_or_nan);
        if m == f64::NEG_INFINITY {
            return None;
        }
        let exponentials = scores.mapv_into(|score| (score - m).exp());
        let l = exponentials.sum();
        let p = exponentials.mapv_into(|e| rounded(e / l));
        let mut o = Array1::<f64>::zeros(self.p.dim);
        for (p, v) in p.iter().zip(v.rows()) {
            o.scaled_add(*p, &v);
        }
        let o = o.mapv_into(rounded);
        let delta = d_o.dot(&o) - self.d_lse[number];
        let dp = v.dot(&d_o).mapv_into(rounded);
        let ds = (&p * &(&dp - delta)).mapv_into(rounded);

        let mut row = Row {
            p_errors: Array1::zeros(p.len()),
            ds_errors: Array1::zeros(p.len()),
            p,
            ds,
        };
        if round.is_none() {
            self.add_errors(&mut row, [q, d_o, o.view()], m + l.ln(), delta, &dp);
        }
        Some(row)
    }

    /// Finds what sums in f32 may change a row's P and dS by.
    fn add_errors(
        &self,
        row: &mut Row,
        [q, d_o, o]: [ArrayView1<f64>; 3],
        lse: f64,
        delta: f64,
        dp: &Array1<f64>,
    ) {
        let (dim, keys) = (self.p.dim, row.p.len());
        let (q_norm, d_o_norm) = (f64::from(self.p.scale).abs() * norm(q), norm(d_o));
        let (mut mean_error, mut mean_norm) = (0.0, 0.0);
        for (j, &p) in row.p.iter().enumerate().filter(|(_, p)| **p > 0.0) {
            let score = lse + p.ln();
            let product = of_sum(dim, q_norm * self.keys.norms[j], score);
            row.p_errors[j] = product + UNIT * score.abs();
            mean_error += p * row.p_errors[j];
            mean_norm += p * self.values.norms[j];
        }
        let lse_error = mean_error + UNIT * (lse.abs() + (keys as f64).sqrt() + 8.0);
        let delta_error =
            of_sum(dim, d_o_norm * norm(o), delta) + (mean_error + UNIT) * d_o_norm * mean_norm;
        // The sums of dq, of dk and of dv, too.
        let sums = UNIT * (8.0 + (self.q.nrows().max(keys) as f64).sqrt());
        for (j, &p) in row.p.iter().enumerate().filter(|(_, p)| **p > 0.0) {
            let relative = row.p_errors[j] + lse_error + sums;
            let dp_error = of_sum(dim, d_o_norm * self.values.norms[j], dp[j]);
            row.p_errors[j] = p * relative;
            row.ds_errors[j] = p * (relative * (dp[j] - delta).abs() + dp_error + delta_error);
        }
    }
}

impl Gradients {
    fn zeros(rows: usize, keys: usize, dim: usize) -> Self {
        Gradients {
            dq: Array2::zeros((rows, dim)),
            dk: Array2::zeros((keys, dim)),
            dv: Array2::zeros((keys, dim)),
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
    use ndarray::{Array1, Array2, s};
    use proptest::prelude::*;
    use proptest::sample::select;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};
    use rand_distr::StandardNormal;

    /// Inputs of one key/value head.
    #[derive(Clone)]
    struct Inputs {
        k: Array2<f64>,
        v: Array2<f64>,
        /// `[group * seqlen_q, dim]`, as d_o is.
        q: Array2<f64>,
        d_o: Array2<f64>,
        d_lse: Array1<f64>,
    }

    impl Inputs {
        fn random(p: &Problem, seed: u64) -> Self {
            let mut rng = StdRng::seed_from_u64(seed);
            let rows = p.group() * p.seqlen_q;
            let mut random = |rows, dim| {
                Array2::from_shape_simple_fn((rows, dim), || rng.sample(StandardNormal))
            };
            Inputs {
                k: random(p.seqlen_kv, p.dim),
                v: random(p.seqlen_kv, p.dim),
                q: random(rows, p.dim),
                d_o: random(rows, p.dim),
                d_lse: random(rows, 1).remove_axis(ndarray::Axis(1)),
            }
        }

        /// `sum(d_o * o) + sum(d_lse * lse)`, by plain loops.
        fn loss(&self, p: &Problem) -> f64 {
            let mut loss = 0.0;
            for (row, q) in self.q.rows().into_iter().enumerate() {
                let i = row % p.seqlen_q;
                let sees = |j: usize| !p.causal || j + p.seqlen_q <= i + p.seqlen_kv;
                let visible: Vec<usize> = (0..p.seqlen_kv).filter(|&j| sees(j)).collect();
                if visible.is_empty() {
                    continue;
                }
                let score = |j: usize| f64::from(p.scale) * self.k.row(j).dot(&q);
                let lse = visible.iter().map(|&j| score(j).exp()).sum::<f64>().ln();
                for &j in &visible {
                    let weight = (score(j) - lse).exp();
                    loss += weight * self.v.row(j).dot(&self.d_o.row(row));
                }
                loss += self.d_lse[row] * lse;
            }
            loss
        }

        /// dq, dk and dv of all rows and keys.
        fn gradients(&self, p: &Problem) -> [Array2<f64>; 3] {
            let [rows, keys] = [&self.q, &self.k].map(|x| (0..x.nrows()).collect::<Vec<_>>());
            let kv = [self.k.view(), self.v.view()];
            let queries = [self.q.view(), self.d_o.view()];
            let reference = Reference::new(p, kv, queries, self.d_lse.view());
            let all = reference.gradients(&rows, &keys, None);
            [all.dq, all.dk, all.dv]
        }
    }

    fn problems() -> impl Strategy<Value = Problem> {
        let sizes = (1..=9_usize, 1..=9_usize, 1..=3_usize);
        let scales = select(vec![-1.5_f32, -0.3, 0.0, 0.35, 1.0]);
        (sizes, any::<bool>(), scales).prop_map(|((seqlen_q, seqlen_kv, heads), causal, scale)| {
            Problem {
                batch: 1,
                heads,
                kv_heads: 1,
                seqlen_q,
                seqlen_kv,
                dim: 8,
                causal,
                scale,
            }
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn gradients_are_central_differences(p in problems(), seed: u64) {
            let inputs = Inputs::random(&p, seed);
            let found = inputs.gradients(&p);
            let tensors: [fn(&mut Inputs) -> &mut Array2<f64>; 3] =
                [|inputs| &mut inputs.q, |inputs| &mut inputs.k, |inputs| &mut inputs.v];
            for ((tensor, found), name) in tensors.into_iter().zip(found).zip(["dq", "dk", "dv"]) {
                for (place, found) in found.indexed_iter() {
                    let loss = |step: f64| {
                        let mut moved = inputs.clone();
                        tensor(&mut moved)[place] += step;
                        moved.loss(&p)
                    };
                    const STEP: f64 = 1e-4;
                    let expected = (loss(STEP) - loss(-STEP)) / (2.0 * STEP);
                    prop_assert!(
                        (found - expected).abs() < 1e-6 * (1.0 + expected.abs()),
                        "{name}{place:?} is {found}, not {expected}"
                    );
                }
            }
        }

        /// Some rows and keys give the same numbers as all of them.
        #[test]
        fn rows_and_keys_may_be_chosen(p in problems(), seed: u64) {
            let inputs = Inputs::random(&p, seed);
            let all = inputs.gradients(&p);
            let every_third = |x: &Array2<f64>| (0..x.nrows()).step_by(3).collect::<Vec<_>>();
            let [rows, keys] = [&inputs.q, &inputs.k].map(every_third);
            let kv = [inputs.k.view(), inputs.v.view()];
            let queries = [inputs.q.view(), inputs.d_o.view()];
            let reference = Reference::new(&p, kv, queries, inputs.d_lse.view());
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
            causal: true,
            scale: 0.5,
        };
        let right = Inputs::random(&p, 0).gradients(&p);
        let with_nan = |spoil: fn(&mut Inputs)| {
            let mut inputs = Inputs::random(&p, 0);
            spoil(&mut inputs);
            inputs.gradients(&p)
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
