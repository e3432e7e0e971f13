//! The project's own kernels, on one shape's inputs.

use crate::run::Plan;
use crate::shape::Shape;
use crate::subject::Contenders;
use anyhow::{Context, Result, ensure};
use attention::check::{self, Forward};
use attention::{Attention, Device, Element, Error, Problem, Strided, Tensor, kernel, random};

/// Rows of each kernel's result that are checked before it is timed.
const CHECKED_ROWS: usize = 32;

/// Which kernels to time.
#[derive(Clone, Debug)]
pub enum Choice {
    /// The one that the library takes by itself.
    Auto,
    /// Every one that serves the shape.
    All,
    /// Those of these names that serve the shape.
    Named(Vec<String>),
}

impl From<&str> for Choice {
    fn from(name: &str) -> Self {
        match name {
            "auto" => Choice::Auto,
            "all" => Choice::All,
            names => Choice::Named(names.split(',').map(str::to_owned).collect()),
        }
    }
}

impl Choice {
    /// Names of the kernels for a shape, the default one first.
    ///
    /// # Errors
    /// If there is no kernel of a name, or none serves the shape.
    pub fn kernels(&self, device: &Device, shape: &Shape) -> Result<Vec<&str>> {
        let (dtype, problem) = (shape.dtype.into(), shape.problem()?);
        if let Choice::Named(names) = self {
            let mut serving = Vec::new();
            let mut refusal = None;
            for name in names {
                match kernel::check(device, name, dtype, &problem) {
                    Ok(()) => serving.push(name.as_str()),
                    Err(error @ Error::UnknownKernel { .. }) => return Err(error.into()),
                    Err(error) => refusal = Some(error),
                }
            }
            return match refusal {
                Some(error) if serving.is_empty() => Err(error.into()),
                _ => Ok(serving),
            };
        }
        let mut names = kernel::suitable(device, dtype, &problem);
        if matches!(self, Choice::Auto) {
            names.truncate(1);
        }
        ensure!(!names.is_empty(), "no kernel serves {shape}");
        Ok(names)
    }

    /// The call that runs one of [`kernels`](Self::kernels) on so many splits of the keys, 0 for the
    /// default.
    pub fn attention(&self, name: &str, shape: &Shape, splits: u32) -> Attention {
        let attention = Attention::new().causal(shape.causal).splits(splits);
        match self {
            Choice::Auto => attention,
            Choice::All | Choice::Named(_) => attention.kernel(name),
        }
    }
}

/// Inputs and outputs of one shape, on the device.
pub struct Bench<T> {
    problem: Problem,
    seed: u64,
    host: [Vec<T>; 3],
    q: Tensor<T>,
    k: Tensor<T>,
    v: Tensor<T>,
    o: Tensor<T>,
    lse: Tensor<f32, 3>,
}

impl<T: Element> Bench<T> {
    /// Draws the inputs.
    pub fn new(device: &Device, problem: Problem, seed: u64) -> Result<Self> {
        let host = random::inputs(&problem, seed);
        let [q, k, v] = &host;
        Ok(Bench {
            q: Tensor::new(device, problem.q_shape(), q)?,
            k: Tensor::new(device, problem.kv_shape(), k)?,
            v: Tensor::new(device, problem.kv_shape(), v)?,
            o: Tensor::zeros(device, problem.q_shape())?,
            lse: Tensor::zeros(device, problem.lse_shape())?,
            problem,
            seed,
            host,
        })
    }

    /// Queues one launch.
    pub fn launch(&mut self, attention: &Attention) -> Result<()> {
        let Bench {
            q, k, v, o, lse, ..
        } = self;
        Ok(attention.forward_into(q, k, v, o, lse)?)
    }

    /// Runs the kernel once and compares some rows with the reference: a wrong result has no speed.
    pub fn check(&mut self, attention: &Attention) -> Result<()> {
        self.launch(attention)?;
        let (o, lse) = (self.o.to_vec()?, self.lse.to_vec()?);
        let [q, k, v] = &self.host;
        let forward = Forward {
            problem: &self.problem,
            q: Strided::contiguous(q, self.problem.q_shape()),
            k: Strided::contiguous(k, self.problem.kv_shape()),
            v: Strided::contiguous(v, self.problem.kv_shape()),
            o: Strided::contiguous(&o, self.problem.q_shape()),
            lse: &lse,
        };
        let rows = check::sample_rows(&self.problem, CHECKED_ROWS, self.seed);
        let report = check::check(&forward, &rows);
        let passed = report.passed().then_some(());
        passed.with_context(|| format!("the result is wrong: {report}"))
    }
}

/// The chosen kernels on one shape's inputs.
pub struct Calls<T> {
    bench: Bench<T>,
    calls: Vec<(String, Attention, u32)>,
}

impl<T: Element> Calls<T> {
    /// Draws the inputs and checks each kernel's result.
    pub fn new(shape: &Shape, device: &Device, plan: &Plan) -> Result<Self> {
        let problem = shape.problem()?;
        let mut bench = Bench::new(device, problem, plan.seed)?;
        let mut calls = Vec::new();
        for name in plan.kernel.kernels(device, shape)? {
            let attention = plan.kernel.attention(name, shape, plan.splits);
            let splits = attention.split_count(device, T::DTYPE, &problem)?;
            bench.check(&attention).with_context(|| name.to_owned())?;
            calls.push((name.to_owned(), attention, splits));
        }
        Ok(Calls { bench, calls })
    }
}

impl<T: Element> Contenders for Calls<T> {
    fn names(&self) -> Vec<(String, Option<u32>)> {
        let calls = self.calls.iter();
        calls.map(|(name, _, n)| (name.clone(), Some(*n))).collect()
    }

    fn launch(&mut self, contender: usize) -> Result<()> {
        self.bench.launch(&self.calls[contender].1)
    }
}

#[cfg(test)]
mod tests {
    use super::Choice;
    use crate::shape::{Dtype, Shape};
    use attention::Device;

    #[test]
    fn of_named_kernels_those_that_serve() {
        let shape = Shape {
            batch: 1,
            heads: 8,
            kv_heads: None,
            seqlen: 16,
            seqlen_kv: None,
            dim: 64,
            dtype: Dtype::F16,
            causal: false,
        };
        let kernels = |names| {
            let choice = Choice::from(names);
            let kernels = choice.kernels(&Device::cpu(), &shape);
            kernels
                .map(|names| names.join(" "))
                .map_err(|error| error.to_string())
        };
        assert_eq!(kernels("cpu"), Ok("cpu".to_owned()));
        assert_eq!(kernels("decode_f16_d64,cpu"), Ok("cpu".to_owned()));
        for (names, reason) in [
            ("decode_f16_d64,packed_f16_d64", "CUDA"),
            ("cpu,decode_f16_d65", "decode_f16_d64"),
            ("cpu,", "\"\""),
        ] {
            let error = kernels(names).expect_err(names);
            assert!(error.contains(reason), "{error}");
        }
    }
}
