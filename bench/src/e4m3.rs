//! Inputs that are e4m3 before a call.

use anyhow::Result;
use ferroattn::check::Expected;
use ferroattn::{Attention, Device, Element, F8E4M3, Fp8, Problem, Rounded, Tensor};
use ndarray::{Array2, Array4};

/// q, k and v of e4m3 on a device.
pub struct E4m3Inputs {
    pub q: Tensor<F8E4M3>,
    pub k: Tensor<F8E4M3>,
    pub v: Tensor<F8E4M3>,
}

impl E4m3Inputs {
    /// The numbers of q, k and v, rounded to e4m3 in `host`, too.
    pub fn new<T: Element>(
        device: &Device,
        problem: &Problem,
        host: &mut [Vec<T>; 3],
    ) -> ferroattn::Result<Self> {
        let [q, k, v] = host;
        Ok(E4m3Inputs {
            q: rounded(device, problem.q_shape(), q)?,
            k: rounded(device, problem.k_shape(), k)?,
            v: rounded(device, problem.v_shape(), v)?,
        })
    }

    /// The results of some rows.
    pub fn expected<T: Element>(
        &self,
        problem: &Problem,
        attention: &Attention,
        rows: &[usize],
    ) -> Result<Expected> {
        let [q, k, v] = [&self.q, &self.k, &self.v].map(|input| {
            let numbers = input.to_vec()?;
            Ok::<_, anyhow::Error>(Array4::from_shape_vec(input.shape(), numbers)?)
        });
        let (q, k, v) = (q?, k?, v?);
        let ones = Array2::ones([problem.batch, problem.kv_heads]);
        let inputs = [q.view(), k.view(), v.view()];
        let descales = [ones.view(), ones.view(), ones.view()];
        let rounded = Rounded::of_e4m3(Fp8::new(), problem, inputs, descales);
        let options = attention.host_options(problem)?;
        Ok(Expected::of_rounded::<T>(problem, options, &rounded, rows))
    }
}

/// Numbers rounded to e4m3, in place, too.
fn rounded<T: Element>(
    device: &Device,
    shape: [usize; 4],
    numbers: &mut [T],
) -> ferroattn::Result<Tensor<F8E4M3>> {
    let round = |x: &mut T| {
        let rounded = F8E4M3::from_f32(x.to_f32());
        *x = T::from_f32(rounded.to_f32());
        rounded
    };
    let rounded: Vec<_> = numbers.iter_mut().map(round).collect();
    Tensor::new(device, shape, &rounded)
}
