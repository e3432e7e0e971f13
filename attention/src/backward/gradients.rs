//! All gradients of a call, of its inputs and of its options' tensors.

use super::RawBackward;
use crate::attention::Attention;
use crate::error::Result;
use crate::options::{Borrowed, RawOptions};
use crate::tensor::{
    Element, Storage, Tensor, TensorBase, TensorView, TensorViewMut, expect_device,
};

/// The gradients of a call's inputs.
#[derive(Debug)]
pub struct Gradients<T> {
    /// Gradient of q, `[batch, heads, seqlen_q, dim]`.
    pub dq: Tensor<T>,
    /// Gradient of k, `[batch, kv_heads, seqlen_kv, dim]`.
    pub dk: Tensor<T>,
    /// Gradient of v, `[batch, kv_heads, seqlen_kv, dim_v]`.
    pub dv: Tensor<T>,
    /// Gradient of [sinks](Attention::sinks), `[heads]`, if the call has them.
    pub d_sinks: Option<Tensor<f32, 1>>,
    /// Gradient of the [bias](Attention::bias), of its shape, if the call has one: summed over its axes of extent 1.
    pub d_bias: Option<Tensor<f32>>,
}

/// Where gradients go.
pub(super) struct Targets<'a, T> {
    /// dq, dk and dv.
    pub inputs: [TensorViewMut<'a, T>; 3],
    pub d_sinks: Option<TensorViewMut<'a, f32, 1>>,
    pub d_bias: Option<TensorViewMut<'a, f32>>,
}

impl Attention<'_> {
    /// Like [`backward`](Self::backward), with the gradients of the options' tensors.
    ///
    /// `d_lse` `[batch, heads, seqlen_q]` is the gradient of lse, as for [`backward_into`](Self::backward_into).
    ///
    /// The gradient of a head's sink is `-sum(exp(sink - lse) delta)` over its rows with a finite lse. The gradient of
    /// the bias is dS.
    ///
    /// ```
    /// # fn main() -> attention::Result<()> {
    /// use attention::{Attention, Device, Tensor};
    ///
    /// let device = Device::cpu();
    /// let q = Tensor::new(&device, [1, 1, 1, 8], &[0.0_f32; 8])?;
    /// let v = Tensor::new(&device, [1, 1, 1, 8], &[4.0; 8])?;
    /// let d_o = Tensor::new(&device, [1, 1, 1, 8], &[1.0; 8])?;
    /// let sinks = Tensor::new(&device, [1], &[0.0])?;
    ///
    /// let attention = Attention::new().sinks(&sinks);
    /// let (o, lse) = attention.forward(&q, &q, &v)?;
    /// assert_eq!(o.to_vec()?, [2.0; 8], "half of the weight is the sink's");
    /// let gradients = attention.backward_all(&q, &q, &v, &o, &lse, &d_o, None)?;
    /// // Weight that moves to the sink takes value from o: delta is 16.
    /// assert_eq!(gradients.d_sinks.expect("there are sinks").to_vec()?, [-8.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The conditions of [`backward`](Self::backward).
    #[expect(clippy::too_many_arguments, reason = "so many tensors take part")]
    pub fn backward_all<T: Element>(
        &self,
        q: &TensorBase<impl Storage<Item = T>>,
        k: &TensorBase<impl Storage<Item = T>>,
        v: &TensorBase<impl Storage<Item = T>>,
        o: &TensorBase<impl Storage<Item = T>>,
        lse: &TensorBase<impl Storage<Item = f32>, 3>,
        d_o: &TensorBase<impl Storage<Item = T>>,
        d_lse: Option<TensorView<'_, f32, 3>>,
    ) -> Result<Gradients<T>> {
        let (problem, device) = (self.problem(q.shape(), k.shape(), v.shape())?, q.device());
        let sinks = self.tensors.sinks.as_ref().map(Borrowed::shape);
        let bias = self.tensors.bias.as_ref().map(|(_, bias)| bias.shape());
        let mut gradients = Gradients {
            dq: Tensor::zeros(&device, problem.q_shape())?,
            dk: Tensor::zeros(&device, problem.k_shape())?,
            dv: Tensor::zeros(&device, problem.v_shape())?,
            d_sinks: sinks
                .map(|shape| Tensor::zeros(&device, shape))
                .transpose()?,
            d_bias: bias
                .map(|shape| Tensor::zeros(&device, shape))
                .transpose()?,
        };
        self.backward_all_into(q, k, v, o, lse, d_o, d_lse, &mut gradients)?;
        Ok(gradients)
    }

    /// Like [`backward_all`](Self::backward_all), into tensors of the caller. Gradients of options that are `None` are
    /// not computed.
    ///
    /// # Errors
    /// The conditions of [`backward`](Self::backward).
    #[expect(clippy::too_many_arguments, reason = "so many tensors take part")]
    pub fn backward_all_into<T: Element>(
        &self,
        q: &TensorBase<impl Storage<Item = T>>,
        k: &TensorBase<impl Storage<Item = T>>,
        v: &TensorBase<impl Storage<Item = T>>,
        o: &TensorBase<impl Storage<Item = T>>,
        lse: &TensorBase<impl Storage<Item = f32>, 3>,
        d_o: &TensorBase<impl Storage<Item = T>>,
        d_lse: Option<TensorView<'_, f32, 3>>,
        gradients: &mut Gradients<T>,
    ) -> Result<()> {
        let Gradients {
            dq,
            dk,
            dv,
            d_sinks,
            d_bias,
        } = gradients;
        let targets = Targets {
            inputs: [dq.view_mut(), dk.view_mut(), dv.view_mut()],
            d_sinks: d_sinks.as_mut().map(Tensor::view_mut),
            d_bias: d_bias.as_mut().map(Tensor::view_mut),
        };
        let inputs = [q.view(), k.view(), v.view(), o.view(), d_o.view()];
        self.backward_to(inputs, lse.view(), d_lse, targets)
    }

    /// Computes the gradients from q, k, v, o and d_o.
    pub(super) fn backward_to<T: Element>(
        &self,
        [q, k, v, o, d_o]: [TensorView<T>; 5],
        lse: TensorView<f32, 3>,
        d_lse: Option<TensorView<f32, 3>>,
        targets: Targets<T>,
    ) -> Result<()> {
        let Targets {
            inputs: [mut dq, mut dk, mut dv],
            d_sinks,
            d_bias,
        } = targets;
        let device = q.device();
        expect_device(&device, [("k", k.device()), ("v", v.device())])?;
        expect_device(&device, [("o", o.device()), ("lse", lse.device())])?;
        expect_device(&device, [("d_o", d_o.device()), ("dq", dq.device())])?;
        expect_device(&device, [("dk", dk.device()), ("dv", dv.device())])?;
        let optional = [
            ("d_lse", d_lse.as_ref().map(TensorBase::device)),
            ("d_sinks", d_sinks.as_ref().map(TensorBase::device)),
            ("d_bias", d_bias.as_ref().map(TensorBase::device)),
        ];
        let given = optional.into_iter();
        expect_device(&device, given.filter_map(|(name, on)| Some((name, on?))))?;
        let stream = self.stream_of(&device)?;
        let args = RawBackward {
            q: q.as_raw(),
            k: k.as_raw(),
            v: v.as_raw(),
            o: o.as_raw(),
            lse: lse.as_raw(),
            d_o: d_o.as_raw(),
            d_lse: d_lse.map(|d_lse| d_lse.as_raw()),
            dq: dq.as_raw_mut(),
            dk: dk.as_raw_mut(),
            dv: dv.as_raw_mut(),
            options: RawOptions::default(),
            d_sinks: d_sinks.map(|mut d_sinks| d_sinks.as_raw_mut()),
            d_bias: d_bias.map(|mut d_bias| d_bias.as_raw_mut()),
        };
        // SAFETY: a tensor lies inside its own buffer on the device, and the shapes were compared. No other
        // argument borrows the buffer of a gradient, so they overlap nothing. A buffer that is dropped early is
        // freed by the driver after the device's work. The stream is borrowed.
        unsafe { self.backward_raw(&device, T::DTYPE, &args, stream) }
    }
}
