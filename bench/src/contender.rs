//! The project's own kernels, on one shape's inputs.

use crate::e4m3::E4m3Inputs;
use crate::gradients::Gradients;
use crate::options::Options;
use crate::rounded::Rounded;
use crate::run::Plan;
use crate::shape::{Fp8Inputs, Pass, Shape};
use crate::subject::{Contenders, Subject, with_rungs};
use anyhow::{Context, Result, bail};
use bytemuck::Pod;
use ferroattn::check::{self, Forward};
use ferroattn::{
    Accumulation, Attention, BackwardInputs, Device, Element, Error, Problem, RawForward,
    RawOptions, Tensor, kernel, random,
};
use ladder::{Ladder, OStore, Rung, Swizzles};

/// Checked rows of each kernel's result.
const CHECKED_ROWS: usize = 32;

/// Which kernels to time.
#[derive(Clone, Debug)]
pub enum Choice {
    /// The library's own choice.
    Auto,
    /// Every kernel that serves the shape.
    All,
    /// Every kernel of the ladder that serves the shape: the best launch, and each option in turn.
    Ladder,
    /// The kernels with these names that serve the shape. Names of the [ladder](Ladder) may have options.
    Named(Vec<String>),
}

impl From<&str> for Choice {
    fn from(name: &str) -> Self {
        match name {
            "auto" => Choice::Auto,
            "all" => Choice::All,
            "ladder" => Choice::Ladder,
            names => Choice::Named(names.split(',').map(str::to_owned).collect()),
        }
    }
}

impl Choice {
    /// Checks that all names are known, without a device.
    ///
    /// # Errors
    /// Says which name is unknown.
    pub fn check_names(&self, shape: &impl Subject) -> Result<()> {
        match self {
            Choice::Named(names) => names.iter().try_for_each(|name| shape.check_name(name)),
            Choice::Auto | Choice::All | Choice::Ladder => Ok(()),
        }
    }

    /// Names of the kernels for a shape, the default kernel first.
    ///
    /// # Errors
    /// If a name or an option is unknown, or no kernel serves the shape.
    pub fn kernels(&self, device: &Device, shape: &Shape) -> Result<Vec<String>> {
        if shape.pass == Pass::Backward {
            return self.backward_kernels(device, shape);
        }
        let (dtype, problem) = (shape.dtype.into(), shape.problem()?);
        let options = shape.planned_options();
        let mut names = match self {
            Choice::Auto | Choice::All => {
                let names = kernel::suitable(device.facts(), dtype, &problem, &options)?;
                names.into_iter().map(str::to_owned).collect()
            }
            Choice::Ladder => ladder().map(|kernel| kernel.to_string()).collect(),
            Choice::Named(names) => names.clone(),
        };
        let (mut serving, mut refusal) = (Vec::new(), None);
        if matches!(self, Choice::Auto) {
            names.truncate(1);
        }
        for name in names {
            let served = match on_ladder(&name)? {
                Some(_) if shape.has_options() => Err(Error::unsuitable(
                    &*name,
                    "has plain and causal attention alone",
                )),
                Some(ladder) => ladder.check(device, dtype, &problem),
                None => kernel::check(device.facts(), &name, dtype, &problem, &options),
            };
            match served {
                Ok(()) => serving.push(name),
                Err(error @ Error::UnknownKernel { .. }) => return Err(with_rungs(error).into()),
                Err(error) => refusal = Some(error),
            }
        }
        match refusal {
            Some(error) if serving.is_empty() => Err(error.into()),
            _ => Ok(serving),
        }
    }

    /// Names of the kernels for a backward pass: the best, and the best with sums in [any order](ANY_ORDER), or the named ones.
    fn backward_kernels(&self, device: &Device, shape: &Shape) -> Result<Vec<String>> {
        let names = match self {
            Choice::Named(names) => names.clone(),
            // Batch invariant gradients have one order.
            Choice::Auto | Choice::All if shape.invariant.is_some() => vec!["auto".to_owned()],
            Choice::Auto | Choice::All => ["", ANY_ORDER].map(|end| format!("auto{end}")).into(),
            Choice::Ladder => bail!("the ladder has no backward pass"),
        };
        let args = shape.planned_backward(&shape.problem()?);
        let kernels = names.into_iter().map(|name| {
            let attention = self.attention(&name, shape, 0);
            let plan = attention.backward_plan(device.facts(), shape.dtype.into(), &args)?;
            let end = if name.ends_with(ANY_ORDER) {
                ANY_ORDER
            } else {
                ""
            };
            Ok(plan.kernel.to_owned() + end)
        });
        kernels.collect()
    }

    /// The call that runs the kernel `name`, one of [`kernels`](Self::kernels), on `splits` splits of the keys; 0
    /// means the default, which batch invariant calls have.
    pub fn attention(&self, name: &str, shape: &Shape, splits: u32) -> Attention<'static> {
        let attention = match shape.invariant {
            None => shape.attention().splits(splits),
            Some(_) => shape.attention(),
        };
        if shape.pass == Pass::Backward {
            let kernel = name.strip_suffix(ANY_ORDER);
            let attention = attention.deterministic(kernel.is_none());
            return match kernel.unwrap_or(name) {
                "auto" => attention,
                name => attention.kernel(name),
            };
        }
        match (self, name.parse::<Ladder>()) {
            (Choice::Auto, _) => attention,
            (_, Ok(ladder)) => attention.planner(ladder),
            (_, Err(_)) => attention.kernel(name),
        }
    }
}

/// The kernel of the ladder with this name and these options; `None` for other names.
///
/// # Errors
/// If the kernel has no such option.
pub fn on_ladder(name: &str) -> ferroattn::Result<Option<Ladder>> {
    match name.parse() {
        Ok(ladder) => Ok(Some(ladder)),
        Err(Error::UnknownKernel { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The kernels of the ladder: the best launch of each and, for kernels with options, each option in turn.
fn ladder() -> impl Iterator<Item = Ladder> {
    Rung::ALL.iter().flat_map(|&rung| {
        let best = Ladder::new(rung);
        let mut kernels = vec![best];
        if rung.has_options() {
            kernels.extend((1..=3).map(|n| Ladder {
                stages: Some(n),
                ..best
            }));
            let swizzles = Swizzles::ALL.iter().map(|&s| Some(s));
            kernels.extend(swizzles.map(|swizzles| Ladder { swizzles, ..best }));
            let acc = Some(Accumulation::Half);
            kernels.push(Ladder { acc, ..best });
            let o_stores = OStore::ALL.iter().map(|&o| Some(o));
            kernels.extend(o_stores.map(|o_store| Ladder { o_store, ..best }));
        }
        kernels
    })
}

/// The end of the name of a backward kernel that may sum dq in any order.
pub const ANY_ORDER: &str = ":any-order";

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

/// K or V on a device, of row-major elements; heads lie inside of the keys of pages, as engines have them.
pub fn keys<T: Pod>(
    device: &Device,
    shape: &Shape,
    dim: usize,
    elements: &[T],
) -> ferroattn::Result<Tensor<T>> {
    let kv_shape @ [pages, heads, page, _] = shape.kv_shape(dim);
    if shape.prefix.is_some() {
        let of_heads = elements.chunks(shape.seqlen_kv() * dim);
        let own: Vec<T> = of_heads
            .flat_map(|head| &head[shape.prefix() * dim..])
            .copied()
            .collect();
        return Tensor::new(device, kv_shape, &own);
    }
    if shape.page.is_none() {
        return Tensor::new(device, kv_shape, elements);
    }
    let mut keys = Tensor::zeros(device, [pages, page, heads, dim])?.transpose(1, 2)?;
    keys.copy_from_slice(elements)?;
    Ok(keys)
}

/// The first entry's prefix in place of that of each other one, among the elements of K or V.
fn share_prefix<T: Element>(shape: &Shape, dim: usize, elements: &mut [T]) {
    let (head, shared) = (shape.seqlen_kv() * dim, shape.prefix() * dim);
    let (first, others) = elements.split_at_mut(shape.kv_heads() * head);
    for (number, to) in others.chunks_mut(head).enumerate() {
        let from = number % shape.kv_heads() * head;
        to[..shared].copy_from_slice(&first[from..from + shared]);
    }
}

/// The prefix on a device, of the elements of K or V of all entries.
fn prefix<T: Element>(
    device: &Device,
    shape: &Shape,
    dim: usize,
    elements: &[T],
) -> ferroattn::Result<Tensor<T>> {
    let (heads, keys) = (shape.kv_heads(), shape.prefix());
    let of_heads = elements.chunks(shape.seqlen_kv() * dim).take(heads);
    let shared: Vec<T> = of_heads
        .flat_map(|head| &head[..keys * dim])
        .copied()
        .collect();
    Tensor::new(device, [1, heads, keys, dim], &shared)
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
        for (elements, dim) in [(1, shape.dim), (2, shape.dim_v())] {
            share_prefix(shape, dim, &mut host[elements]);
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
}

/// The chosen kernels on one shape's inputs.
pub struct Calls<T> {
    bench: Bench<T>,
    calls: Vec<(String, Attention<'static>, Option<u32>)>,
    /// The call in FP8 behind the first one, without what rounds.
    rounded: Option<Rounded>,
}

impl<T: Element> Calls<T> {
    /// Draws random inputs and checks each kernel's result.
    pub fn new(shape: &Shape, device: &Device, plan: &Plan) -> Result<Self> {
        let problem = shape.problem()?;
        let mut bench = match shape.pass {
            Pass::Forward => Bench::new(device, shape, plan.seed)?,
            Pass::Backward => Bench::backward(device, shape, plan.seed)?,
        };
        let invariant = plan.invariant.map(|keys| shape.invariant(keys));
        let mut calls = Vec::new();
        for shape in [*shape].iter().chain(&invariant) {
            for name in plan.kernel.kernels(device, shape)? {
                let attention = plan.kernel.attention(&name, shape, plan.splits);
                let (checked, splits) = match shape.pass {
                    Pass::Forward => {
                        let args = shape.planned(&problem);
                        let splits = attention.plan(device.facts(), T::DTYPE, &args)?.splits;
                        let ladder = name.parse::<Ladder>();
                        let acc = ladder.map(|ladder| ladder.sums_in()).unwrap_or_default();
                        (bench.check(&attention, acc), Some(splits))
                    }
                    Pass::Backward => {
                        let checked = Gradients::<T>::check(device, shape, &attention, plan.seed);
                        (checked, None)
                    }
                };
                let name = name + &shape.end_of_names();
                checked.with_context(|| name.clone())?;
                calls.push((name, attention, splits));
            }
        }
        // Its plan has no tensors of options.
        let is_plain = !shape.sinks && shape.sequences.is_none() && !shape.uneven;
        let rounded = match (shape.fp8, &calls[..]) {
            (Some(inputs), [(_, attention, _), ..]) if inputs.rounding().is_some() && is_plain => {
                Rounded::new(&mut bench, device, attention)?
            }
            _ => None,
        };
        Ok(Calls {
            bench,
            calls,
            rounded,
        })
    }
}

impl<T: Element> Contenders for Calls<T> {
    fn names(&self) -> Vec<(String, Option<u32>)> {
        let calls = self.calls.iter();
        let calls = calls.map(|(name, _, splits)| (name.clone(), *splits));
        let rounded = self.rounded.iter();
        calls.chain(rounded.map(Rounded::name)).collect()
    }

    fn launch(&mut self, contender: usize) -> Result<()> {
        match (self.calls.get(contender), &self.rounded) {
            (Some((_, attention, _)), _) => self.bench.launch(attention),
            (None, rounded) => rounded.as_ref().expect("another contender").launch(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Bench, Choice};
    use crate::shape::{Dtype, Pass, Shape};
    use crate::subject::Subject;
    use ferroattn::{Accumulation, Device, f16};
    use std::num::NonZeroUsize;

    const SHAPE: Shape = Shape {
        batch: 1,
        heads: 8,
        kv_heads: None,
        seqlen: 16,
        seqlen_kv: None,
        dim: 64,
        dim_v: None,
        dtype: Dtype::F16,
        causal: false,
        window: None,
        softcap: None,
        alibi: false,
        sinks: false,
        bias: false,
        block_mask: None,
        sequences: None,
        uneven: false,
        page: None,
        prefix: None,
        values_in_keys: false,
        fp8: None,
        invariant: None,
        pass: Pass::Forward,
    };

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

    #[test]
    fn of_named_kernels_those_that_serve() {
        let kernels = |names| {
            let choice = Choice::from(names);
            let kernels = choice.kernels(&Device::cpu(), &SHAPE);
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
            ("cpu,split-q:swizzle=foo", "has no option swizzle=foo"),
        ] {
            let error = kernels(names).expect_err(names);
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn the_ladder_has_no_options() {
        let [mut sinks, mut bias, mut block_mask, mut dim_v] = [SHAPE; 4];
        sinks.sinks = true;
        bias.bias = true;
        block_mask.block_mask = NonZeroUsize::new(2);
        dim_v.dim_v = Some(32);
        for shape in [sinks, bias, block_mask, dim_v] {
            let kernels = |names| {
                let kernels = Choice::from(names).kernels(&Device::cpu(), &shape);
                kernels.map_err(|error| error.to_string())
            };
            assert_eq!(kernels("cpu,split-q"), Ok(vec!["cpu".to_owned()]));
            let error = kernels("split-q").expect_err("options");
            assert!(error.contains("split-q has plain and causal"), "{error}");
        }
    }

    #[test]
    fn names_are_known_without_a_gpu() {
        for name in [
            "cpu",
            "forward_f16_d128",
            "naive",
            "split-q:stages=2:acc=f16",
        ] {
            assert!(SHAPE.check_name(name).is_ok(), "{name}");
        }
        for (name, reason) in [
            ("forward_f16_d65", "forward_f16_d64"),
            ("splitq", "split-q"),
            ("split-q:foo", "has no option foo"),
            ("naive:stages=x", "has no option stages=x"),
        ] {
            let error = SHAPE.check_name(name).expect_err(name).to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
