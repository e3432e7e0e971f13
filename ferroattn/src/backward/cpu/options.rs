//! Gradients of options' tensors.

use super::{BC, Inputs, Keys, Pairs, Products, Queries, blocks_of_queries};
use crate::forward::Problem;
use crate::tensor::Element;
use ndarray::{Array2, ArrayViewMut4, Axis, s};
use rayon::prelude::*;

/// Computes the gradient of the sink of each head: `-exp(sink - lse) delta`, summed over the rows of sequences with a
/// finite lse.
pub fn d_sinks<T: Element>(p: &Problem, inputs: &Inputs<T>) -> Vec<f32> {
    let of_head = |head: usize| {
        let of_entry = |batch| {
            let options = inputs.options.head(p, [batch, head]);
            let blocks = blocks_of_queries(&options).into_iter();
            let terms = blocks.flat_map(|(rows, sequence)| {
                let queries = Queries::new(p, inputs, [batch, head], rows, &sequence);
                let rows = queries.sums.into_iter().zip(queries.delta);
                let live = rows.filter(|(sum, _)| sum.max != f32::NEG_INFINITY);
                let terms = live.map(|(sum, delta)| {
                    let weight = (options.sink() - sum.max - sum.log_sum).exp();
                    -f64::from(weight) * f64::from(delta)
                });
                terms.collect::<Vec<_>>()
            });
            terms.sum::<f64>()
        };
        (0..p.batch).map(of_entry).sum::<f64>() as f32
    };
    (0..p.heads).into_par_iter().map(of_head).collect()
}

/// Computes the gradient of the bias: dS, summed over the axes in which `d_bias` has extent 1.
pub fn d_bias<T: Element>(p: &Problem, inputs: &Inputs<T>, mut d_bias: ArrayViewMut4<f32>) {
    let [of_batch, of_heads, of_rows, _] = d_bias.dim().into();
    // The entries or heads that an index of the gradient sums up.
    let summed = |extent: usize, index: usize, all: usize| match extent {
        1 => 0..all,
        _ => index..index + 1,
    };
    let mut parts: Vec<_> = d_bias
        .axis_chunks_iter_mut(Axis(3), BC)
        .enumerate()
        .collect();
    parts
        .par_iter_mut()
        .for_each_init(Products::new, |products, (part, d_bias)| {
            let columns = *part * BC..*part * BC + d_bias.len_of(Axis(3));
            for (batch, head) in (0..of_batch).flat_map(|b| (0..of_heads).map(move |h| (b, h))) {
                let mut sum = Array2::<f64>::zeros((of_rows, columns.len()));
                let heads = summed(of_heads, head, p.heads);
                for head in summed(of_batch, batch, p.batch)
                    .flat_map(|b| heads.clone().map(move |h| [b, h]))
                {
                    let options = inputs.options.head(p, head);
                    let [k, v] = [&inputs.k, &inputs.v]
                        .map(|tensor| tensor.slice(s![head[0], p.kv_head(head[1]), .., ..]));
                    let keys = Keys::new(columns.clone(), k, v);
                    for (rows, sequence) in blocks_of_queries(&options) {
                        let queries = Queries::new(p, inputs, head, rows, &sequence);
                        for pairs in Pairs::visible(&options, &queries, &keys) {
                            products.probabilities(&options, &queries, &keys, &pairs);
                            products.score_gradients(&options, &queries, &keys.v, &pairs);
                            let ds = pairs.of(&mut products.s);
                            for (row, ds) in pairs.places[0].clone().zip(ds.rows()) {
                                let row = row.min(of_rows - 1);
                                let mut sum = sum.slice_mut(s![row, pairs.columns.clone()]);
                                sum.zip_mut_with(&ds, |sum, ds| *sum += f64::from(*ds));
                            }
                        }
                    }
                }
                let sum = sum.mapv_into_any(|sum: f64| sum as f32);
                d_bias.slice_mut(s![batch, head, .., ..]).assign(&sum);
            }
        });
}
