//! Both passes of a sample on the CPU, and the checks of what they gave.

use super::samples::Sample;
use crate::backward::BackwardInputs;
use crate::backward::check::{self as gradients, Backward, all_keys};
use crate::check::{self, Forward, all_rows};
use crate::device::Device;
use crate::gemm::Accumulation;
use crate::random;
use crate::tensor::{Element, Tensor};

/// Inputs and results of both passes.
#[derive(Clone)]
pub(crate) struct Passes<'a, T> {
    pub sample: &'a Sample,
    pub q: Vec<T>,
    pub k: Vec<T>,
    pub v: Vec<T>,
    pub d_o: Vec<T>,
    pub d_lse: Vec<f32>,
    pub o: Vec<T>,
    pub lse: Vec<f32>,
    pub dq: Vec<T>,
    pub dk: Vec<T>,
    pub dv: Vec<T>,
    pub d_sinks: Option<Vec<f32>>,
    pub d_bias: Option<([usize; 4], Vec<f32>)>,
}

/// A vector of a tensor on the CPU.
fn host<T: bytemuck::Pod, const R: usize>(tensor: &Tensor<T, R>) -> Vec<T> {
    tensor.to_vec().expect("on the CPU")
}

impl<'a, T: Element> Passes<'a, T> {
    /// The passes of random inputs.
    pub fn new(sample: &'a Sample) -> Self {
        let [q, k, v] = random::inputs(&sample.problem, sample.seed);
        Self::of(sample, [q, k, v])
    }

    /// The passes of these q, k and v.
    pub fn of(sample: &'a Sample, [q, k, v]: [Vec<T>; 3]) -> Self {
        let p = &sample.problem;
        let cpu = Device::cpu();
        let d_o = random::output_gradient::<T>(p, sample.seed);
        let [mut d_lse, _, _] = random::inputs::<f32>(p, sample.seed + 1);
        d_lse.truncate(p.lse_shape().iter().product());
        let on_cpu = |shape, data: &[T]| Tensor::new(&cpu, shape, data).expect("valid");
        let [of_q, of_k] = [on_cpu(p.q_shape(), &q), on_cpu(p.k_shape(), &k)];
        let [of_v, of_d_o] = [on_cpu(p.v_shape(), &v), on_cpu(p.o_shape(), &d_o)];
        let of_d_lse = Tensor::new(&cpu, p.lse_shape(), &d_lse).expect("valid");
        let attention = sample.attention();
        let (o, lse) = attention.forward(&of_q, &of_k, &of_v).expect("valid");
        let inputs = BackwardInputs::new(&of_q, &of_k, &of_v, &o, &lse, &of_d_o).d_lse(&of_d_lse);
        let found = attention.backward_all(&inputs).expect("valid");
        Passes {
            sample,
            q,
            k,
            v,
            d_o,
            d_lse,
            o: host(&o),
            lse: host(&lse),
            dq: host(&found.dq),
            dk: host(&found.dk),
            dv: host(&found.dv),
            d_sinks: found.d_sinks.as_ref().map(host),
            d_bias: found.d_bias.map(|d_bias| (d_bias.shape(), host(&d_bias))),
        }
    }

    /// How o and lse compare.
    pub fn forward(&self) -> check::Report {
        check::check(&self.as_forward(), &all_rows(&self.sample.problem))
    }

    /// The forward pass, for its check.
    pub fn as_forward(&self) -> Forward<'_, T> {
        let p = &self.sample.problem;
        Forward {
            problem: p,
            options: self.sample.attention().host_options(p).expect("on the CPU"),
            q: &self.q,
            k: &self.k,
            v: &self.v,
            o: &self.o,
            lse: &self.lse,
            acc: Accumulation::Single,
        }
    }

    /// Right gradients of these inputs.
    pub fn expected_gradients(&self) -> gradients::Expected {
        let p = &self.sample.problem;
        gradients::Expected::new(&self.as_backward(), &all_rows(p), &all_keys(p))
    }

    /// The backward pass, for its check.
    pub fn as_backward(&self) -> Backward<'_, T> {
        let p = &self.sample.problem;
        Backward {
            problem: p,
            options: self.sample.attention().host_options(p).expect("on the CPU"),
            q: &self.q,
            k: &self.k,
            v: &self.v,
            d_o: &self.d_o,
            d_lse: Some(&self.d_lse),
            dq: &self.dq,
            dk: &self.dk,
            dv: &self.dv,
            d_sinks: self.d_sinks.as_deref(),
            d_bias: self
                .d_bias
                .as_ref()
                .map(|(shape, d_bias)| (*shape, &d_bias[..])),
        }
    }
}
