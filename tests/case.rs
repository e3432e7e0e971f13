//! One forward pass, and what must hold of it.

use crate::modifiers::Descales;
use crate::references::check_forward;
use crate::{Guarded, Layout, Modifiers, Outcome, PASSED, harness};
use ferroattn::check::{Forward, Report};
use ferroattn::{Attention, Device, Dtype, Element, Error, F8E4M3, Fp8, Problem, bf16, f16};
use ladder::Ladder;
use libtest_mimic::Failed;
use ndarray::{Array3, Array4, Axis, s};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Sizes, options and memory layouts of a forward pass.
///
/// Displays as JSON on one line, which `FERROATTN_CASE='...' cargo test -p tests --test devices` runs
/// again.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Case {
    /// Element type of q, k, v and o.
    pub dtype: Dtype,
    /// Independent sequences.
    pub batch: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Queries per head.
    pub seqlen_q: usize,
    /// Keys per head.
    pub seqlen_kv: usize,
    /// Elements of a row.
    pub dim: usize,
    /// Whether a query sees only the keys up to its own, counted from the last.
    pub causal: bool,
    /// Options beyond these.
    pub modifiers: Modifiers,
    /// Softmax scale, if not the default.
    pub scale: Option<f32>,
    /// The kernel, where there are several, if not the default.
    pub kernel: Option<String>,
    /// The kernel of the ladder and its options, if it is one.
    #[serde(with = "as_text")]
    pub ladder: Option<Ladder>,
    /// Splits of the keys, where they can be split; 0 for the default.
    pub splits: u32,
    /// Memory layout of q.
    pub q: Layout,
    /// Memory layout of k.
    pub k: Layout,
    /// Memory layout of v.
    pub v: Layout,
    /// Whether v is the first part of k, in memory too.
    pub values_in_keys: bool,
    /// Memory layout of o.
    pub o: Layout,
    /// Seed of the random inputs.
    pub seed: u64,
}

/// A [`Ladder`] in JSON, as text.
mod as_text {
    use super::{Deserialize, Ladder, Serialize};
    use serde::de::Error;
    use serde::{Deserializer, Serializer};

    pub fn serialize<S: Serializer>(ladder: &Option<Ladder>, to: S) -> Result<S::Ok, S::Error> {
        ladder.map(|ladder| ladder.to_string()).serialize(to)
    }

    pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Option<Ladder>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| text.parse().map_err(D::Error::custom))
            .transpose()
    }
}

impl Default for Case {
    /// Two ragged tiles of the default options in `f16`, row-major.
    fn default() -> Self {
        Case {
            dtype: Dtype::F16,
            batch: 1,
            heads: 1,
            kv_heads: 1,
            seqlen_q: 150,
            seqlen_kv: 150,
            dim: 64,
            causal: false,
            modifiers: Modifiers::default(),
            scale: None,
            kernel: None,
            ladder: None,
            splits: 0,
            q: Layout::Bhnd,
            k: Layout::Bhnd,
            v: Layout::Bhnd,
            values_in_keys: false,
            o: Layout::Bhnd,
            seed: 0,
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).expect("plain data"))
    }
}

/// The numbers of a forward pass, to be rounded to the case's dtype.
pub struct Inputs {
    /// `[batch, heads, seqlen_q, dim]`.
    pub q: Array4<f32>,
    /// `[batch, kv_heads, seqlen_kv, dim]`.
    pub k: Array4<f32>,
    /// `[batch, kv_heads, seqlen_kv, dim_v]`.
    pub v: Array4<f32>,
}

/// A result that passed every check.
pub struct Outputs {
    /// `[batch, heads, seqlen_q, dim_v]`.
    pub o: Array4<f32>,
    /// `[batch, heads, seqlen_q]`.
    pub lse: Array3<f32>,
    /// How it compares with the reference.
    pub report: Report,
}

impl Outputs {
    /// Whether o and lse are the same bit for bit.
    #[must_use]
    pub fn has_bits_of(&self, other: &Self) -> bool {
        let bits = |outputs: &Self| -> Vec<u32> {
            let numbers = outputs.o.iter().chain(&outputs.lse);
            numbers.map(|number| number.to_bits()).collect()
        };
        bits(self) == bits(other)
    }
}

impl Case {
    /// The case with each of these element types, masks (causal or not), head dims and splits.
    pub fn with_each<const N: usize>(&self, variants: [(Dtype, bool, usize, u32); N]) -> [Case; N] {
        variants.map(|(dtype, causal, dim, splits)| Case {
            dtype,
            causal,
            dim,
            splits,
            ..self.clone()
        })
    }

    /// Runs the case on normally distributed inputs and checks all that [`run`](Case::run) checks.
    ///
    /// # Errors
    /// Says what does not hold and how to see it again.
    pub fn check(&self, device: &Device) -> Outcome {
        self.run(device, &self.inputs()).map_err(|failed| {
            let reason = failed.message().unwrap_or_default();
            format!("{reason}\nFERROATTN_CASE='{self}' cargo test -p tests --test devices")
        })?;
        PASSED
    }

    /// Checks the case under schedules `0..schedules` of emulated devices. Each must find the same bits: no kernel sums in the
    /// order in which blocks or warps come.
    ///
    /// # Errors
    /// Says what does not hold.
    pub fn check_schedules(
        &self,
        schedules: u64,
        device: impl Fn(u64) -> Result<Device, Error>,
    ) -> Outcome {
        let inputs = self.inputs();
        let mut first: Option<Outputs> = None;
        for schedule in 0..schedules {
            let found = self.run(&device(schedule)?, &inputs).map_err(|failed| {
                let reason = failed.message().unwrap_or_default();
                format!("{self} under schedule {schedule}: {reason}")
            })?;
            if first
                .as_ref()
                .is_some_and(|first| !found.has_bits_of(first))
            {
                return Err(format!("{self} under schedule {schedule}: other bits").into());
            }
            first = Some(found);
        }
        PASSED
    }

    /// The inputs of the case's seed. Rows of a cache and of pages that nothing reads are NaN.
    #[must_use]
    pub fn inputs(&self) -> Inputs {
        let mut rng = StdRng::seed_from_u64(self.seed);
        let mut random = |shape| Array4::from_shape_simple_fn(shape, || rng.sample(StandardNormal));
        let mut inputs = Inputs {
            q: random(self.q_shape()),
            k: random(self.kv_shape()),
            v: random(self.v_shape()),
        };
        if self.modifiers.e4m3.is_some() {
            // Beside a value of 0 a result is what probabilities add that f16, which they are rounded to, does not hold.
            const LEAST: f32 = 1.0 / 512.0;
            inputs
                .v
                .mapv_inplace(|v| if v.abs() < LEAST { LEAST } else { v });
        }
        let problem = self.problem().expect("a valid case");
        if let Some(read) = self.modifiers.read(&problem) {
            let [entries, _, rows, _] = self.kv_shape();
            for place in (0..entries).flat_map(|entry| (0..rows).map(move |row| [entry, row])) {
                if !read.contains(&place) {
                    let [entry, row] = place;
                    for tensor in [&mut inputs.k, &mut inputs.v] {
                        tensor.slice_mut(s![entry, .., row, ..]).fill(f32::NAN);
                    }
                }
            }
        }
        inputs
    }

    /// The inputs of the case's seed with other keys and queries, so that the score of a query of kind
    /// `kind(i)` with key `j` is `score(kind, j)`, exactly if that is a number of the dtype; the scale
    /// is 1 or, if the case's is negative, -1. Rows have an element for each kind, or more.
    #[must_use]
    pub fn with_scores(
        &self,
        kinds: usize,
        kind: impl Fn(usize) -> usize,
        score: impl Fn(usize, usize) -> f32,
    ) -> (Case, Inputs) {
        const Q: f32 = 32.0;
        let scale = self.scale.unwrap_or(1.0).signum();
        let case = Case {
            dim: self.dim.max(kinds),
            scale: Some(scale),
            ..self.clone()
        };
        let mut inputs = case.inputs();
        inputs.q.fill(0.0);
        for (i, mut queries) in inputs.q.axis_iter_mut(Axis(2)).enumerate() {
            queries.slice_mut(s![.., .., kind(i)]).fill(Q * scale);
        }
        for (j, mut keys) in inputs.k.axis_iter_mut(Axis(2)).enumerate() {
            for kind in 0..kinds {
                keys.slice_mut(s![.., .., kind]).fill(score(kind, j) / Q);
            }
        }
        (case, inputs)
    }

    /// The case of latent attention: keys of 576 elements, whose first 512 are the values.
    #[must_use]
    pub fn latent(self) -> Self {
        Case {
            dim: 576,
            modifiers: Modifiers {
                dim_v: Some(512),
                ..self.modifiers
            },
            values_in_keys: true,
            ..self
        }
    }

    /// The case in FP8, on one split, with the options that go with it.
    #[must_use]
    pub fn in_fp8(self) -> Self {
        Case {
            modifiers: Modifiers {
                fp8: true,
                hadamard: self.modifiers.hadamard,
                window: self.modifiers.window,
                softcap: self.modifiers.softcap,
                sinks: self.modifiers.sinks,
                sequences: self.modifiers.sequences,
                first_keys: self.modifiers.first_keys,
                dim_v: self.modifiers.dim_v,
                ..Modifiers::default()
            },
            splits: 0,
            ..self
        }
    }

    /// The case with keys and values of e4m3, without what that does not go with.
    #[must_use]
    pub fn with_e4m3(self, descales: Descales) -> Self {
        // Heads with descales of their own share no elements.
        let aligned = |layout| match layout {
            Layout::Bnhd | Layout::Padded => Layout::Bnhd,
            Layout::Reversed | Layout::OddReversed => Layout::Reversed,
            _ => Layout::Bhnd,
        };
        Case {
            dim: self.dim.next_multiple_of(16),
            k: aligned(self.k),
            v: aligned(self.v),
            modifiers: Modifiers {
                bias: None,
                mask: None,
                dim_v: None,
                fp8: false,
                e4m3: Some(descales),
                ..self.modifiers
            },
            ..self
        }
    }

    /// The case as its kernel serves it: kernels of latent attention and of FP8 serve nothing else.
    #[must_use]
    pub fn as_served(self) -> Self {
        match &self.kernel {
            Some(kernel) if kernel.starts_with("latent") => self.latent(),
            Some(kernel) if kernel.starts_with("fp8") && !kernel.contains("optional") => {
                let modifiers = Modifiers {
                    dim_v: self.modifiers.dim_v,
                    ..Modifiers::default()
                };
                Case { modifiers, ..self }.in_fp8()
            }
            Some(kernel) if kernel.starts_with("fp8") => self.in_fp8(),
            Some(kernel) if kernel.starts_with("decode_e4m3") => self.with_e4m3(Descales::Heads),
            _ => self,
        }
    }

    /// Runs the case on a device, outputs poisoned, with guard margins around all memory, and checks
    /// that o and lse agree with the reference, that nothing beside them was written, and that q, k
    /// and v are as before.
    ///
    /// # Errors
    /// Says what does not hold.
    pub fn run(&self, device: &Device, inputs: &Inputs) -> Result<Outputs, Failed> {
        match self.dtype {
            Dtype::F16 => self.run_in::<f16>(device, inputs),
            Dtype::Bf16 => self.run_in::<bf16>(device, inputs),
            Dtype::F32 => self.run_in::<f32>(device, inputs),
            other => unreachable!("no case is {}", other.name()),
        }
    }

    /// Keys and values: of e4m3, the nearest numbers times their descales.
    fn dequantised(&self, inputs: &Inputs) -> [Array4<f32>; 2] {
        let of = |tensor: usize, values: &Array4<f32>| {
            let Some(descales) = self.modifiers.e4m3 else {
                return values.clone();
            };
            let mut values = values.clone();
            for ((entry, head, ..), value) in values.indexed_iter_mut() {
                let descale = descales.of(&self.modifiers, tensor, [entry, head]);
                *value = F8E4M3::from_f32(*value).to_f32() * descale;
            }
            values
        };
        [of(0, &inputs.k), of(1, &inputs.v)]
    }

    fn run_in<T: Element>(&self, device: &Device, inputs: &Inputs) -> Result<Outputs, Failed> {
        let problem = self.problem()?;
        let place = |layout: Layout, shape| {
            Guarded::<T, 4>::poisoned(shape, layout.strides(shape), layout.shift())
        };
        let place_input = |layout, values: &Array4<f32>| {
            let mut tensor = place(layout, values.dim().into());
            tensor.fill(values.iter().map(|&value| T::from_f32(value)));
            tensor
        };
        let [k_values, v_values] = self.dequantised(inputs);
        let q = place_input(self.q, &inputs.q);
        let k = place_input(self.k, &k_values);
        let mut v = place_input(self.v, &v_values);
        let [.., dim_v] = self.v_shape();
        if self.values_in_keys {
            v = Guarded::poisoned(self.v_shape(), Layout::Bhnd.strides(self.v_shape()), 0);
            let keys: Vec<T> = k.elements().collect();
            let values = keys.chunks(self.dim).flat_map(|key| &key[..dim_v]);
            let values: Vec<T> = values.copied().collect();
            v.fill(values.into_iter());
        }
        let mut o = place(self.o, problem.o_shape());
        let [_, head, row, _] = Layout::Bhnd.strides([self.batch, self.heads, self.seqlen_q, 1]);
        let lse_strides = [head * self.heads as isize, head, row];
        let mut lse = Guarded::<f32, 3>::poisoned(problem.lse_shape(), lse_strides, 0);

        let on_device = [q.upload(device)?, k.upload(device)?, v.upload(device)?];
        let (mut device_o, mut device_lse) = (o.upload(device)?, lse.upload(device)?);
        let [device_q, device_k, device_v] = &on_device;
        let device_v = match self.values_in_keys {
            true => device_k.view().narrow(3, 0, dim_v)?,
            false => device_v.view(),
        };
        let modifiers = self.modifiers.tensors(device, &problem, self.seed)?;
        let attention = modifiers.of(self.options(device));
        match self.modifiers.e4m3 {
            None => attention.forward_into(
                device_q,
                device_k,
                &device_v,
                &mut device_o,
                &mut device_lse,
            )?,
            Some(_) => {
                let place = |layout: Layout, values: &Array4<f32>| {
                    let shape = values.dim().into();
                    let mut tensor =
                        Guarded::<F8E4M3, 4>::poisoned(shape, layout.strides(shape), 0);
                    tensor.fill(values.iter().map(|&value| F8E4M3::from_f32(value)));
                    tensor
                };
                let (k, v) = (place(self.k, &inputs.k), place(self.v, &inputs.v));
                let on_device = [k.upload(device)?, v.upload(device)?];
                let [device_k, device_v] = &on_device;
                attention.forward_e4m3_cache_into(
                    device_q,
                    device_k,
                    device_v,
                    &mut device_o,
                    &mut device_lse,
                )?;
                for ((name, before), after) in [("k", k), ("v", v)].into_iter().zip(on_device) {
                    if !before.is_unchanged(after)? {
                        return Err(format!("{name} was overwritten").into());
                    }
                }
            }
        }
        o.download(device_o)?;
        lse.download(device_lse)?;
        harness::count_run(device);

        for ((name, before), after) in [("q", &q), ("k", &k), ("v", &v)].into_iter().zip(on_device)
        {
            if !before.is_unchanged(after)? {
                return Err(format!("{name} was overwritten").into());
            }
        }
        for (name, overrun) in [("o", o.overrun()), ("lse", lse.overrun())] {
            if let Some(element) = overrun {
                return Err(format!("written outside {name}, {element} from its first").into());
            }
        }
        let lse = Array3::from_shape_vec(problem.lse_shape(), lse.elements().collect())?;
        let elements = |tensor: &Guarded<T, 4>| tensor.elements().collect::<Vec<_>>();
        let allowed = self.modifiers.allowed(&problem);
        let on_host = allowed.tensors(&Device::cpu(), &problem, self.seed)?;
        let forward = Forward {
            problem: &problem,
            options: on_host.of(Attention::new()).host_options(&problem)?,
            q: &elements(&q),
            k: &elements(&k),
            v: &elements(&v),
            o: &elements(&o),
            lse: lse.as_slice().expect("row-major"),
            acc: self
                .ladder_on(device)
                .map(|ladder| ladder.sums_in())
                .unwrap_or_default(),
        };
        let report = check_forward(&forward, &allowed, self.seed);
        if !report.passed() {
            return Err(report.into());
        }
        let o = o.elements().map(Element::to_f32).collect();
        Ok(Outputs {
            o: Array4::from_shape_vec(problem.o_shape(), o)?,
            lse,
            report,
        })
    }

    /// The options of the case on a device.
    pub fn options(&self, device: &Device) -> Attention<'static> {
        let mut options = Attention::new().causal(self.causal).splits(self.splits);
        let fp8 = Fp8::new().hadamard(self.modifiers.hadamard);
        options = options.fp8(self.modifiers.fp8.then_some(fp8));
        if let Some(scale) = self.scale {
            options = options.scale(scale);
        }
        if let Some(kernel) = self.kernel.as_ref().filter(|_| !device.is_cpu()) {
            options = options.kernel(kernel);
        }
        match self.ladder_on(device) {
            Some(ladder) => options.planner(ladder),
            None => options,
        }
    }

    fn ladder_on(&self, device: &Device) -> Option<Ladder> {
        self.ladder.filter(|_| !device.is_cpu())
    }

    /// Sizes and options as the library wants them.
    ///
    /// # Errors
    /// If they are not allowed.
    pub fn problem(&self) -> Result<Problem, Error> {
        let Modifiers {
            window, softcap, ..
        } = self.modifiers;
        // Of a cache or of pages, what the call reads.
        let read = |[_, heads, _, dim]: [usize; 4]| [self.batch, heads, self.seqlen_kv, dim];
        let [q, k, v] = [self.q_shape(), read(self.kv_shape()), read(self.v_shape())];
        let mut problem = Problem::new(q, k, v, self.causal, self.scale)?;
        (problem.window, problem.softcap) = (window, softcap);
        Ok(problem)
    }

    /// Shape of q.
    #[must_use]
    pub fn q_shape(&self) -> [usize; 4] {
        [self.batch, self.heads, self.seqlen_q, self.dim]
    }

    /// Shape of k, and of v unless it has a [head dim of its own](Modifiers::dim_v).
    #[must_use]
    pub fn kv_shape(&self) -> [usize; 4] {
        let cache = self.modifiers.cache.as_ref();
        let entries = cache.map_or(self.batch, |cache| cache.entries);
        let (entries, keys) = match &self.modifiers.pages {
            Some(pages) => (pages.count, pages.keys),
            None => (entries, self.seqlen_kv),
        };
        [entries, self.kv_heads, keys, self.dim]
    }

    /// Shape of o.
    #[must_use]
    pub fn o_shape(&self) -> [usize; 4] {
        let [.., dim_v] = self.v_shape();
        [self.batch, self.heads, self.seqlen_q, dim_v]
    }

    /// Shape of v.
    #[must_use]
    pub fn v_shape(&self) -> [usize; 4] {
        let [entries, heads, keys, dim] = self.kv_shape();
        [entries, heads, keys, self.modifiers.dim_v.unwrap_or(dim)]
    }
}
