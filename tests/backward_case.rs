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
        let place = |layout: Layout, shape| {
            Guarded::<T, 4>::poisoned(shape, layout.strides(shape), layout.shift())
        };
        let place_input = |layout, values: &Array4<f32>| {
            let mut tensor = place(layout, values.dim().into());
            tensor.fill(values.iter().map(|&value| T::from_f32(value)));
            tensor
        };
        let place_rows = |values: &Array3<f32>| {
            let [_, head, row, _] =
                Layout::Bhnd.strides([case.batch, case.heads, case.seqlen_q, 1]);
            let strides = [head * case.heads as isize, head, row];
            let mut rows = Guarded::<f32, 3>::poisoned(problem.lse_shape(), strides, 0);
            rows.fill(values.iter().copied());
            rows
        };
        let q = place_input(case.q, &inputs.forward.q);
        let k = place_input(case.k, &inputs.forward.k);
        let v = place_input(case.v, &inputs.forward.v);
        let d_o = place_input(self.d_o, &inputs.d_o);
        let allowed = case.modifiers.allowed(&problem);
        let on_host = allowed.tensors(&Device::cpu(), &problem, case.seed)?;
        let modifiers = case.modifiers.tensors(device, &problem, case.seed)?;
        let mut saved = saved(&on_host.of(self.options()), &q, &k, &v)?;
        change(&mut saved);
        let (o, lse) = (place_input(case.o, &saved.o), place_rows(&saved.lse));
        let d_lse = self.d_lse.then(|| place_rows(&inputs.d_lse));
        let mut gradients = [
            ("dq", place(self.dq, case.q_shape())),
            ("dk", place(self.dk, case.kv_shape())),
            ("dv", place(self.dv, case.v_shape())),
        ];

        let read = [("q", &q), ("k", &k), ("v", &v), ("o", &o), ("d_o", &d_o)];
        let mut on_device = Vec::new();
        for (_, tensor) in read {
            on_device.push(tensor.upload(device)?);
        }
        let on_device_lse = lse.upload(device)?;
        let on_device_d_lse = d_lse
            .as_ref()
            .map(|d_lse| d_lse.upload(device))
            .transpose()?;
        let [dq, dk, dv] = gradients
            .each_ref()
            .map(|(_, gradient)| gradient.upload(device));
        let (mut dq, mut dk, mut dv) = (dq?, dk?, dv?);
        let attention = match &case.kernel {
            Some(kernel) => self.options().kernel(kernel),
            None => self.options(),
        };
        let attention = modifiers.of(attention);
        let mut d_sinks = Guarded::<f32, 1>::poisoned([case.heads], [1], 0);
        let mut device_d_sinks = d_sinks.upload(device)?;
        let d_bias_shape = case.modifiers.d_bias_shape(&problem);
        let place_bias = |shape: [usize; 4]| {
            let strides = Layout::Bhnd.strides(shape);
            Guarded::<f32, 4>::poisoned(shape, strides, 0)
        };
        let mut d_bias = d_bias_shape.map(place_bias);
        let mut device_d_bias = d_bias
            .as_ref()
            .map(|d_bias| d_bias.upload(device))
            .transpose()?;
        let [device_q, device_k, device_v, device_o, device_d_o] =
            [0, 1, 2, 3, 4].map(|i| on_device[i].as_raw());
        let forward = RawForward {
            q: device_q,
            k: device_k,
            v: device_v,
            o: device_o,
            lse: on_device_lse.as_raw(),
            options: RawOptions::default(),
        };
        let places = [dq.as_raw_mut(), dk.as_raw_mut(), dv.as_raw_mut()];
        let mut args = RawBackward::new(&forward, device_d_o, places);
        args.d_lse = on_device_d_lse.as_ref().map(Tensor::as_raw);
        args.d_sinks = case.modifiers.sinks.then(|| device_d_sinks.as_raw_mut());
        args.d_bias = device_d_bias.as_mut().map(Tensor::as_raw_mut);
        // SAFETY: each tensor has a buffer of its own on the device, of the types that the call takes; they live on until
        // their downloads, which wait for the work on the default stream.
        unsafe { attention.backward_raw(device, T::DTYPE, &args, std::ptr::null_mut())? }
        d_sinks.download(device_d_sinks)?;
        if let Some((d_bias, on_device)) = d_bias.as_mut().zip(device_d_bias) {
            d_bias.download(on_device)?;
            if let Some(element) = d_bias.overrun() {
                return Err(format!("written outside d_bias, {element} from its first").into());
            }
        }
        for ((_, gradient), on_device) in gradients.iter_mut().zip([dq, dk, dv]) {
            gradient.download(on_device)?;
        }
        harness::count_run(device);

        for ((name, before), after) in read.into_iter().zip(on_device) {
            if !before.is_unchanged(after)? {
                return Err(format!("{name} was overwritten").into());
            }
        }
        let rows = [
            ("lse", Some((&lse, on_device_lse))),
            ("d_lse", d_lse.as_ref().zip(on_device_d_lse)),
        ];
        for (name, rows) in rows {
            let Some((before, after)) = rows else {
                continue;
            };
            if !before.is_unchanged(after)? {
                return Err(format!("{name} was overwritten").into());
            }
        }
        for (name, gradient) in &gradients {
            if let Some(element) = gradient.overrun() {
                return Err(format!("written outside {name}, {element} from its first").into());
            }
        }
        let elements = |tensor: &Guarded<T, 4>| tensor.elements().collect::<Vec<_>>();
        let [dq, dk, dv] = gradients.each_ref().map(|(_, gradient)| elements(gradient));
        if let Some(element) = d_sinks.overrun() {
            return Err(format!("written outside d_sinks, {element} from its first").into());
        }
        let d_sinks = case
            .modifiers
            .sinks
            .then(|| d_sinks.elements().collect::<Vec<_>>());
        let d_bias: Option<Vec<f32>> = d_bias.map(|d_bias| d_bias.elements().collect());
        let d_lse: Option<Vec<f32>> = d_lse.map(|d_lse| d_lse.elements().collect());
        let backward = Backward {
            problem: &problem,
            options: on_host.of(Attention::new()).host_options(&problem)?,
            q: &elements(&q),
            k: &elements(&k),
            v: &elements(&v),
            d_o: &elements(&d_o),
            d_lse: d_lse.as_deref(),
            dq: &dq,
            dk: &dk,
            dv: &dv,
            d_sinks: d_sinks.as_deref(),
            d_bias: d_bias_shape.zip(d_bias.as_deref()),
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
