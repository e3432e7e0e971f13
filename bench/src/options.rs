//! Tensors of a call's options.

use crate::shape::Shape;
use attention::{Attention, Device, Problem, Result, Tensor, alibi_slopes, random};

/// Slopes, sinks and offsets of a shape, on a device, where it has them.
pub struct Options {
    alibi: Option<Tensor<f32, 1>>,
    pub sinks: Option<Tensor<f32, 1>>,
    offsets: Option<Tensor<i32, 1>>,
}

impl Options {
    /// Draws random sinks.
    pub fn new(device: &Device, shape: &Shape, problem: &Problem, seed: u64) -> Result<Self> {
        let tensor = |numbers: Vec<f32>| Tensor::new(device, [numbers.len()], &numbers);
        let slopes = shape.alibi.then(|| tensor(alibi_slopes(problem.heads)));
        let sinks = shape.sinks.then(|| tensor(random::sinks(problem, seed)));
        let offsets = shape.offsets();
        let offsets = offsets.map(|offsets| Tensor::new(device, [offsets.len()], &offsets));
        Ok(Options {
            offsets: offsets.transpose()?,
            alibi: slopes.transpose()?,
            sinks: sinks.transpose()?,
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
        match &self.sinks {
            Some(sinks) => attention.sinks(sinks),
            None => attention,
        }
    }
}
