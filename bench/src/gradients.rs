//! The backward pass of one shape.

use crate::contender::Bench;
use crate::options::Options;
use crate::shape::Shape;
use anyhow::{Context, Result};
use ferroattn::backward::check::{Backward, all_keys, check};
use ferroattn::{Attention, Device, Element, Problem, Tensor, check::all_rows, random};

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

    /// Runs the kernel once for a key/value head of the problem and at most 1024 rows, and compares all gradients with
    /// the reference. To check a whole problem would take longer than to measure it.
    pub fn check(
        device: &Device,
        shape: &Shape,
        attention: &Attention<'static>,
        seed: u64,
    ) -> Result<()> {
        let part = Shape {
            batch: 1,
            heads: shape.heads / shape.kv_heads(),
            kv_heads: Some(1),
            seqlen: shape.seqlen.min(1024),
            seqlen_kv: Some(shape.seqlen_kv().min(1024)),
            ..*shape
        };
        let bias_shape = part.bias_shape();
        let mut bench = Bench::<T>::backward(device, &part, seed)?;
        bench.launch(attention)?;
        let found = &bench.gradients.as_ref().context("a backward pass")?.found;
        let [dq, dk, dv] = [&found.dq, &found.dk, &found.dv].map(Tensor::to_vec);
        let d_sinks = found.d_sinks.as_ref().map(Tensor::to_vec).transpose()?;
        let d_bias = found.d_bias.as_ref().map(Tensor::to_vec).transpose()?;
        let (part, options, call) = (&bench.problem, bench.host_options()?, part.attention());
        let [q, k, v] = &bench.host;
        let report = check(
            &Backward {
                problem: part,
                options: options.given_to(&call).host_options(part)?,
                q,
                k,
                v,
                d_o: &random::output_gradient(part, seed),
                d_lse: None,
                dq: &dq?,
                dk: &dk?,
                dv: &dv?,
                d_sinks: d_sinks.as_deref(),
                d_bias: bias_shape.zip(d_bias.as_deref()),
            },
            &all_rows(part),
            &all_keys(part),
        );
        let passed = report.passed().then_some(());
        passed.with_context(|| format!("the result is wrong: {report}"))
    }
}
