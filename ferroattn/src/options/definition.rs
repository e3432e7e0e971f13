//! Results of both passes by their definition, pair by pair, with the sizes of what they are sums of.

use super::passes::Passes;
use crate::tensor::Element;

/// An element by its definition.
#[derive(Clone, Copy, Default)]
pub(super) struct Sum {
    pub value: f64,
    /// Sum of the squares of its terms.
    pub squares: f64,
    /// Sum of the sizes of its terms.
    pub sizes: f64,
    /// Sum of the sizes that one error of several terms counts by.
    pub shared: f64,
}

impl Sum {
    /// Adds a term, and a size that other terms share their errors by.
    pub fn add(&mut self, term: f64, shared: f64) {
        self.value += term;
        self.squares += term * term;
        self.sizes += term.abs();
        self.shared += shared.abs();
    }

    /// The size by which roundings of independent terms count.
    pub fn independent(self) -> f64 {
        self.value.abs() + self.squares.sqrt() + self.shared
    }

    /// The size by which roundings of all terms to one side count.
    pub fn in_all(self) -> f64 {
        self.value.abs() + self.sizes + self.shared
    }
}

/// Results by their definition, pair by pair.
pub(super) struct Definition {
    pub o: Vec<Sum>,
    pub lse: Vec<f64>,
    pub dq: Vec<Sum>,
    pub dk: Vec<Sum>,
    pub dv: Vec<Sum>,
    pub d_bias: Vec<Sum>,
    /// A query and a key that it sees: the query's row, the key's, the weight, dS, and dS for the product.
    pub pairs: Vec<Shared>,
}

#[derive(Clone, Copy)]
pub(super) struct Shared {
    pub place: [usize; 4],
    pub row: usize,
    pub key: usize,
    pub p: f64,
    pub ds: f64,
    pub by_product: f64,
}

impl Definition {
    pub fn new<T: Element>(passes: &Passes<T>) -> Self {
        let p = &passes.sample.problem;
        let wide = |data: &[T]| -> Vec<f64> { data.iter().map(|x| x.to_f32().into()).collect() };
        let [q, k, v, d_o] = [&passes.q, &passes.k, &passes.v, &passes.d_o].map(|data| wide(data));
        let dot = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
        let zeros = |len: usize| vec![Sum::default(); len];
        let mut found = Definition {
            o: zeros(passes.o.len()),
            lse: vec![],
            dq: zeros(q.len()),
            dk: zeros(k.len()),
            dv: zeros(v.len()),
            d_bias: zeros(passes.d_bias.as_ref().map_or(0, |(_, d_bias)| d_bias.len())),
            pairs: vec![],
        };
        let (dim, dim_v, scale) = (p.dim, p.dim_v, f64::from(p.scale));
        for row in 0..p.batch * p.heads * p.seqlen_q {
            let [b, h, i] = [
                row / p.seqlen_q / p.heads,
                row / p.seqlen_q % p.heads,
                row % p.seqlen_q,
            ];
            let first = (b * p.kv_heads + p.kv_head(h)) * p.seqlen_kv;
            let [q, d_o] = [&q[row * dim..][..dim], &d_o[row * dim_v..][..dim_v]];
            let product = |j: usize| scale * dot(q, &k[(first + j) * dim..][..dim]);
            let score = |j: usize| passes.sample.score([b, h, i, j], product(j));
            // A bias may hide keys, too.
            let sees =
                |&j: &usize| passes.sample.sees([b, h, i, j]) && score(j) > f64::NEG_INFINITY;
            let seen: Vec<usize> = (0..p.seqlen_kv).filter(sees).collect();
            let scores: Vec<f64> = seen.iter().map(|&j| score(j)).collect();
            let sink = passes.sample.sink(h);
            let most = scores.iter().copied().fold(sink, f64::max);
            let above = |score: &f64| (score - most).exp();
            let sum: f64 = scores.iter().chain([&sink]).map(above).sum();
            let weight = |score: &f64| above(score) / sum;
            let lse = match most {
                f64::NEG_INFINITY => most,
                _ => most + sum.ln(),
            };
            found.lse.push(lse);
            let values: Vec<&[f64]> = seen
                .iter()
                .map(|j| &v[(first + j) * dim_v..][..dim_v])
                .collect();
            let o = &mut found.o[row * dim_v..][..dim_v];
            for (score, value) in scores.iter().zip(&values) {
                o.iter_mut().zip(*value).for_each(|(o, v)| {
                    let term = weight(score) * v;
                    o.add(term, 0.0)
                });
            }
            let o: Vec<f64> = o.iter().map(|o| o.value).collect();
            // delta is off by the roundings of o, and of the weights that it is made of.
            let of_o = d_o.iter().zip(&o).map(|(d_o, o)| d_o * o);
            let of_p = scores
                .iter()
                .zip(&values)
                .map(|(score, value)| weight(score) * dot(d_o, value));
            let of_delta = [of_o.collect::<Vec<_>>(), of_p.collect()].map(|terms| {
                let sum: f64 = terms.iter().sum();
                sum.abs() + dot(&terms, &terms).sqrt()
            });
            let of_delta = of_delta[0].max(of_delta[1]);
            let delta = dot(d_o, &o) - f64::from(passes.d_lse[row]);
            for ((&j, score), value) in seen.iter().zip(&scores).zip(&values) {
                let weight = weight(score);
                if weight == 0.0 {
                    continue;
                }
                let ds = weight * (dot(d_o, value) - delta);
                let slope = p.softcap.map_or(1.0, |cap| {
                    1.0 - (product(j) / f64::from(cap)).tanh().powi(2)
                });
                let shared = Shared {
                    place: [b, h, i, j],
                    row,
                    key: first + j,
                    p: weight,
                    ds,
                    by_product: scale * slope * ds,
                };
                found.pairs.push(shared);
                let of =
                    |sums: &mut [Sum], place: usize, [factor, shared]: [f64; 2], row: &[f64]| {
                        let sums = sums[place * row.len()..].iter_mut();
                        sums.zip(row)
                            .for_each(|(sum, x)| sum.add(factor * x, shared * x));
                    };
                let of_delta = weight * of_delta;
                let by_product = [shared.by_product, scale * slope * of_delta];
                of(
                    &mut found.dq,
                    row,
                    by_product,
                    &k[shared.key * dim..][..dim],
                );
                of(&mut found.dk, shared.key, by_product, q);
                of(&mut found.dv, shared.key, [weight, 0.0], d_o);
                if let Some((shape, _)) = &passes.d_bias {
                    found.d_bias[place_in(*shape, shared.place)].add(ds, of_delta);
                }
            }
        }
        found
    }
}

/// The place of a pair in a tensor that repeats axes of one element.
pub(super) fn place_in(shape: [usize; 4], pair: [usize; 4]) -> usize {
    let axes = shape.iter().zip(pair);
    axes.fold(0, |place, (&extent, index)| {
        place * extent + index.min(extent - 1)
    })
}
