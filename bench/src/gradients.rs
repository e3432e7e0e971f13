//! What a backward pass has beside the inputs and outputs of the forward pass.

use crate::options::Options;
use anyhow::Result;
use ferroattn::{Device, Element, Problem, Tensor, random};

/// The gradient of o, and the gradients that a call computes.
pub struct Gradients<T> {
    pub d_o: Tensor<T>,
    pub found: ferroattn::Gradients<T>,
}

impl<T: Element> Gradients<T> {
    /// Draws a random gradient of o.
    pub fn new(
        device: &Device,
        problem: &Problem,
        options: &Options<T>,
        seed: u64,
    ) -> Result<Self> {
        let d_o = random::output_gradient(problem, seed);
        let d_sinks = options.sinks.as_ref();
        let d_sinks = d_sinks.map(|sinks| Tensor::zeros(device, sinks.shape()));
        let d_bias = options.bias.as_ref();
        let d_bias = d_bias.map(|bias| Tensor::zeros(device, bias.shape()));
        let [dq, dk, dv] = [problem.q_shape(), problem.k_shape(), problem.v_shape()]
            .map(|shape| Tensor::zeros(device, shape));
        let mut found = ferroattn::Gradients::new(dq?, dk?, dv?);
        found.d_sinks = d_sinks.transpose()?;
        found.d_bias = d_bias.transpose()?;
        Ok(Gradients {
            d_o: Tensor::new(device, problem.o_shape(), &d_o)?,
            found,
        })
    }
}
