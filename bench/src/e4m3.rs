//! Inputs that are e4m3 before a call.

use crate::keys::keys;
use crate::shape::{Fp8Inputs, Shape};
use anyhow::Result;
use ferroattn::check::Expected;
use ferroattn::{Attention, Device, Element, F8E4M3, Fp8, Problem, Rounded, Tensor};
use ndarray::{Array2, Array4};

/// q, k and v of e4m3 on a device.
pub struct E4m3Inputs {
    /// Queries, unless they have 16 bits.
    pub q: Option<Tensor<F8E4M3>>,
    pub k: Tensor<F8E4M3>,
    pub v: Tensor<F8E4M3>,
}

impl E4m3Inputs {
    /// The numbers of q, k and v, rounded to e4m3 in `host`, too.
    pub fn new<T: Element>(
        device: &Device,
        shape: &Shape,
        problem: &Problem,
        host: &mut [Vec<T>; 3],
    ) -> ferroattn::Result<Self> {
        let [q, k, v] = host;
        Ok(E4m3Inputs {
            q: match shape.fp8 {
                Some(Fp8Inputs::E4m3) => Some(Tensor::new(device, problem.q_shape(), &rounded(q))?),
                _ => None,
            },
            k: keys(device, shape, shape.dim, &rounded(k))?,
            v: keys(device, shape, shape.dim_v(), &rounded(v))?,
        })
    }

    /// The results of some rows, if q is e4m3, too.
    pub fn expected<T: Element>(
        &self,
        problem: &Problem,
        attention: &Attention,
        rows: &[usize],
    ) -> Option<Result<Expected>> {
        let q = self.q.as_ref()?;
        Some(self.expected_of::<T>(q, problem, attention, rows))
    }

    fn expected_of<T: Element>(
        &self,
        q: &Tensor<F8E4M3>,
        problem: &Problem,
        attention: &Attention,
        rows: &[usize],
    ) -> Result<Expected> {
        let [q, k, v] = [q, &self.k, &self.v].map(|input| {
            let numbers = input.to_vec()?;
            Ok::<_, anyhow::Error>(Array4::from_shape_vec(input.shape(), numbers)?)
        });
        let (q, k, v) = (q?, k?, v?);
        let ones = Array2::ones([problem.batch, problem.kv_heads]);
        let inputs = [q.view(), k.view(), v.view()];
        let descales = [ones.view(), ones.view(), ones.view()];
        let options = attention.host_options(problem)?;
        let rounded = Rounded::of_e4m3_call(Fp8::new(), problem, &options, inputs, descales);
        Ok(Expected::of_rounded::<T>(problem, options, &rounded, rows))
    }
}

/// Numbers rounded to e4m3, in place, too.
fn rounded<T: Element>(numbers: &mut [T]) -> Vec<F8E4M3> {
    let round = |x: &mut T| {
        let rounded = F8E4M3::from_f32(x.to_f32());
        *x = T::from_f32(rounded.to_f32());
        rounded
    };
    numbers.iter_mut().map(round).collect()
}
