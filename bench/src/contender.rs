//! The project's own kernels, on one shape's inputs.

use crate::shape::Shape;
use anyhow::{Context, Result, ensure};
use attention::check::{self, Forward};
use attention::ladder::Acc;
use attention::{Attention, Device, Element, Problem, Strided, Tensor, kernel, random};

/// Rows of each kernel's result that are checked before it is timed.
const CHECKED_ROWS: usize = 32;

/// Which kernels to time.
#[derive(Clone, Debug)]
pub enum Choice {
    /// The one that the library takes by itself.
    Auto,
    /// Every one that serves the shape.
    All,
    /// The one of this name.
    Named(String),
}

impl From<&str> for Choice {
    fn from(name: &str) -> Self {
        match name {
            "auto" => Choice::Auto,
            "all" => Choice::All,
            name => Choice::Named(name.to_owned()),
        }
    }
}

impl Choice {
    /// Names of the kernels for a shape, the default one first.
    ///
    /// # Errors
    /// If the named kernel does not serve the shape, or none does.
    pub fn kernels(&self, device: &Device, shape: &Shape) -> Result<Vec<&str>> {
        let (dtype, problem) = (shape.dtype.into(), shape.problem()?);
        if let Choice::Named(name) = self {
            kernel::check(device, name, dtype, &problem)?;
            return Ok(vec![name]);
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
    device: Device,
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
            device: device.clone(),
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

    /// The device's milliseconds for each of `iters` launches, after `lead` that are not timed. All
    /// are queued back to back, with events around each, so that the time to launch one is hidden.
    pub fn time(&mut self, attention: &Attention, lead: usize, iters: usize) -> Result<Vec<f64>> {
        for _ in 0..lead {
            self.launch(attention)?;
        }
        let mut events = Vec::with_capacity(iters);
        for _ in 0..iters {
            let start = self.device.event()?;
            self.launch(attention)?;
            events.push([start, self.device.event()?]);
        }
        let times = events.iter().map(|[start, end]| end.since(start));
        times.map(|time| Ok(time?.as_secs_f64() * 1e3)).collect()
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
            acc: Acc::F32,
        };
        let rows = check::sample_rows(&self.problem, CHECKED_ROWS, self.seed);
        let report = check::check(&forward, &rows);
        let passed = report.passed().then_some(());
        passed.with_context(|| format!("the result is wrong: {report}"))
    }
}
