//! Both passes with random inputs, and what the library's checks say to the results.

use ferroattn::backward::check as backward;
use ferroattn::check as forward;
use ferroattn::random;
use ferroattn::{Accumulation, Attention, Device, Element, HostOptions, Problem, Result, Tensor};

/// Inputs and results in host memory.
pub struct Passes<T> {
    /// Sizes and options.
    pub problem: Problem,
    /// q, k and v.
    pub inputs: [Vec<T>; 3],
    /// The gradient of o.
    pub d_o: Vec<T>,
    /// The output.
    pub o: Vec<T>,
    /// The row log-sum-exp.
    pub lse: Vec<f32>,
    /// dq, dk and dv.
    pub gradients: [Vec<T>; 3],
}

impl<T: Element> Passes<T> {
    /// Computes `call` on a device, for q of a shape and as many key/value heads.
    ///
    /// # Errors
    /// The library's errors.
    pub fn compute(
        device: &Device,
        call: &Attention,
        q: [usize; 4],
        kv_heads: usize,
        spoil: impl FnOnce(&mut [Vec<T>; 3]),
    ) -> Result<Self> {
        let [batch, _, tokens, dim] = q;
        let kv = [batch, kv_heads, tokens, dim];
        let problem = call.problem(q, kv, kv)?;
        let mut inputs = random::inputs::<T>(&problem, 1);
        spoil(&mut inputs);
        let d_o = random::output_gradient::<T>(&problem, 1);
        let on_device = |shape, data: &[T]| Tensor::new(device, shape, data);
        let [q, k, v] = [
            on_device(q, &inputs[0])?,
            on_device(kv, &inputs[1])?,
            on_device(kv, &inputs[2])?,
        ];
        let (o, lse) = call.forward(&q, &k, &v)?;
        let of_o = on_device(problem.o_shape(), &d_o)?;
        let (dq, dk, dv) = call.backward(&q, &k, &v, &o, &lse, &of_o)?;
        Ok(Passes {
            problem,
            inputs,
            d_o,
            o: o.to_vec()?,
            lse: lse.to_vec()?,
            gradients: [dq.to_vec()?, dk.to_vec()?, dv.to_vec()?],
        })
    }

    /// Compares the results with attention in f64, by the options of a call on the CPU.
    pub fn check(&self, options: HostOptions) -> (forward::Report, backward::Report) {
        let Passes {
            problem,
            d_o,
            o,
            lse,
            ..
        } = self;
        let ([q, k, v], [dq, dk, dv]) = (&self.inputs, &self.gradients);
        let (rows, keys) = (forward::all_rows(problem), backward::all_keys(problem));
        let acc = Accumulation::Single;
        let passed = forward::Forward {
            problem,
            options,
            q,
            k,
            v,
            o,
            lse,
            acc,
        };
        let gradients = backward::Backward {
            problem,
            options,
            q,
            k,
            v,
            d_o,
            d_lse: None,
            dq,
            dk,
            dv,
            d_sinks: None,
            d_bias: None,
        };
        (
            forward::check(&passed, &rows),
            backward::check(&gradients, &rows, &keys),
        )
    }
}
