//! The backward pass of one shape.

use crate::contender::Bench;
use anyhow::{Context, Result};
use attention::backward::check::{Backward, all_keys, check};
use attention::{Attention, Device, Element, Problem, Tensor, check::all_rows, random};

/// The gradient of o, and the gradients that a call computes.
pub struct Gradients<T> {
    pub d_o: Tensor<T>,
    pub dq: Tensor<T>,
    pub dk: Tensor<T>,
    pub dv: Tensor<T>,
}

impl<T: Element> Gradients<T> {
    /// Draws a random gradient of o.
    pub fn new(device: &Device, problem: &Problem, seed: u64) -> Result<Self> {
        Ok(Gradients {
            d_o: Tensor::new(
                device,
                problem.q_shape(),
                &random::output_gradient(problem, seed),
            )?,
            dq: Tensor::zeros(device, problem.q_shape())?,
            dk: Tensor::zeros(device, problem.kv_shape())?,
            dv: Tensor::zeros(device, problem.kv_shape())?,
        })
    }

    /// Runs the kernel once for a key/value head of the problem and at most 1024 rows, and compares all gradients with
    /// the reference. To check a whole problem would take longer than to measure it.
    pub fn check(
        device: &Device,
        problem: &Problem,
        attention: &Attention,
        seed: u64,
    ) -> Result<()> {
        let part = Problem {
            batch: 1,
            heads: problem.group(),
            kv_heads: 1,
            seqlen_q: problem.seqlen_q.min(1024),
            seqlen_kv: problem.seqlen_kv.min(1024),
            ..*problem
        };
        let mut bench = Bench::<T>::backward(device, part, seed)?;
        bench.launch(attention)?;
        let gradients = bench.gradients.as_ref().context("a backward pass")?;
        let [dq, dk, dv] = [&gradients.dq, &gradients.dk, &gradients.dv].map(Tensor::to_vec);
        let [q, k, v] = &bench.host;
        let report = check(
            &Backward {
                problem: &part,
                q,
                k,
                v,
                d_o: &random::output_gradient(&part, seed),
                d_lse: None,
                dq: &dq?,
                dk: &dk?,
                dv: &dv?,
            },
            &all_rows(&part),
            &all_keys(&part),
        );
        let passed = report.passed().then_some(());
        passed.with_context(|| format!("the result is wrong: {report}"))
    }
}
