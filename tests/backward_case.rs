//! One backward pass, and what must hold of it.

use crate::references::check_backward;
use crate::{Case, Guarded, Inputs, Layout, Outcome, PASSED, harness};
use ferroattn::backward::check::{Backward, Report};
use ferroattn::{
    Attention, Device, Dtype, Element, RawBackward, RawForward, RawOptions, Tensor, bf16, f16,
};
use libtest_mimic::Failed;
use ndarray::{Array3, Array4};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A forward pass, and the memory layouts of its gradients.
///
/// Displays as JSON on one line, which `FERROATTN_CASE='...' cargo test -p tests --test devices` runs again.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct BackwardCase {
    /// The forward pass; its kernel is the backward pass's.
    pub forward: Case,
    /// Memory layout of d_o.
    #[serde(default)]
    pub d_o: Layout,
    /// Memory layout of dq.
    #[serde(default)]
    pub dq: Layout,
    /// Memory layout of dk.
    #[serde(default)]
    pub dk: Layout,
    /// Memory layout of dv.
    #[serde(default)]
    pub dv: Layout,
    /// Whether lse has a gradient.
    #[serde(default)]
    pub d_lse: bool,
    /// Whether dq may be summed in any order.
    #[serde(default)]
    pub any_order: bool,
}

impl fmt::Display for BackwardCase {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).expect("plain data"))
    }
}

impl From<Case> for BackwardCase {
    fn from(forward: Case) -> Self {
        BackwardCase {
            forward,
            ..Self::default()
        }
    }
}

/// The numbers that a backward pass begins with, to be rounded to the case's dtype.
pub struct BackwardInputs {
    /// q, k and v.
    pub forward: Inputs,
    /// `[batch, heads, seqlen_q, dim_v]`.
    pub d_o: Array4<f32>,
    /// `[batch, heads, seqlen_q]`; used if the case has a gradient of lse.
    pub d_lse: Array3<f32>,
}

/// The results of the forward pass.
pub struct Saved {
    /// `[batch, heads, seqlen_q, dim_v]`.
    pub o: Array4<f32>,
    /// `[batch, heads, seqlen_q]`.
    pub lse: Array3<f32>,
}

/// The gradients, in `f32`.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradients {
    /// `[batch, heads, seqlen_q, dim]`.
    pub dq: Array4<f32>,
    /// `[batch, kv_heads, seqlen_kv, dim]`.
    pub dk: Array4<f32>,
    /// `[batch, kv_heads, seqlen_kv, dim_v]`.
    pub dv: Array4<f32>,
}

impl BackwardCase {
    /// Runs the case on normally distributed inputs and checks all that [`run`](Self::run) checks.
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

    /// The inputs of the case's seed.
    #[must_use]
    pub fn inputs(&self) -> BackwardInputs {
        self.inputs_with(self.forward.inputs())
    }

    /// These inputs of the forward pass, with gradients of the case's seed.
    #[must_use]
    pub fn inputs_with(&self, forward: Inputs) -> BackwardInputs {
        let mut rng = StdRng::seed_from_u64(!self.forward.seed);
        let [batch, heads, rows, _] = self.forward.q_shape();
        BackwardInputs {
            forward,
            d_o: Array4::from_shape_simple_fn(self.forward.o_shape(), || {
                rng.sample(StandardNormal)
            }),
            d_lse: Array3::from_shape_simple_fn([batch, heads, rows], || {
                rng.sample(StandardNormal)
            }),
        }
    }

    /// Runs the case on a device, outputs poisoned, with guard margins around all memory, and checks that dq, dk and dv
    /// agree with the reference, that nothing beside them was written, and that the inputs are as before.
    ///
    /// # Errors
    /// Says what does not hold.
    pub fn run(&self, device: &Device, inputs: &BackwardInputs) -> Result<Gradients, Failed> {
        let (gradients, report) = self.run_with(device, inputs, |_| ())?;
        if !report.passed() {
            return Err(report.into());
        }
        Ok(gradients)
    }

    /// Runs the case after `change` changed the forward pass's results; the report is as for the unchanged ones.
    ///
    /// # Errors
    /// Says what does not hold, the agreement aside.
    pub fn run_with(
        &self,
        device: &Device,
        inputs: &BackwardInputs,
        change: impl FnOnce(&mut Saved),
    ) -> Result<(Gradients, Report), Failed> {
        match self.forward.dtype {
            Dtype::F16 => self.run_in::<f16>(device, inputs, change),
            Dtype::Bf16 => self.run_in::<bf16>(device, inputs, change),
            Dtype::F32 => self.run_in::<f32>(device, inputs, change),
            other => unreachable!("no case is {}", other.name()),
        }
    }

    fn run_in<T: Element>(
        &self,
        device: &Device,
        inputs: &BackwardInputs,
        change: impl FnOnce(&mut Saved),
    ) -> Result<(Gradients, Report), Failed> {
        let case = &self.forward;
        let problem = case.problem()?;
        let allowed = case.modifiers.allowed(&problem);
        let on_host = allowed.tensors(&Device::cpu(), &problem, case.seed)?;
        let modifiers = case.modifiers.tensors(device, &problem, case.seed)?;
        let q = placed(case.q, &inputs.forward.q);
        let k = placed(case.k, &inputs.forward.k);
        let v = placed(case.v, &inputs.forward.v);
        let mut saved = saved::<T>(&on_host.of(self.options()), &q, &k, &v)?;
        change(&mut saved);
        let read = Read {
            q,
            k,
            v,
            o: placed(case.o, &saved.o),
            d_o: placed(self.d_o, &inputs.d_o),
            lse: placed_rows(&saved.lse),
            d_lse: self.d_lse.then(|| placed_rows(&inputs.d_lse)),
        };
        let mut written = Written::poisoned(self, case.modifiers.d_bias_shape(&problem));
        let attention = match &case.kernel {
            Some(kernel) => self.options().kernel(kernel),
            None => self.options(),
        };
        self.launch(&modifiers.of(attention), device, &read, &mut written)?;
        written.expect_no_overrun()?;

        let elements = |tensor: &Guarded<T, 4>| tensor.elements().collect::<Vec<_>>();
        let [dq, dk, dv] = [&written.dq, &written.dk, &written.dv].map(elements);
        let d_lse: Option<Vec<f32>> = read.d_lse.map(|d_lse| d_lse.elements().collect());
        let d_sinks: Vec<f32> = written.d_sinks.elements().collect();
        let d_bias = written.d_bias.map(|(shape, d_bias)| {
            let elements: Vec<f32> = d_bias.elements().collect();
            (shape, elements)
        });
        let backward = Backward {
            problem: &problem,
            options: on_host.of(Attention::new()).host_options(&problem)?,
            q: &elements(&read.q),
            k: &elements(&read.k),
            v: &elements(&read.v),
            d_o: &elements(&read.d_o),
            d_lse: d_lse.as_deref(),
            dq: &dq,
            dk: &dk,
            dv: &dv,
            d_sinks: case.modifiers.sinks.then_some(&d_sinks),
            d_bias: d_bias.as_ref().map(|(shape, d_bias)| (*shape, &**d_bias)),
        };
        let report = check_backward(&backward, &allowed, case.seed);
        let array = |shape, elements: Vec<T>| {
            Array4::from_shape_vec(shape, elements.into_iter().map(Element::to_f32).collect())
        };
        let gradients = Gradients {
            dq: array(case.q_shape(), dq)?,
            dk: array(case.kv_shape(), dk)?,
            dv: array(case.v_shape(), dv)?,
        };
        Ok((gradients, report))
    }

    /// Computes what is written from what is read, which must stay as it is.
    fn launch<T: Element>(
        &self,
        attention: &Attention,
        device: &Device,
        read: &Read<T>,
        written: &mut Written<T>,
    ) -> Result<(), Failed> {
        let tensors = read.tensors();
        let mut on_device = Vec::new();
        for (_, tensor) in tensors {
            on_device.push(tensor.upload(device)?);
        }
        let rows = read.rows();
        let mut rows_on_device = Vec::new();
        for (_, rows) in &rows {
            rows_on_device.push(rows.upload(device)?);
        }
        let (mut dq, mut dk, mut dv) = (
            written.dq.upload(device)?,
            written.dk.upload(device)?,
            written.dv.upload(device)?,
        );
        let mut d_sinks = written.d_sinks.upload(device)?;
        let d_bias = written.d_bias.as_ref();
        let mut d_bias = d_bias
            .map(|(_, d_bias)| d_bias.upload(device))
            .transpose()?;

        let [q, k, v, o, d_o] = [0, 1, 2, 3, 4].map(|i| on_device[i].as_raw());
        let forward = RawForward {
            q,
            k,
            v,
            o,
            lse: rows_on_device[0].as_raw(),
            options: RawOptions::default(),
        };
        let places = [dq.as_raw_mut(), dk.as_raw_mut(), dv.as_raw_mut()];
        let mut args = RawBackward::new(&forward, d_o, places);
        args.d_lse = rows_on_device.get(1).map(Tensor::as_raw);
        let has_sinks = self.forward.modifiers.sinks;
        args.d_sinks = has_sinks.then(|| d_sinks.as_raw_mut());
        args.d_bias = d_bias.as_mut().map(Tensor::as_raw_mut);
        // SAFETY: each tensor has a buffer of its own on the device, of the types that the call takes; they live on until
        // their downloads, which wait for the work on the default stream.
        unsafe { attention.backward_raw(device, T::DTYPE, &args, std::ptr::null_mut())? }
        written.dq.download(dq)?;
        written.dk.download(dk)?;
        written.dv.download(dv)?;
        written.d_sinks.download(d_sinks)?;
        if let Some(((_, host), d_bias)) = written.d_bias.as_mut().zip(d_bias) {
            host.download(d_bias)?;
        }
        harness::count_run(device);

        for ((name, before), after) in tensors.into_iter().zip(on_device) {
            if !before.is_unchanged(after)? {
                return Err(format!("{name} was overwritten").into());
            }
        }
        for ((name, before), after) in rows.into_iter().zip(rows_on_device) {
            if !before.is_unchanged(after)? {
                return Err(format!("{name} was overwritten").into());
            }
        }
        Ok(())
    }

    /// The options of the case, the kernel aside.
    pub fn options(&self) -> Attention<'static> {
        let options = Attention::new().causal(self.forward.causal);
        let options = options.deterministic(!self.any_order);
        match self.forward.scale {
            Some(scale) => options.scale(scale),
            None => options,
        }
    }
}

/// What a backward pass reads.
struct Read<T> {
    q: Guarded<T, 4>,
    k: Guarded<T, 4>,
    v: Guarded<T, 4>,
    o: Guarded<T, 4>,
    d_o: Guarded<T, 4>,
    lse: Guarded<f32, 3>,
    d_lse: Option<Guarded<f32, 3>>,
}

impl<T> Read<T> {
    fn tensors(&self) -> [(&str, &Guarded<T, 4>); 5] {
        [
            ("q", &self.q),
            ("k", &self.k),
            ("v", &self.v),
            ("o", &self.o),
            ("d_o", &self.d_o),
        ]
    }

    /// Numbers of rows: lse and, if it has one, its gradient.
    fn rows(&self) -> Vec<(&str, &Guarded<f32, 3>)> {
        let d_lse = self.d_lse.as_ref().map(|d_lse| ("d_lse", d_lse));
        [("lse", &self.lse)].into_iter().chain(d_lse).collect()
    }
}

/// What a backward pass writes.
struct Written<T> {
    dq: Guarded<T, 4>,
    dk: Guarded<T, 4>,
    dv: Guarded<T, 4>,
    d_sinks: Guarded<f32, 1>,
    /// With its shape.
    d_bias: Option<([usize; 4], Guarded<f32, 4>)>,
}

impl<T: Element> Written<T> {
    fn poisoned(backward: &BackwardCase, d_bias: Option<[usize; 4]>) -> Self {
        let case = &backward.forward;
        Written {
            dq: poisoned(backward.dq, case.q_shape()),
            dk: poisoned(backward.dk, case.kv_shape()),
            dv: poisoned(backward.dv, case.v_shape()),
            d_sinks: Guarded::poisoned([case.heads], [1], 0),
            d_bias: d_bias.map(|shape| {
                let strides = Layout::Bhnd.strides(shape);
                (shape, Guarded::poisoned(shape, strides, 0))
            }),
        }
    }

    fn expect_no_overrun(&self) -> Result<(), Failed> {
        let d_bias = self.d_bias.as_ref();
        let overruns = [
            ("dq", self.dq.overrun()),
            ("dk", self.dk.overrun()),
            ("dv", self.dv.overrun()),
            ("d_sinks", self.d_sinks.overrun()),
            ("d_bias", d_bias.and_then(|(_, d_bias)| d_bias.overrun())),
        ];
        for (name, overrun) in overruns {
            if let Some(element) = overrun {
                return Err(format!("written outside {name}, {element} from its first").into());
            }
        }
        Ok(())
    }
}

fn poisoned<T: Element>(layout: Layout, shape: [usize; 4]) -> Guarded<T, 4> {
    Guarded::poisoned(shape, layout.strides(shape), layout.shift())
}

fn placed<T: Element>(layout: Layout, values: &Array4<f32>) -> Guarded<T, 4> {
    let mut tensor = poisoned(layout, values.dim().into());
    tensor.fill(values.iter().map(|&value| T::from_f32(value)));
    tensor
}

fn placed_rows(values: &Array3<f32>) -> Guarded<f32, 3> {
    let shape: [usize; 3] = values.dim().into();
    let [batch, heads, queries] = shape;
    let [batch, head, row, _] = Layout::Bhnd.strides([batch, heads, queries, 1]);
    let mut rows = Guarded::poisoned(shape, [batch, head, row], 0);
    rows.fill(values.iter().copied());
    rows
}

/// The CPU's o and lse, whose rounding is no worse than another device's.
fn saved<T: Element>(
    options: &Attention,
    q: &Guarded<T, 4>,
    k: &Guarded<T, 4>,
    v: &Guarded<T, 4>,
) -> Result<Saved, Failed> {
    let cpu = Device::cpu();
    let (q, k, v) = (q.upload(&cpu)?, k.upload(&cpu)?, v.upload(&cpu)?);
    let (o, lse) = options.forward(&q, &k, &v)?;
    let elements = o.to_vec()?.into_iter().map(Element::to_f32).collect();
    Ok(Saved {
        o: Array4::from_shape_vec(o.shape(), elements)?,
        lse: Array3::from_shape_vec(lse.shape(), lse.to_vec()?)?,
    })
}
