//! q, k and v that are e4m3 before the call.

use crate::args::Args;
use ferroattn::check::{Expected, Forward, Report};
use ferroattn::{Attention, Device, Dtype, Element, F8E4M3, Problem, Result, Rounded, Tensor};
use ndarray::{Array2, Array4};

/// q, k and v on the device.
pub struct E4m3 {
    qkv: [Tensor<F8E4M3>; 3],
    /// What multiplies each of them, `[batch, kv_heads]`.
    descales: Option<[Tensor<f32, 2>; 3]>,
}

impl E4m3 {
    /// Rounds row-major q, k and v, and copies them to the device.
    pub fn new<T: Element>(
        device: &Device,
        args: &Args,
        problem: &Problem,
        [q, k, v]: [&[T]; 3],
    ) -> Result<Self> {
        let shape = [problem.batch, problem.kv_heads];
        let descale = |scale| Tensor::new(device, shape, &vec![scale; shape[0] * shape[1]]);
        let descales = args.modifiers.fp8_scales;
        let descales = descales.map(|[q, k, v]| Ok([descale(q)?, descale(k)?, descale(v)?]));
        Ok(E4m3 {
            qkv: [
                Tensor::new(device, problem.q_shape(), &rounded(q))?,
                Tensor::new(device, problem.k_shape(), &rounded(k))?,
                Tensor::new(device, problem.v_shape(), &rounded(v))?,
            ],
            descales: descales.transpose()?,
        })
    }

    /// Computes o and lse.
    pub fn forward<T: Element>(
        &self,
        call: &Attention,
        o: &mut Tensor<T>,
        lse: &mut Tensor<f32, 3>,
    ) -> Result<()> {
        let call = match &self.descales {
            Some([q, k, v]) => call.descales(q, k, v),
            None => call.clone(),
        };
        let [q, k, v] = &self.qkv;
        call.forward_e4m3_into(q, k, v, o, lse)
    }

    /// Compares some rows of o and lse with the reference; q, k and v of `forward` are not rounded yet.
    pub fn check<T: Element>(&self, args: &Args, forward: &Forward<T>, rows: &[usize]) -> Report {
        let p = forward.problem;
        let [q, k, v] = [
            (forward.q, p.q_shape()),
            (forward.k, p.k_shape()),
            (forward.v, p.v_shape()),
        ]
        .map(|(numbers, shape)| {
            Array4::from_shape_vec(shape, rounded(numbers)).expect("its shape")
        });
        let scales = args.modifiers.fp8_scales.unwrap_or([1.0; 3]);
        let descales = scales.map(|scale| Array2::from_elem([p.batch, p.kv_heads], scale));
        let descales = descales.each_ref().map(|descales| descales.view());
        let fp8 = args.rounding().unwrap_or_default();
        let inputs = [q.view(), k.view(), v.view()];
        let rounded = Rounded::of_e4m3_call(fp8, p, &forward.options, inputs, descales);
        let expected = match self.qkv[0].device().is_cpu() && T::DTYPE == Dtype::F32 {
            true => Expected::of_rounded_in_f32,
            false => Expected::of_rounded::<T>,
        };
        expected(p, forward.options, &rounded, rows).compare(forward)
    }
}

/// Numbers of e4m3.
fn rounded<T: Element>(numbers: &[T]) -> Vec<F8E4M3> {
    let numbers = numbers.iter();
    numbers.map(|x| F8E4M3::from_f32(x.to_f32())).collect()
}
