//! Inputs and outputs of one shape, the calls on them, and checks of what these compute.

use crate::e4m3::E4m3Inputs;
use crate::gradients::Gradients;
use crate::keys::{keys, prefix};
use crate::options::Options;
use crate::shape::{Fp8Inputs, Shape};
use anyhow::{Context, Result};
use ferroattn::backward::check::{Backward, all_keys};
use ferroattn::check::{self, Forward};
use ferroattn::{
    Accumulation, Attention, BackwardInputs, Device, Element, Error, Problem, RawForward,
    RawOptions, Tensor, backward, random,
};

/// Checked rows of each kernel's result.
const CHECKED_ROWS: usize = 32;

/// Inputs and outputs of one shape, on the device.
pub struct Bench<T> {
    shape: Shape,
    pub problem: Problem,
    seed: u64,
    pub host: [Vec<T>; 3],
    pub q: Tensor<T>,
    pub k: Tensor<T>,
    pub v: Tensor<T>,
    /// Where inputs are e4m3 before the call.
    e4m3: Option<E4m3Inputs>,
    pub o: Tensor<T>,
    pub lse: Tensor<f32, 3>,
    options: Options<T>,
    /// Keys and values that all sequences share.
    prefix: Option<[Tensor<T>; 2]>,
    /// Of a backward pass, which is then what [`launch`](Self::launch) launches.
    pub gradients: Option<Gradients<T>>,
}

impl<T: Element> Bench<T> {
    /// Draws random inputs.
    pub fn new(device: &Device, shape: &Shape, seed: u64) -> Result<Self> {
        let problem = shape.problem()?;
        let mut host = random::inputs(&problem, seed);
        if shape.values_in_keys {
            let values = host[1].chunks(shape.dim);
            host[2] = values
                .flat_map(|key| key[..shape.dim_v()].to_vec())
                .collect();
        }
        if let Some(keys) = shape.prefix {
            let [_, k, v] = &mut host;
            random::share_prefix(k, problem.k_shape(), keys.get());
            random::share_prefix(v, problem.v_shape(), keys.get());
        }
        let is_e4m3 = shape.fp8.is_some_and(Fp8Inputs::are_e4m3);
        let e4m3 = is_e4m3.then(|| E4m3Inputs::new(device, shape, &problem, &mut host));
        let [q, k, v] = &host;
        let prefix = shape.prefix.map(|_| {
            let tensor = |dim, elements| prefix(device, shape, dim, elements);
            Ok::<_, Error>([tensor(shape.dim, k)?, tensor(shape.dim_v(), v)?])
        });
        Ok(Bench {
            prefix: prefix.transpose()?,
            q: Tensor::new(device, problem.q_shape(), q)?,
            k: keys(device, shape, shape.dim, k)?,
            v: keys(device, shape, shape.dim_v(), v)?,
            e4m3: e4m3.transpose()?,
            o: Tensor::zeros(device, problem.o_shape())?,
            lse: Tensor::zeros(device, problem.lse_shape())?,
            options: Options::new(device, shape, &problem, seed)?,
            shape: *shape,
            problem,
            seed,
            host,
            gradients: None,
        })
    }

    /// Draws random inputs of a backward pass, after the forward pass.
    pub fn backward(device: &Device, shape: &Shape, seed: u64) -> Result<Self> {
        let mut bench = Self::new(device, shape, seed)?;
        bench.launch(&shape.attention())?;
        let gradients = Gradients::new(device, &bench.problem, &bench.options, seed)?;
        bench.gradients = Some(gradients);
        Ok(bench)
    }

    /// Tensors of options in host memory, for a check.
    pub fn host_options(&self) -> Result<Options<T>> {
        Ok(Options::new(
            &Device::cpu(),
            &self.shape,
            &self.problem,
            self.seed,
        )?)
    }

    /// Queues one launch of a call without tensors of options, which it gets here.
    pub fn launch(&mut self, attention: &Attention<'static>) -> Result<()> {
        let Bench {
            q, k, v, o, lse, ..
        } = self;
        let mut attention = self.options.given_to(attention);
        if let Some([k, v]) = &self.prefix {
            attention = attention.prefix(k, v);
        }
        if self.shape.values_in_keys {
            let values = k.view().narrow(3, 0, self.shape.dim_v())?;
            return Ok(attention.forward_into(q, k, &values, o, lse)?);
        }
        match &self.e4m3 {
            Some(E4m3Inputs { q: Some(q), k, v }) => {
                return Ok(attention.forward_e4m3_into(q, k, v, o, lse)?);
            }
            Some(E4m3Inputs { q: None, k, v }) => {
                return Ok(attention.forward_e4m3_cache_into(q, k, v, o, lse)?);
            }
            None => {}
        }
        let launched = match &mut self.gradients {
            None => attention.forward_into(q, k, v, o, lse),
            Some(Gradients { d_o, found }) => {
                let inputs = BackwardInputs::new(q, k, v, o, lse, d_o);
                attention.backward_into(&inputs, found.view_mut())
            }
        };
        Ok(launched?)
    }

    /// The tensors of a call.
    pub fn args(&mut self) -> RawForward {
        let mut inputs = [&self.q, &self.k, &self.v].map(Tensor::as_raw);
        if let Some(E4m3Inputs { q, k, v }) = &self.e4m3 {
            let q = q.as_ref().map_or(inputs[0], Tensor::as_raw);
            inputs = [q, k.as_raw(), v.as_raw()];
        }
        let [q, k, v] = inputs;
        let mut options = RawOptions::default();
        if let Some(inputs) = self.shape.fp8 {
            inputs.plan(&mut options);
        }
        RawForward {
            q,
            k,
            v,
            o: self.o.as_raw_mut(),
            lse: self.lse.as_raw_mut(),
            options,
        }
    }

    /// Runs the kernel once and compares some rows with the reference: wrong results are not timed.
    pub fn check(&mut self, attention: &Attention<'static>, acc: Accumulation) -> Result<()> {
        self.launch(attention)?;
        let (o, lse) = (self.o.to_vec()?, self.lse.to_vec()?);
        let (options, call) = (self.host_options()?, self.shape.attention());
        let [q, k, v] = &self.host;
        let forward = Forward {
            problem: &self.problem,
            options: options.given_to(&call).host_options(&self.problem)?,
            q,
            k,
            v,
            o: &o,
            lse: &lse,
            acc,
        };
        let rows = check::sample_rows(&self.problem, CHECKED_ROWS, self.seed);
        let expected = self.e4m3.as_ref();
        let expected =
            expected.and_then(|inputs| inputs.expected::<T>(&self.problem, &call, &rows));
        let report = match expected.transpose()? {
            None => check::check(&forward, &rows),
            Some(expected) => expected.compare(&forward),
        };
        let passed = report.passed().then_some(());
        passed.with_context(|| format!("the result is wrong: {report}"))
    }

    /// Runs the kernel once for a key/value head of the problem and at most 1024 rows, and compares all gradients with
    /// the reference. To check a whole problem would take longer than to measure it.
    pub fn check_backward(
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
        let mut bench = Self::backward(device, &part, seed)?;
        bench.launch(attention)?;
        let found = &bench.gradients.as_ref().context("a backward pass")?.found;
        let [dq, dk, dv] = [&found.dq, &found.dk, &found.dv].map(Tensor::to_vec);
        let d_sinks = found.d_sinks.as_ref().map(Tensor::to_vec).transpose()?;
        let d_bias = found.d_bias.as_ref().map(Tensor::to_vec).transpose()?;
        let (part, options, call) = (&bench.problem, bench.host_options()?, part.attention());
        let [q, k, v] = &bench.host;
        let report = backward::check::check(
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
            &check::all_rows(part),
            &all_keys(part),
        );
        let passed = report.passed().then_some(());
        passed.with_context(|| format!("the result is wrong: {report}"))
    }
}

#[cfg(test)]
mod tests {
    use super::Bench;
    use crate::shape::Shape;
    use crate::shape::tests::SHAPE;
    use crate::subject::Subject;
    use ferroattn::{Accumulation, Device, f16};
    use std::num::NonZeroUsize;

    /// The reference has all keys of each sequence.
    #[test]
    fn a_prefix_is_shared() {
        let shape = Shape {
            batch: 3,
            heads: 4,
            kv_heads: Some(2),
            seqlen: 1,
            seqlen_kv: Some(50),
            prefix: NonZeroUsize::new(40),
            ..SHAPE
        };
        let mut bench = Bench::<f16>::new(&Device::cpu(), &shape, 1).expect("allowed");
        let checked = bench.check(&shape.attention(), Accumulation::Single);
        checked.expect("a right result");
        assert_eq!(bench.k.shape(), [3, 2, 10, 64]);
        // Of q and o 3 x 4 rows, of K and V 40 + 3 x 10 keys of two heads.
        let rows = 2 * 3 * 4 + 2 * 2 * (40 + 3 * 10);
        assert_eq!(shape.bytes(), (2 * 64 * rows) as f64);
    }
}
