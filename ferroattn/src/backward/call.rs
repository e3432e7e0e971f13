//! The backward call.

use super::{BackwardInputs, GradientsMut, RawBackward, cpu};
use crate::attention::Attention;
use crate::device::{Device, Facts, RawStream};
use crate::error::Result;
use crate::plan::Plan;
use crate::run::Allocate;
use crate::tensor::{Dtype, Element, Storage, Tensor, TensorBase};
use crate::workspace::RawWorkspace;

impl Attention<'_> {
    /// The launches of a [backward](Self::backward) call on a device with these facts; none on the CPU, which is
    /// `None`.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Attention, Class, Dtype, Facts, Problem, RawBackward};
    ///
    /// let shape = [1, 2, 100, 72];
    /// let args = RawBackward::row_major(&Problem::new(shape, shape, shape, false, None)?);
    /// let a100 = Facts::emulated(Class::Sm80);
    /// let plan = Attention::new().backward_plan(Some(&a100), Dtype::F16, &args)?;
    /// assert_eq!(plan.kernel, "backward_f16_d96");
    /// assert!(plan.workspace_bytes > 0, "sums of dq");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The conditions of [`backward`](Self::backward).
    pub fn backward_plan(
        &self,
        facts: Option<&Facts>,
        dtype: Dtype,
        args: &RawBackward,
    ) -> Result<Plan> {
        let (problem, args) = self.backward_checked(args)?;
        facts.map_or(Ok(()), Facts::validate)?;
        self.backward_plan_of(&problem, facts, dtype, &args)
    }

    /// Computes the gradients of q, k and v, in this order and of these shapes, on the device of the inputs.
    ///
    /// q is `[batch, heads, seqlen_q, dim]`, k is `[batch, kv_heads, seqlen_kv, dim]`, and v is
    /// `[batch, kv_heads, seqlen_kv, dim_v]`; o and lse are what [`forward`](Self::forward) gives for them with the same
    /// options; `d_o` is the gradient of o, `[batch, heads, seqlen_q, dim_v]`.
    ///
    /// With the scores `S` (`scale q k^T` without options), `P = exp(S - lse)`, `dP = d_o v^T`, `delta = rowsum(d_o * o)` and
    /// `dS = P * (dP - delta)`, the gradients are `dq = scale dS k`, `dk = scale dS^T q` and `dv = P^T d_o`; dk and dv
    /// are sums over the query heads that share a key/value head. Pairs that the mask hides have no part in any of
    /// them, whatever q, k, v and `d_o` hold there. Rows with `lse = -inf` have a dq of 0, and with finite q and `d_o` no
    /// part in dk and dv.
    ///
    /// With a [`softcap`](Self::softcap) dq and dk take `dS` times the slope of the bound.
    ///
    /// GPUs compute `dim` and `dim_v` up to 256, in f16 and bf16; the CPU computes all.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Attention, Device, Tensor};
    ///
    /// let device = Device::cpu();
    /// let q = Tensor::new(&device, [1, 1, 1, 8], &[0.0_f32; 8])?;
    /// let k = Tensor::new(&device, [1, 1, 2, 8], &[[1.0; 8], [3.0; 8]].concat())?;
    /// let v = Tensor::new(&device, [1, 1, 2, 8], &[[2.0; 8], [6.0; 8]].concat())?;
    /// let d_o = Tensor::new(&device, [1, 1, 1, 8], &[1.0; 8])?;
    ///
    /// let attention = Attention::new().scale(1.0);
    /// let (o, lse) = attention.forward(&q, &k, &v)?;
    /// let (dq, dk, dv) = attention.backward(&q, &k, &v, &o, &lse, &d_o)?;
    ///
    /// // Both keys weigh 1/2, and moving weight to the second raises the sum of o: dS = [-8, 8].
    /// assert_eq!(dq.to_vec()?, [16.0; 8]);
    /// assert_eq!(dk.to_vec()?, [0.0; 16]);
    /// assert_eq!(dv.to_vec()?, [0.5; 16]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Says which argument is wrong, or what the device lacks: a GPU has no kernel for head dims above 256. A
    /// failure while a GPU computes shows when its results are read.
    pub fn backward<T: Element>(
        &self,
        q: &TensorBase<impl Storage<Item = T>>,
        k: &TensorBase<impl Storage<Item = T>>,
        v: &TensorBase<impl Storage<Item = T>>,
        o: &TensorBase<impl Storage<Item = T>>,
        lse: &TensorBase<impl Storage<Item = f32>, 3>,
        d_o: &TensorBase<impl Storage<Item = T>>,
    ) -> Result<(Tensor<T>, Tensor<T>, Tensor<T>)> {
        let problem = self.problem(q.shape(), k.shape(), v.shape())?;
        let mut dq = Tensor::zeros(&q.device(), problem.q_shape())?;
        let mut dk = Tensor::zeros(&q.device(), problem.k_shape())?;
        let mut dv = Tensor::zeros(&q.device(), problem.v_shape())?;
        let inputs = BackwardInputs::new(q, k, v, o, lse, d_o);
        self.backward_into(&inputs, GradientsMut::new(&mut dq, &mut dk, &mut dv))?;
        Ok((dq, dk, dv))
    }

    /// Like [`backward_into`](Self::backward_into), on memory of any owner and on the caller's stream. On a CUDA
    /// device the call returns before the work is done.
    ///
    /// Options, memory that the kernels share, addresses and the stream are as for [`forward_raw`](Self::forward_raw).
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Attention, Device, Dtype, RawBackward, RawForward, RawOptions, Tensor};
    ///
    /// let device = Device::cpu();
    /// let q = Tensor::new(&device, [1, 1, 1, 8], &[0.0_f32; 8])?;
    /// let k = Tensor::new(&device, [1, 1, 2, 8], &[1.0_f32; 16])?;
    /// let attention = Attention::new();
    /// let (o, lse) = attention.forward(&q, &k, &k)?;
    ///
    /// let forward = RawForward {
    ///     q: q.as_raw(),
    ///     k: k.as_raw(),
    ///     v: k.as_raw(),
    ///     o: o.as_raw(),
    ///     lse: lse.as_raw(),
    ///     options: RawOptions::default(),
    /// };
    /// let mut gradients = Tensor::<f32>::zeros(&device, [1, 1, 5, 8])?;
    /// let mut rows = gradients.as_raw_mut();
    /// let mut next = |shape: [usize; 4]| {
    ///     rows.shape = shape;
    ///     let place = rows;
    ///     rows.address += 4 * shape.iter().product::<usize>() as u64;
    ///     place
    /// };
    /// let places = [next(q.shape()), next(k.shape()), next(k.shape())];
    /// let args = RawBackward::new(&forward, o.as_raw(), places);
    /// // SAFETY: tensors and places are in memory of the device, and nothing else touches them during the call.
    /// unsafe { attention.backward_raw(&device, Dtype::F32, &args, std::ptr::null_mut())? };
    /// assert_eq!(gradients.to_vec()?[24..], [0.5; 16]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Says which argument is wrong, or what the device lacks.
    ///
    /// # Safety
    /// - Every element of the tensors in `args`, by their sizes, and of those that the call borrows, lies in live
    ///   memory of the device, aligned to its type, until the work is done.
    /// - Tensors of four axes hold elements of `dtype`; lse, d_lse, gradients of options and their tensors are what their
    ///   fields say.
    /// - Until then nothing else writes the inputs, or touches a gradient. No element of a gradient is an element of
    ///   another tensor.
    /// - `stream` is null or a live stream of the device's primary context.
    pub unsafe fn backward_raw(
        &self,
        device: &Device,
        dtype: Dtype,
        args: &RawBackward,
        stream: RawStream,
    ) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe { self.backward_on(device, dtype, args, None, stream) }
    }

    /// Like [`backward_raw`](Self::backward_raw), in memory of the caller: as many bytes as a
    /// [plan](Self::backward_plan) for the device with these arguments says, or more. The CPU needs none.
    ///
    /// # Errors
    /// The conditions of [`backward_raw`](Self::backward_raw), or says that the workspace is too small or not aligned.
    ///
    /// # Safety
    /// - The conditions of [`backward_raw`](Self::backward_raw).
    /// - The workspace is memory of the device, valid until the work is done, and nothing else touches it until then.
    pub unsafe fn backward_raw_in(
        &self,
        device: &Device,
        dtype: Dtype,
        args: &RawBackward,
        workspace: RawWorkspace,
        stream: RawStream,
    ) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe { self.backward_raw_with(device, dtype, args, |_| Ok(workspace), stream) }
    }

    /// Like [`backward_raw_in`](Self::backward_raw_in), in memory that `allocate` gives: the call tells it the bytes, 0 if it needs none, and
    /// asks once. On the CPU it does not ask.
    ///
    /// # Errors
    /// The conditions of [`backward_raw_in`](Self::backward_raw_in), and those of `allocate`.
    ///
    /// # Safety
    /// The conditions of [`backward_raw_in`](Self::backward_raw_in), of the workspace that `allocate` gives.
    pub unsafe fn backward_raw_with(
        &self,
        device: &Device,
        dtype: Dtype,
        args: &RawBackward,
        mut allocate: impl FnMut(usize) -> Result<RawWorkspace>,
        stream: RawStream,
    ) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe { self.backward_on(device, dtype, args, Some(&mut allocate), stream) }
    }

    /// # Safety
    /// The conditions of [`backward_raw_in`](Self::backward_raw_in).
    unsafe fn backward_on(
        &self,
        device: &Device,
        dtype: Dtype,
        args: &RawBackward,
        workspace: Option<&mut Allocate>,
        stream: RawStream,
    ) -> Result<()> {
        self.tensors.expect_device(device)?;
        let (problem, args) = self.backward_checked(args)?;
        let plan = self.kept_backward_plan(&problem, device, dtype, &args)?;
        if !device.is_cpu() {
            // SAFETY: the caller's word; the plan has each kernel's own parameters and grid.
            return unsafe {
                let cache = args.k.shape[0];
                args.options
                    .check_lengths(&problem, cache, device, stream)?;
                plan.run_on(device, workspace, stream)
            };
        }
        // SAFETY: the caller's word.
        unsafe { cpu::backward_raw(dtype, &problem, &args) }
    }
}

#[cfg(test)]
mod tests {
    use super::RawBackward;
    use crate::Attention;
    use crate::device::Class;
    use crate::device::{Device, Facts};
    use crate::error::Error;
    use crate::forward::{Planner, Problem};
    use crate::options::RawBias;
    use crate::plan::{CPU, Plan};
    use crate::tensor::{Dtype, RawTensor};

    fn problem(dim: usize) -> Problem {
        let shape = [1, 2, 3, dim];
        Problem::new(shape, shape, shape, false, None).expect("valid")
    }

    /// The error of a call of dim 8 whose tensors `spoil` changed.
    fn refused(spoil: impl FnOnce(&mut RawBackward)) -> Error {
        let mut args = RawBackward::row_major(&problem(8));
        args.d_lse = Some(args.lse);
        spoil(&mut args);
        // SAFETY: the call is refused before it uses any memory.
        let done = unsafe {
            Attention::new().backward_raw(&Device::cpu(), Dtype::F16, &args, std::ptr::null_mut())
        };
        done.expect_err("refused")
    }

    #[test]
    fn gradients_of_options_need_the_options() {
        let error = refused(|args| args.d_sinks = Some(RawTensor::row_major([2])));
        assert_eq!(error, Error::NoGradient("sinks"));
        let d_bias = RawTensor::row_major([1, 2, 1, 3]);
        assert_eq!(
            refused(|args| args.d_bias = Some(d_bias)),
            Error::NoGradient("bias")
        );
        let with_bias = |args: &mut RawBackward, d_bias: RawTensor| {
            let (dtype, tensor) = (Dtype::F16, RawTensor::row_major([1, 2, 3, 3]));
            args.options.bias = Some(RawBias { dtype, tensor });
            args.d_bias = Some(d_bias);
        };
        let error = refused(|args| with_bias(args, RawTensor::row_major([1, 2, 3, 1])));
        assert!(
            error
                .to_string()
                .starts_with("d_bias has shape [1, 2, 3, 1]"),
            "{error}"
        );
        let strides = [0, 0, 3, 1];
        let error = refused(|args| with_bias(args, RawTensor { strides, ..d_bias }));
        assert!(
            matches!(
                error,
                Error::Overlap {
                    argument: "d_bias",
                    ..
                }
            ),
            "{error}"
        );
    }

    #[test]
    fn arguments_are_named() {
        type Tensors = [(&'static str, fn(&mut RawBackward) -> &mut RawTensor); 8];
        const TENSORS: Tensors = [
            ("q", |args| &mut args.q),
            ("k", |args| &mut args.k),
            ("v", |args| &mut args.v),
            ("o", |args| &mut args.o),
            ("d_o", |args| &mut args.d_o),
            ("dq", |args| &mut args.dq),
            ("dk", |args| &mut args.dk),
            ("dv", |args| &mut args.dv),
        ];
        for (name, tensor) in TENSORS {
            let error = refused(|args| tensor(args).strides[3] = 2).to_string();
            assert!(
                error.starts_with(&format!("{name} has stride 2 in dim")),
                "{error}"
            );
            let far = refused(|args| tensor(args).strides[2] = isize::MAX / 2);
            assert_eq!(far, Error::Overflow(name));
            // Another length of q is another problem.
            if name != "q" {
                let error = refused(|args| tensor(args).shape[0] = 5).to_string();
                assert!(error.contains("has shape [5, 2, 3, 8]"), "{error}");
                assert!(error.starts_with(name), "{error}");
            }
        }
        for (name, tensor) in &TENSORS[5..] {
            let error = refused(|args| tensor(args).strides[2] = 7).to_string();
            assert!(
                error.starts_with(&format!("{name} has overlapping strides")),
                "{error}"
            );
        }
        let shape = refused(|args| args.lse.shape[2] = 4).to_string();
        assert!(shape.starts_with("lse has shape [1, 2, 4]"), "{shape}");
        let gaps = refused(|args| args.lse.strides[1] = 4);
        assert_eq!(gaps, Error::NotContiguous("lse"));
        let d_lse = |change: fn(&mut RawTensor<3>)| {
            refused(|args| change(args.d_lse.as_mut().expect("given")))
        };
        let shape = d_lse(|d_lse| d_lse.shape[2] = 4).to_string();
        assert!(shape.starts_with("d_lse has shape [1, 2, 4]"), "{shape}");
        assert_eq!(
            d_lse(|d_lse| d_lse.strides[1] = 4),
            Error::NotContiguous("d_lse")
        );
    }

    #[derive(Debug)]
    struct NoPlan;

    // SAFETY: there is no plan.
    unsafe impl Planner for NoPlan {
        fn plan(
            &self,
            _: Option<&Facts>,
            _: kernels::catalog::Dtype,
            _: &Problem,
            _: &crate::forward::RawForward,
            _: Option<u32>,
        ) -> crate::error::Result<Plan> {
            unreachable!("it plans no backward pass")
        }
    }

    #[test]
    fn plans_say_what_a_device_lacks() {
        let plan = |attention: Attention, facts: Option<&Facts>, dtype, dim| {
            let args = RawBackward::row_major(&problem(dim));
            let plan = attention.backward_plan(facts, dtype, &args);
            plan.map(|plan| (plan.kernel, plan.steps.len()))
        };
        let attention = Attention::new().deterministic(false);
        let on_cpu = plan(attention.clone(), None, Dtype::F32, 512);
        assert_eq!(on_cpu, Ok((CPU, 0)));
        let gpu = Facts::emulated(Class::Sm80);
        let wide = plan(attention.clone(), Some(&gpu), Dtype::F16, 264);
        assert_eq!(wide, Err(Error::NoBackward(264)));
        let narrow = plan(attention.clone(), Some(&gpu), Dtype::F16, 72);
        assert_eq!(narrow, Ok(("backward_f16_d96", 3)));
        let wrong = plan(
            attention.clone().kernel("backward_f16_d32"),
            Some(&gpu),
            Dtype::F16,
            64,
        );
        let message = wrong.expect_err("too narrow").to_string();
        assert_eq!(
            message,
            "kernel backward_f16_d32 is for dims up to 32, not 64"
        );
        let f32 = plan(attention.clone(), Some(&gpu), Dtype::F32, 64);
        assert_eq!(f32, Err(Error::NoKernels(Dtype::F32)));
        let named = plan(
            attention.clone().kernel("forward_f16_d64"),
            None,
            Dtype::F16,
            64,
        );
        assert!(matches!(named, Err(Error::NotOnCpu(_))), "{named:?}");
        let planned = plan(attention.planner(NoPlan), None, Dtype::F16, 64);
        let message = planned.expect_err("no gradients").to_string();
        assert_eq!(message, "kernel of another crate computes no gradients");
    }
}
