//! All gradients of a call, of its inputs and of its options' tensors.

use super::{BackwardInputs, RawBackward};
use crate::attention::Attention;
use crate::error::Result;
use crate::options::{Borrowed, RawOptions};
use crate::tensor::{Element, StorageMut, Tensor, TensorBase, TensorViewMut, expect_device};

/// The gradients of a call's inputs.
#[derive(Debug)]
#[non_exhaustive]
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

impl<T: Element> Gradients<T> {
    /// Tensors for the gradients of q, k and v alone.
    pub fn new(dq: Tensor<T>, dk: Tensor<T>, dv: Tensor<T>) -> Self {
        Gradients {
            dq,
            dk,
            dv,
            d_sinks: None,
            d_bias: None,
        }
    }

    /// All tensors, borrowed to write.
    pub fn view_mut(&mut self) -> GradientsMut<'_, T> {
        GradientsMut {
            dq: self.dq.view_mut(),
            dk: self.dk.view_mut(),
            dv: self.dv.view_mut(),
            d_sinks: self.d_sinks.as_mut().map(Tensor::view_mut),
            d_bias: self.d_bias.as_mut().map(Tensor::view_mut),
        }
    }
}

/// Where gradients go: dq, dk and dv of any strides that give every element its own place, with stride 1 in dim.
/// Gradients of options that are `None` are not computed.
#[derive(Debug)]
#[non_exhaustive]
pub struct GradientsMut<'a, T> {
    /// Gradient of q, `[batch, heads, seqlen_q, dim]`.
    pub dq: TensorViewMut<'a, T>,
    /// Gradient of k, `[batch, kv_heads, seqlen_kv, dim]`.
    pub dk: TensorViewMut<'a, T>,
    /// Gradient of v, `[batch, kv_heads, seqlen_kv, dim_v]`.
    pub dv: TensorViewMut<'a, T>,
    /// Gradient of [sinks](Attention::sinks), `[heads]`.
    pub d_sinks: Option<TensorViewMut<'a, f32, 1>>,
    /// Gradient of the [bias](Attention::bias), `[batch or 1, heads or 1, seqlen_q or 1, seqlen_kv]` with stride 1 in
    /// `seqlen_kv`: summed over its axes of extent 1.
    pub d_bias: Option<TensorViewMut<'a, f32>>,
}

impl<'a, T: Element> GradientsMut<'a, T> {
    /// Places for the gradients of q, k and v alone.
    pub fn new(
        dq: &'a mut TensorBase<impl StorageMut<Item = T>>,
        dk: &'a mut TensorBase<impl StorageMut<Item = T>>,
        dv: &'a mut TensorBase<impl StorageMut<Item = T>>,
    ) -> Self {
        GradientsMut {
            dq: dq.view_mut(),
            dk: dk.view_mut(),
            dv: dv.view_mut(),
            d_sinks: None,
            d_bias: None,
        }
    }

    /// With a place for the gradient of sinks.
    #[must_use]
    pub fn d_sinks(mut self, d_sinks: &'a mut TensorBase<impl StorageMut<Item = f32>, 1>) -> Self {
        self.d_sinks = Some(d_sinks.view_mut());
        self
    }

    /// With a place for the gradient of the bias.
    #[must_use]
    pub fn d_bias(mut self, d_bias: &'a mut TensorBase<impl StorageMut<Item = f32>>) -> Self {
        self.d_bias = Some(d_bias.view_mut());
        self
    }
}

impl Attention<'_> {
    /// Like [`backward`](Self::backward), with the gradients of the options' tensors.
    ///
    /// The gradient of a head's sink is `-sum(exp(sink - lse) delta)` over its rows with a finite lse. The gradient of
    /// the bias is dS.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Attention, BackwardInputs, Device, Tensor};
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
    /// let inputs = BackwardInputs::new(&q, &q, &v, &o, &lse, &d_o);
    /// let gradients = attention.backward_all(&inputs)?;
    /// // Weight that moves to the sink takes value from o: delta is 16.
    /// assert_eq!(gradients.d_sinks.expect("there are sinks").to_vec()?, [-8.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The conditions of [`backward`](Self::backward).
    pub fn backward_all<T: Element>(&self, inputs: &BackwardInputs<T>) -> Result<Gradients<T>> {
        let BackwardInputs { q, k, v, .. } = inputs;
        let (problem, device) = (self.problem(q.shape(), k.shape(), v.shape())?, q.device());
        let sinks = self.tensors.sinks.as_ref().map(Borrowed::shape);
        let d_sinks = sinks.map(|shape| Tensor::zeros(&device, shape));
        let bias = self.tensors.bias.as_ref().map(|(_, bias)| bias.shape());
        let d_bias = bias.map(|shape| Tensor::zeros(&device, shape));
        let mut gradients = Gradients {
            dq: Tensor::zeros(&device, problem.q_shape())?,
            dk: Tensor::zeros(&device, problem.k_shape())?,
            dv: Tensor::zeros(&device, problem.v_shape())?,
            d_sinks: d_sinks.transpose()?,
            d_bias: d_bias.transpose()?,
        };
        self.backward_into(inputs, gradients.view_mut())?;
        Ok(gradients)
    }

    /// Like [`backward_all`](Self::backward_all), into tensors of the caller, which may be parts of one.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Attention, BackwardInputs, Gradients, GradientsMut, Tensor};
    ///
    /// let q = Tensor::from_vec([1, 1, 2, 8], vec![0.0_f32; 16])?;
    /// let v = Tensor::from_vec([1, 1, 2, 8], [[2.0; 8], [6.0; 8]].concat())?;
    /// let attention = Attention::new();
    /// let (o, lse) = attention.forward(&q, &q, &v)?;
    /// let inputs = BackwardInputs::new(&q, &q, &v, &o, &lse, &v);
    ///
    /// // Tensors of the first step serve all steps.
    /// let mut kept: Gradients<f32> = attention.backward_all(&inputs)?;
    /// attention.backward_into(&inputs, kept.view_mut())?;
    /// assert_eq!(kept.dv.to_vec()?, [4.0; 16]);
    ///
    /// // dq, dk and dv behind one another.
    /// let mut packed = Tensor::zeros(&q.device(), [1, 3, 2, 8])?;
    /// let [mut dq, mut others] = packed.split_mut(1, 1)?;
    /// let [mut dk, mut dv] = others.split_mut(1, 1)?;
    /// attention.backward_into(&inputs, GradientsMut::new(&mut dq, &mut dk, &mut dv))?;
    /// assert_eq!(packed.to_vec()?[32..], [4.0; 16]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The conditions of [`backward`](Self::backward), or says that the call lacks the option of a gradient.
    pub fn backward_into<T: Element>(
        &self,
        inputs: &BackwardInputs<T>,
        gradients: GradientsMut<T>,
    ) -> Result<()> {
        let &BackwardInputs {
            q,
            k,
            v,
            o,
            lse,
            d_o,
            d_lse,
        } = inputs;
        let GradientsMut {
            mut dq,
            mut dk,
            mut dv,
            d_sinks,
            d_bias,
        } = gradients;
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

#[cfg(test)]
mod tests {
    use crate::error::{Error, Result};
    use crate::{Attention, BackwardInputs, Device, Gradients, GradientsMut, Tensor, random};

    /// q, which is k and v, too; o, lse and gradients of both; sinks and bias.
    struct Call {
        q: Tensor<f32>,
        d_o: Tensor<f32>,
        d_lse: Tensor<f32, 3>,
        sinks: Tensor<f32, 1>,
        bias: Tensor<f32>,
    }

    impl Call {
        fn new() -> Self {
            let (cpu, shape) = (Device::cpu(), [1, 2, 4, 8]);
            let problem = Attention::new().problem(shape, shape, shape);
            let [q, d_o, bias] = random::inputs::<f32>(&problem.expect("valid"), 7);
            let tensor = |data: &[f32]| Tensor::new(&cpu, shape, data).expect("valid");
            Call {
                q: tensor(&q),
                d_o: tensor(&d_o),
                d_lse: Tensor::new(&cpu, [1, 2, 4], &d_o[..8]).expect("valid"),
                sinks: Tensor::new(&cpu, [2], &[0.5, -1.0]).expect("valid"),
                bias: Tensor::new(&cpu, [1, 2, 4, 4], &bias[..32]).expect("valid"),
            }
        }

        fn attention(&self) -> Attention<'_> {
            Attention::new().sinks(&self.sinks).bias(&self.bias)
        }

        /// Gives the inputs and all gradients, which new tensors have.
        fn run<R>(&self, with: impl FnOnce(&BackwardInputs<f32>, Gradients<f32>) -> R) -> R {
            let (q, attention) = (&self.q, self.attention());
            let (o, lse) = attention.forward(q, q, q).expect("valid");
            let inputs = BackwardInputs::new(q, q, q, &o, &lse, &self.d_o).d_lse(&self.d_lse);
            let new = attention.backward_all(&inputs).expect("valid");
            with(&inputs, new)
        }
    }

    fn bits<const R: usize>(tensor: &Tensor<f32, R>) -> Vec<u32> {
        let numbers = tensor.to_vec().expect("on the CPU");
        numbers.into_iter().map(f32::to_bits).collect()
    }

    fn bits_of_all(gradients: &Gradients<f32>) -> Vec<Vec<u32>> {
        let inputs = [&gradients.dq, &gradients.dk, &gradients.dv].map(bits);
        let sinks = gradients.d_sinks.iter().map(bits);
        let bias = gradients.d_bias.iter().map(bits);
        inputs.into_iter().chain(sinks).chain(bias).collect()
    }

    #[test]
    fn kept_gradients_are_written_again() -> Result<()> {
        let call = Call::new();
        call.run(|inputs, new| {
            let expected = bits_of_all(&new);
            assert_eq!(expected.len(), 5);
            let mut kept = new;
            let nan = [f32::NAN; 64];
            for tensor in [&mut kept.dq, &mut kept.dk, &mut kept.dv] {
                tensor.copy_from_slice(&nan)?;
            }
            let d_sinks = kept.d_sinks.as_mut().expect("of the sinks");
            d_sinks.copy_from_slice(&nan[..2])?;
            let d_bias = kept.d_bias.as_mut().expect("of the bias");
            d_bias.copy_from_slice(&nan[..32])?;
            call.attention().backward_into(inputs, kept.view_mut())?;
            assert_eq!(bits_of_all(&kept), expected);
            Ok(())
        })
    }

    #[test]
    fn gradients_may_be_parts_of_one_tensor() -> Result<()> {
        let call = Call::new();
        call.run(|inputs, new| {
            let mut packed = Tensor::zeros(&Device::cpu(), [3, 2, 4, 8])?;
            let [mut dq, mut others] = packed.split_mut(0, 1)?;
            let [mut dk, mut dv] = others.split_mut(0, 1)?;
            let (mut d_sinks, mut d_bias) = ([f32::NAN; 2], [f32::NAN; 32]);
            let mut of_sinks = Tensor::from_slice_mut([2], &mut d_sinks)?;
            let mut of_bias = Tensor::from_slice_mut([1, 2, 4, 4], &mut d_bias)?;
            let gradients = GradientsMut::new(&mut dq, &mut dk, &mut dv)
                .d_sinks(&mut of_sinks)
                .d_bias(&mut of_bias);
            call.attention().backward_into(inputs, gradients)?;
            let expected = bits_of_all(&new);
            assert_eq!(bits(&packed), expected[..3].concat());
            assert_eq!(d_sinks.map(f32::to_bits)[..], expected[3]);
            assert_eq!(d_bias.map(f32::to_bits)[..], expected[4]);
            Ok(())
        })
    }

    #[test]
    fn gradients_of_options_are_asked_for() -> Result<()> {
        let call = Call::new();
        call.run(|inputs, mut new| {
            let plain = Attention::new();
            let refused = plain.backward_into(inputs, new.view_mut());
            assert_eq!(refused, Err(Error::NoGradient("sinks")));
            new.d_sinks = None;
            let refused = plain.backward_into(inputs, new.view_mut());
            assert_eq!(refused, Err(Error::NoGradient("bias")));
            // They are not computed where none is wanted.
            let mut wanted = Gradients::new(new.dq, new.dk, new.dv);
            call.attention().backward_into(inputs, wanted.view_mut())?;
            assert!(wanted.d_sinks.is_none() && wanted.d_bias.is_none());
            Ok(())
        })
    }

    #[test]
    fn the_gradient_of_lse_counts() -> Result<()> {
        let call = Call::new();
        call.run(|inputs, new| {
            let mut without = *inputs;
            without.d_lse = None;
            let other = call.attention().backward_all(&without)?;
            assert_ne!(bits(&other.dq), bits(&new.dq));
            let zeros = Tensor::zeros(&Device::cpu(), [1, 2, 4])?;
            let same = call.attention().backward_all(&without.d_lse(&zeros))?;
            assert_eq!(bits(&same.dq), bits(&other.dq));
            let short = Tensor::zeros(&Device::cpu(), [1, 2, 3])?;
            let refused = call.attention().backward_all(&without.d_lse(&short));
            let is_named = matches!(
                refused,
                Err(Error::Shape {
                    argument: "d_lse",
                    ..
                })
            );
            assert!(is_named);
            Ok(())
        })
    }
}
