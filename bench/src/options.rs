//! Tensors of a call's options.

use crate::shape::Shape;
use ferroattn::{Attention, Device, Element, Error, Problem, Result, Tensor, alibi_slopes, random};

/// Slopes, sinks, bias, mask, offsets, lengths and pages of a shape, on a device, where it has them.
pub struct Options<T> {
    alibi: Option<Tensor<f32, 1>>,
    pub sinks: Option<Tensor<f32, 1>>,
    pub bias: Option<Tensor<T>>,
    mask: Option<Tensor<u8>>,
    offsets: Option<Tensor<i32, 1>>,
    /// Queries and keys of each entry of the batch.
    lengths: Option<[Tensor<i32, 1>; 2]>,
    pages: Option<Tensor<i32, 2>>,
}

impl<T: Element> Options<T> {
    /// Draws random sinks and a random bias.
    pub fn new(device: &Device, shape: &Shape, problem: &Problem, seed: u64) -> Result<Self> {
        let tensor = |numbers: Vec<f32>| Tensor::new(device, [numbers.len()], &numbers);
        let slopes = shape.alibi.then(|| tensor(alibi_slopes(problem.heads)));
        let sinks = shape.sinks.then(|| tensor(random::sinks(problem, seed)));
        let bias = shape.bias_shape();
        let bias = bias.map(|shape| Tensor::new(device, shape, &random::bias(shape, seed)));
        let mask_shape = [1, 1, problem.seqlen_q, problem.seqlen_kv];
        let mask = shape.mask_bytes();
        let mask = mask.map(|bytes| Tensor::new(device, mask_shape, &bytes));
        let offsets = shape.offsets();
        let offsets = offsets.map(|offsets| Tensor::new(device, [offsets.len()], &offsets));
        let queries = vec![problem.seqlen_q as i32; problem.batch];
        let lengths = shape.lengths().map(|keys| {
            let numbers = |numbers: &[i32]| Tensor::new(device, [problem.batch], numbers);
            Ok::<_, Error>([numbers(&queries)?, numbers(&keys)?])
        });
        let pages = shape.pages().map(|most| {
            let table = random::permutation(problem.batch * most, seed);
            Tensor::new(device, [problem.batch, most], &table)
        });
        Ok(Options {
            lengths: lengths.transpose()?,
            pages: pages.transpose()?,
            offsets: offsets.transpose()?,
            alibi: slopes.transpose()?,
            sinks: sinks.transpose()?,
            bias: bias.transpose()?,
            mask: mask.transpose()?,
        })
    }

    /// A call with the tensors.
    pub fn given_to<'a>(&'a self, attention: &Attention<'a>) -> Attention<'a> {
        let mut attention = attention.clone();
        if let Some(slopes) = &self.alibi {
            attention = attention.alibi(slopes);
        }
        if let Some(offsets) = &self.offsets {
            attention = attention.packed(offsets, offsets);
        }
        if let Some([queries, keys]) = &self.lengths {
            attention = attention.padded(queries, keys);
        }
        if let Some(pages) = &self.pages {
            attention = attention.pages(pages);
        }
        if let Some(bias) = &self.bias {
            attention = attention.bias(bias);
        }
        if let Some(mask) = &self.mask {
            attention = attention.mask(mask);
        }
        match &self.sinks {
            Some(sinks) => attention.sinks(sinks),
            None => attention,
        }
    }
}
