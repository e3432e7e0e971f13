//! The forward call.

use super::prefix;
use super::problem::Problem;
use crate::attention::Attention;
use crate::device::{Device, Facts, RawStream};
use crate::error::Result;
use crate::options::{RawE4m3Cache, RawOptions};
use crate::plan::Plan;
use crate::run::Allocate;
use crate::tensor::{
    Dtype, Element, RawTensor, Storage, StorageMut, Tensor, TensorBase, expect_device,
};
use crate::workspace::RawWorkspace;
use float8::F8E4M3;

/// Tensors of a forward pass by address, for [`Attention::forward_raw`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RawForward {
    /// Queries, `[batch, heads, seqlen_q, dim]`; like k, v and o, with stride 1 in dim.
    pub q: RawTensor,
    /// Keys, `[batch, kv_heads, seqlen_kv, dim]`, or a [cache](Attention::cache_entries) of any number of entries, or
    /// [pages](Attention::pages) `[pages, kv_heads, page, dim]`.
    pub k: RawTensor,
    /// Values, `[batch, kv_heads, seqlen_kv, dim_v]`, or a cache of as many entries, or as many pages.
    pub v: RawTensor,
    /// Output, `[batch, heads, seqlen_q, dim_v]`.
    pub o: RawTensor,
    /// Row log-sum-exp, `f32[batch, heads, seqlen_q]`, contiguous.
    pub lse: RawTensor<3>,
    /// Tensors of options.
    pub options: RawOptions,
}

impl RawForward {
    /// Row-major tensors at address 0: enough to [plan](Attention::plan) a call whose tensors do not exist yet.
    pub fn row_major(problem: &Problem) -> Self {
        RawForward {
            q: RawTensor::row_major(problem.q_shape()),
            k: RawTensor::row_major(problem.k_shape()),
            v: RawTensor::row_major(problem.v_shape()),
            o: RawTensor::row_major(problem.o_shape()),
            lse: RawTensor::row_major(problem.lse_shape()),
            options: RawOptions::default(),
        }
    }
}

impl Attention<'_> {
    /// The launches of a call on a device with these facts; none on the CPU, which is `None`.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Attention, Class, Dtype, Facts, Problem, RawForward};
    ///
    /// let (q, kv) = ([1, 32, 1, 128], [1, 8, 131_072, 128]);
    /// let problem = Problem::new(q, kv, kv, false, None)?;
    /// let h100 = Facts::emulated(Class::Sm90);
    /// let plan = Attention::new().plan(Some(&h100), Dtype::F16, &RawForward::row_major(&problem))?;
    /// assert_eq!((plan.kernel, plan.splits), ("decode_f16_d128", 49));
    /// assert_eq!(plan.steps.len(), 2, "the kernel, and what combines the splits");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The conditions of [`forward`](Self::forward).
    pub fn plan(&self, facts: Option<&Facts>, dtype: Dtype, args: &RawForward) -> Result<Plan> {
        let (problem, args) = self.checked(args)?;
        facts.map_or(Ok(()), Facts::validate)?;
        self.plan_of(&problem, facts, dtype, &args)
    }

    /// Computes o `[batch, heads, seqlen_q, dim_v]` and lse `[batch, heads, seqlen_q]`, the natural
    /// logarithm of the sum of each row's exponentials, on the device of the inputs.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Attention, Tensor};
    ///
    /// // A query that is orthogonal to both keys weighs them alike.
    /// let q = Tensor::from_vec([1, 1, 1, 2], vec![0.0_f32, 1.0])?;
    /// let k = Tensor::from_vec([1, 1, 2, 2], vec![1.0, 0.0, 3.0, 0.0])?;
    /// let v = Tensor::from_vec([1, 1, 2, 2], vec![2.0, 4.0, 6.0, 8.0])?;
    /// let (o, lse) = Attention::new().forward(&q, &k, &v)?;
    /// assert_eq!(o.to_vec()?, [4.0, 6.0]);
    /// assert!((lse.to_vec()?[0] - 2_f32.ln()).abs() < 1e-6);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Says which argument is wrong, or what the device lacks. A failure while a GPU computes shows
    /// when its results are read.
    pub fn forward<T: Element>(
        &self,
        q: &TensorBase<impl Storage<Item = T>>,
        k: &TensorBase<impl Storage<Item = T>>,
        v: &TensorBase<impl Storage<Item = T>>,
    ) -> Result<(Tensor<T>, Tensor<f32, 3>)> {
        let problem = self.problem(q.shape(), k.shape(), v.shape())?;
        let mut o = Tensor::zeros(&q.device(), problem.o_shape())?;
        let mut lse = Tensor::zeros(&q.device(), problem.lse_shape())?;
        self.forward_into(q, k, v, &mut o, &mut lse)?;
        Ok((o, lse))
    }

    /// Like [`forward`](Self::forward), into tensors of the caller: `o` of any strides that give
    /// every element its own place, with unit stride in dim, and `lse` contiguous.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Attention, Tensor};
    ///
    /// let q = Tensor::from_vec([1, 1, 2, 8], vec![1.0_f32; 16])?;
    /// let mut o = Tensor::zeros(&q.device(), [1, 1, 2, 8])?;
    /// let mut lse = Tensor::zeros(&q.device(), [1, 1, 2])?;
    /// for _step in 0..3 {
    ///     Attention::new().forward_into(&q, &q, &q, &mut o, &mut lse)?;
    /// }
    /// assert_eq!(o.to_vec()?, [1.0; 16]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The conditions of [`forward`](Self::forward).
    pub fn forward_into<T: Element>(
        &self,
        q: &TensorBase<impl Storage<Item = T>>,
        k: &TensorBase<impl Storage<Item = T>>,
        v: &TensorBase<impl Storage<Item = T>>,
        o: &mut TensorBase<impl StorageMut<Item = T>>,
        lse: &mut TensorBase<impl StorageMut<Item = f32>, 3>,
    ) -> Result<()> {
        self.forward_tensors(q, k, v, o, lse, RawOptions::default())
    }

    /// Like [`forward`](Self::forward), with k and v of e4m3: a cache of half as many bytes. Keys and values are its numbers times
    /// [descales](Self::cache_descales), q and o have 16 bits, or 32 on the CPU.
    ///
    /// Rows of k and v are multiples of 16 numbers, up to 256 on a GPU, and start at multiples of 16 bytes. A GPU needs compute
    /// capability 9.0. The kernels are for few rows of q: a tile of 32 rows reads the keys once. Biases, masks, custom scores, prefixes and
    /// [`batch_invariant`](Self::batch_invariant) do not go with such a cache, and there are no gradients.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Attention, F8E4M3, Tensor};
    ///
    /// let q = Tensor::from_vec([1, 1, 1, 16], vec![0.0_f32; 16])?;
    /// let cache = [[1.0; 16], [3.0; 16]].concat();
    /// let cache = cache.into_iter().map(F8E4M3::from_f32).collect();
    /// let cache = Tensor::from_vec([1, 1, 2, 16], cache)?;
    /// let descales = Tensor::from_vec([1, 1], vec![0.5_f32])?;
    /// let attention = Attention::new().cache_descales(&descales, &descales);
    /// let (o, _) = attention.forward_e4m3_cache(&q, &cache, &cache)?;
    /// assert_eq!(o.to_vec()?, [1.0; 16]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The conditions of [`forward`](Self::forward).
    pub fn forward_e4m3_cache<T: Element>(
        &self,
        q: &TensorBase<impl Storage<Item = T>>,
        k: &TensorBase<impl Storage<Item = F8E4M3>>,
        v: &TensorBase<impl Storage<Item = F8E4M3>>,
    ) -> Result<(Tensor<T>, Tensor<f32, 3>)> {
        let problem = self.problem(q.shape(), k.shape(), v.shape())?;
        let mut o = Tensor::zeros(&q.device(), problem.o_shape())?;
        let mut lse = Tensor::zeros(&q.device(), problem.lse_shape())?;
        self.forward_e4m3_cache_into(q, k, v, &mut o, &mut lse)?;
        Ok((o, lse))
    }

    /// Like [`forward_e4m3_cache`](Self::forward_e4m3_cache), into [tensors of the caller](Self::forward_into).
    ///
    /// # Errors
    /// The conditions of [`forward`](Self::forward).
    pub fn forward_e4m3_cache_into<T: Element>(
        &self,
        q: &TensorBase<impl Storage<Item = T>>,
        k: &TensorBase<impl Storage<Item = F8E4M3>>,
        v: &TensorBase<impl Storage<Item = F8E4M3>>,
        o: &mut TensorBase<impl StorageMut<Item = T>>,
        lse: &mut TensorBase<impl StorageMut<Item = f32>, 3>,
    ) -> Result<()> {
        let options = RawOptions {
            e4m3_cache: Some(RawE4m3Cache::default()),
            ..RawOptions::default()
        };
        self.forward_tensors(q, k, v, o, lse, options)
    }

    /// The call on tensors, with q, k and v of the types that `options` say.
    pub(super) fn forward_tensors<T: Element, Q, N>(
        &self,
        q: &TensorBase<impl Storage<Item = Q>>,
        k: &TensorBase<impl Storage<Item = N>>,
        v: &TensorBase<impl Storage<Item = N>>,
        o: &mut TensorBase<impl StorageMut<Item = T>>,
        lse: &mut TensorBase<impl StorageMut<Item = f32>, 3>,
        options: RawOptions,
    ) -> Result<()> {
        let device = q.device();
        expect_device(&device, [("k", k.device()), ("v", v.device())])?;
        expect_device(&device, [("o", o.device()), ("lse", lse.device())])?;
        let stream = self.stream_of(&device)?;
        let args = RawForward {
            q: q.as_raw(),
            k: k.as_raw(),
            v: v.as_raw(),
            o: o.as_raw_mut(),
            lse: lse.as_raw_mut(),
            options,
        };
        // SAFETY: a tensor lies inside its own buffer on the device, and the shapes were compared.
        // No other argument borrows the buffer of o or lse, so they overlap nothing. A buffer that is
        // dropped early is freed by the driver after the device's work. The stream is borrowed.
        unsafe { self.forward_raw(&device, T::DTYPE, &args, stream) }
    }

    /// Like [`forward_into`](Self::forward_into), on memory of any owner and on the caller's stream.
    /// On a CUDA device the call returns before the work is done.
    ///
    /// Where an option is off in `args`, the call's own tensor of it holds, if it has one.
    ///
    /// Copies of inputs and partial results of [splits](Self::splits) lie in memory that is allocated
    /// and freed in the order of the stream. On a device without memory pools a call that needs such
    /// memory allocates it at once, and waits for the stream before it frees it and returns.
    ///
    /// On a CUDA device, addresses and stream belong to its primary context, which the CUDA
    /// runtime, candle, burn and cudarc use; a null stream is the legacy default stream. On the CPU,
    /// addresses are host addresses and the stream is ignored, as it is on the emulator.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Attention, Device, Dtype, Problem, RawForward};
    ///
    /// let (q, kv) = ([1, 1, 1, 8], [1, 1, 2, 8]);
    /// let (queries, keys, values) = ([0.5_f32; 8], [1.0_f32; 16], [2.0_f32; 16]);
    /// let (mut o, mut lse) = ([0.0_f32; 8], [0.0_f32; 1]);
    ///
    /// let mut args = RawForward::row_major(&Problem::new(q, kv, kv, false, None)?);
    /// args.q.address = queries.as_ptr() as u64;
    /// args.k.address = keys.as_ptr() as u64;
    /// args.v.address = values.as_ptr() as u64;
    /// args.o.address = o.as_mut_ptr() as u64;
    /// args.lse.address = lse.as_mut_ptr() as u64;
    /// let (device, stream) = (Device::cpu(), std::ptr::null_mut());
    /// // SAFETY: the arrays have these shapes, and nothing else touches them during the call.
    /// unsafe { Attention::new().forward_raw(&device, Dtype::F32, &args, stream)? };
    /// assert_eq!(o, [2.0; 8]);
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
    /// - q, k, v and o hold elements of `dtype`, or k and v bytes where `args` has a cache of e4m3.
    /// - Until then nothing else writes the inputs, or touches o or lse. The memory from the first
    ///   to the last element of o, and of lse, holds no element of the others.
    /// - `stream` is null or a live stream of the device's primary context.
    pub unsafe fn forward_raw(
        &self,
        device: &Device,
        dtype: Dtype,
        args: &RawForward,
        stream: RawStream,
    ) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe { self.forward_on(device, dtype, args, None, stream) }
    }

    /// Like [`forward_raw`](Self::forward_raw), in memory of the caller: as many bytes as a [plan](Self::plan) for the device
    /// with these arguments says, or more. The CPU needs none.
    ///
    /// Nothing is allocated on the device, once the kernels are [loaded](Device::warm_up).
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Attention, Device, Dtype, Problem, RawForward, RawWorkspace};
    ///
    /// let shape = [1, 1, 1, 8];
    /// let (q, mut o, mut lse) = ([0.5_f32; 8], [0.0_f32; 8], [0.0_f32; 1]);
    /// let mut args = RawForward::row_major(&Problem::new(shape, shape, shape, false, None)?);
    /// for input in [&mut args.q, &mut args.k, &mut args.v] {
    ///     input.address = q.as_ptr() as u64;
    /// }
    /// (args.o.address, args.lse.address) = (o.as_mut_ptr() as u64, lse.as_mut_ptr() as u64);
    /// let (device, attention) = (Device::cpu(), Attention::new());
    /// let plan = attention.plan(device.facts(), Dtype::F32, &args)?;
    /// // Of a GPU, a pool's memory of `plan.workspace_bytes`.
    /// let workspace = RawWorkspace { address: 0, bytes: plan.workspace_bytes };
    /// let stream = std::ptr::null_mut();
    /// // SAFETY: the arrays have this shape, and nothing else touches them during the call.
    /// unsafe { attention.forward_raw_in(&device, Dtype::F32, &args, workspace, stream)? };
    /// assert_eq!(o, q);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The conditions of [`forward_raw`](Self::forward_raw), or says that the workspace is too small or not aligned.
    ///
    /// # Safety
    /// - The conditions of [`forward_raw`](Self::forward_raw).
    /// - The workspace is memory of the device, valid until the work is done, and nothing else touches it until then.
    pub unsafe fn forward_raw_in(
        &self,
        device: &Device,
        dtype: Dtype,
        args: &RawForward,
        workspace: RawWorkspace,
        stream: RawStream,
    ) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe { self.forward_raw_with(device, dtype, args, |_| Ok(workspace), stream) }
    }

    /// Like [`forward_raw_in`](Self::forward_raw_in), in memory that `allocate` gives: the call tells it the bytes, 0 if it needs none, and
    /// asks once. On the CPU it does not ask.
    ///
    /// # Errors
    /// The conditions of [`forward_raw_in`](Self::forward_raw_in), and those of `allocate`.
    ///
    /// # Safety
    /// The conditions of [`forward_raw_in`](Self::forward_raw_in), of the workspace that `allocate` gives.
    pub unsafe fn forward_raw_with(
        &self,
        device: &Device,
        dtype: Dtype,
        args: &RawForward,
        mut allocate: impl FnMut(usize) -> Result<RawWorkspace>,
        stream: RawStream,
    ) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe { self.forward_on(device, dtype, args, Some(&mut allocate), stream) }
    }

    /// # Safety
    /// The conditions of [`forward_raw_in`](Self::forward_raw_in).
    unsafe fn forward_on(
        &self,
        device: &Device,
        dtype: Dtype,
        args: &RawForward,
        workspace: Option<&mut Allocate>,
        stream: RawStream,
    ) -> Result<()> {
        self.tensors.expect_device(device)?;
        let (problem, args) = self.checked(args)?;
        let plan = self.kept_plan(&problem, device, dtype, &args)?;
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
        unsafe { prefix::forward_raw(dtype, &problem, &args) }
    }
}

#[cfg(test)]
mod tests {
    use super::{Attention, RawForward, RawOptions};
    use crate::device::{Class, Device, Facts};
    use crate::error::Error;
    use crate::forward::Problem;
    use crate::tensor::{Dtype, RawTensor, Tensor};
    use half::f16;

    fn tensor<T: bytemuck::Pod, const R: usize>(shape: [usize; R]) -> Tensor<T, R> {
        Tensor::zeros(&Device::cpu(), shape).expect("enough memory")
    }

    /// `[1, 2, 3, 8]` with these strides.
    fn strided(strides: [isize; 4]) -> Tensor<f16> {
        let buffer = tensor::<f16, 1>([1000]).into_buffer();
        Tensor::from_buffer(buffer, 500, [1, 2, 3, 8], strides).expect("inside the buffer")
    }

    fn forward_into(o: &mut Tensor<f16>, lse: &mut Tensor<f32, 3>) -> Result<(), Error> {
        let q = tensor([1, 2, 3, 8]);
        Attention::new().forward_into(&q, &q, &q, o, lse)
    }

    #[test]
    fn a_window_without_later_keys_is_the_causal_mask() {
        let shape = [2, 3, 40, 8];
        let problem = |attention: Attention| attention.problem(shape, shape, shape);
        let causal = problem(Attention::new().causal(true));
        assert_eq!(problem(Attention::new().window(None, 0)), causal);
        assert_eq!(
            problem(Attention::new().causal(true).window(None, 9)),
            causal
        );
        assert_ne!(problem(Attention::new().window(None, 1)), causal);
        let left = problem(Attention::new().causal(true).window(5, None));
        assert_eq!(problem(Attention::new().causal(true).window(5, 0)), left);
    }

    #[test]
    fn outputs_are_checked() {
        let lse = || tensor([1, 2, 3]);
        let refused = |mut o: Tensor<f16>, mut lse| {
            forward_into(&mut o, &mut lse)
                .expect_err("should have been refused")
                .to_string()
        };
        let shape = refused(tensor([1, 2, 4, 8]), lse());
        assert!(shape.contains("o has shape [1, 2, 4, 8]"), "{shape}");
        let shape = refused(tensor([1, 2, 3, 8]), tensor([1, 2, 4]));
        assert!(shape.contains("lse has shape [1, 2, 4]"), "{shape}");
        let stride = refused(strided([0, 24, 8, 2]), lse());
        assert!(stride.contains("o has stride 2 in dim"), "{stride}");
        for overlapping in [[0, 0, 8, 1], [0, 24, 7, 1], [0, 23, 8, 1], [0, -8, 8, 1]] {
            let overlap = refused(strided(overlapping), lse());
            assert!(overlap.contains("o has overlapping strides"), "{overlap}");
        }
        let transposed = tensor([1, 3, 2]).transpose(1, 2).expect("axes");
        let gaps = refused(tensor([1, 2, 3, 8]), transposed);
        assert!(gaps.contains("lse is not contiguous"), "{gaps}");
    }

    #[test]
    fn outputs_may_lie_anyhow() {
        for strides in [
            [0, 24, 8, 1],
            [0, 8, 16, 1],
            [7, -40, 9, 1],
            [0, 100, -8, 1],
        ] {
            forward_into(&mut strided(strides), &mut tensor([1, 2, 3])).expect("valid strides");
        }
    }

    #[test]
    fn inputs_and_options_are_checked() {
        let (q, k) = (tensor::<f16, 4>([1, 2, 3, 8]), tensor([1, 2, 4, 8]));
        let attention = Attention::new();
        let error = attention
            .forward(&q, &k, &q)
            .expect_err("v is shorter than k");
        assert!(
            matches!(error, Error::Shape { argument: "v", .. }),
            "{error}"
        );
        let every_other = strided([0, 48, 16, 2]);
        let error = attention
            .forward(&q, &every_other, &q)
            .expect_err("a stride of 2 in dim");
        assert!(
            matches!(
                error,
                Error::Stride {
                    argument: "k",
                    axis: "dim",
                    stride: 2
                }
            ),
            "{error}"
        );
        let error = attention
            .scale(f32::NAN)
            .forward(&q, &q, &q)
            .expect_err("a scale of NaN");
        assert!(matches!(error, Error::Scale(_)), "{error}");
        let error = Attention::new()
            .kernel("cuda")
            .forward(&q, &q, &q)
            .expect_err("no such kernel");
        assert!(matches!(error, Error::UnknownKernel { .. }), "{error}");
    }

    #[test]
    fn tensors_of_options_are_checked() {
        let q = tensor::<f16, 4>([2, 3, 5, 8]);
        let refused = |attention: Attention| {
            let error = attention.forward(&q, &q, &q).expect_err("refused");
            let message = error.to_string();
            assert!(!message.contains('\n'), "{message}");
            message
        };
        for softcap in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            let message = refused(Attention::new().softcap(softcap));
            assert!(message.starts_with("softcap is "), "{message}");
        }
        let message = refused(Attention::new().alibi(&tensor([2])));
        let allowed = "it must be [heads] or [batch, heads], with the sizes of [2, 3]";
        assert_eq!(message, format!("alibi has shape [2]; {allowed}"));
        let message = refused(Attention::new().alibi(&tensor([1, 2])));
        assert_eq!(message, format!("alibi has shape [1, 2]; {allowed}"));
        let message = refused(Attention::new().alibi(&tensor([3, 3])));
        assert_eq!(message, format!("alibi has shape [3, 3]; {allowed}"));
        let pairs =
            "[batch or 1, heads or 1, seqlen_q or 1, seqlen_kv], with the sizes of [2, 3, 5, 5]";
        for shape in [
            [2, 3, 5, 4],
            [2, 3, 5, 1],
            [1, 2, 1, 5],
            [3, 1, 1, 5],
            [1, 1, 2, 5],
        ] {
            let message = refused(Attention::new().bias(&tensor::<f16, 4>(shape)));
            assert_eq!(
                message,
                format!("bias has shape {shape:?}; it must be {pairs}")
            );
            let message = refused(Attention::new().mask(&tensor::<u8, 4>(shape)));
            assert_eq!(
                message,
                format!("mask has shape {shape:?}; it must be {pairs}")
            );
        }
        let message = refused(Attention::new().mask(&tensor::<u32, 4>([1, 1, 1, 5])));
        assert!(
            message.contains("ceil(seqlen_kv / 32)], with the sizes of [2, 3, 5, 1]"),
            "{message}"
        );
        let columns = tensor::<f32, 4>([1, 1, 5, 5])
            .transpose(2, 3)
            .expect("axes");
        let message = refused(Attention::new().bias(&columns));
        assert!(
            message.starts_with("bias has stride 5 in seqlen_kv"),
            "{message}"
        );
        let words = tensor::<u32, 4>([1, 1, 2, 5])
            .transpose(2, 3)
            .expect("axes");
        let (call, k) = (Attention::new().mask(&words), tensor([2, 3, 40, 8]));
        let error = call.forward(&q, &k, &k).expect_err("refused").to_string();
        let reason = "mask has stride 5 in ceil(seqlen_kv / 32)";
        assert!(error.starts_with(reason), "{error}");
        let message = refused(Attention::new().sinks(&tensor([2])));
        assert!(
            message.starts_with("sinks has shape [2]; it must be [3]"),
            "{message}"
        );
    }

    /// Values that are the first part of keys in memory have a kernel on Hopper; values that only look so have another.
    #[test]
    fn latent_attention_is_known_by_its_memory() {
        let (k, v) = ([2, 1, 100, 576], [2, 1, 100, 512]);
        let problem = Problem::new([2, 16, 4, 576], k, v, true, None).expect("valid");
        let mut args = RawForward::row_major(&problem);
        args.k.address = 1 << 20;
        args.v = RawTensor { shape: v, ..args.k };
        let planned = |attention: Attention, class, args: &RawForward| {
            let facts = Facts::emulated(class);
            let plan = attention.plan(Some(&facts), Dtype::F16, args);
            plan.map(|plan| plan.kernel)
        };
        let named =
            |attention, args: &RawForward| planned(attention, Class::Sm90, args).expect("a kernel");
        let on_hopper = |args: &RawForward| named(Attention::new(), args);
        let (latent, wide) = ("latent_f16_d576", "wide_optional_f16_d512");
        assert_eq!(on_hopper(&args), latent);
        assert_eq!(named(Attention::new().kernel(latent), &args), latent);
        // What a caller says of it counts for nothing.
        let mut said = args;
        said.options.values_in_keys = true;
        said.v.address += 2;
        assert_eq!(on_hopper(&said), wide);
        let refused = planned(Attention::new().kernel(latent), Class::Sm90, &said);
        let refused = refused.expect_err("values elsewhere");
        assert!(
            matches!(refused, Error::UnsuitableKernel { .. }),
            "{refused}"
        );
        let mut elsewhere = args;
        elsewhere.v.strides[2] += 8;
        assert_eq!(on_hopper(&elsewhere), wide);
        let mut with_sinks = args;
        with_sinks.options.sinks = Some(RawTensor::row_major([16]));
        assert_eq!(on_hopper(&with_sinks), wide);
        assert_eq!(named(Attention::new().softcap(9.0), &args), wide);
        assert_eq!(named(Attention::new().window(9, None), &args), latent);
        for (page, expected) in [(4, wide), (8, latent), (64, latent)] {
            let mut paged = args;
            for tensor in [&mut paged.k, &mut paged.v] {
                (tensor.shape[0], tensor.shape[2]) = (40, page);
            }
            paged.options.pages = Some(RawTensor::row_major([2, 7]));
            assert_eq!(on_hopper(&paged), expected, "{page}");
        }
        let older = planned(Attention::new(), Class::Sm80, &args).expect("a kernel");
        assert!(older.starts_with("wide_optional"), "{older}");
    }

    #[test]
    fn raw_addresses_are_used_in_place() {
        // One packed [rows, (q, k, v), dim] buffer of 5 rows, and o with its rows reversed.
        let mut packed = vec![f16::ZERO; 5 * 3 * 8];
        for (row, packed) in packed.chunks_mut(24).enumerate() {
            packed[16..].fill(f16::from_f32(row as f32));
        }
        let (mut o, mut lse) = ([f16::NAN; 40], [f32::NAN; 5]);
        let origin = packed.as_ptr().expose_provenance();
        let shape = [1, 1, 5, 8];
        let input = |first: usize| RawTensor {
            address: (origin + first * size_of::<f16>()) as u64,
            shape,
            strides: [0, 0, 24, 1],
        };
        let args = RawForward {
            q: input(0),
            k: input(8),
            v: input(16),
            o: RawTensor {
                address: (&raw mut o[32]).expose_provenance() as u64,
                shape,
                strides: [0, 0, -8, 1],
            },
            lse: RawTensor {
                address: lse.as_mut_ptr().expose_provenance() as u64,
                ..RawTensor::row_major([1, 1, 5])
            },
            options: RawOptions::default(),
        };
        let attention = Attention::new().causal(true);
        let call = |args: &RawForward| {
            // SAFETY: the addresses belong to arrays that live on; o and lse are by themselves.
            unsafe { attention.forward_raw(&Device::cpu(), Dtype::F16, args, std::ptr::null_mut()) }
        };
        call(&args).expect("valid arguments");
        // All visible keys weigh the same: row i is the mean of 0..=i.
        for row in 0..5 {
            let mean = f16::from_f32(row as f32 / 2.0);
            assert_eq!(o[32 - 8 * row..][..8], [mean; 8], "row {row}");
            assert!(
                (lse[row] - (row as f32 + 1.0).ln()).abs() < 1e-6,
                "row {row}"
            );
        }

        let far = RawTensor {
            strides: [0, 0, isize::MAX / 2, 1],
            ..args.q
        };
        let error = call(&RawForward { k: far, ..args }).expect_err("an overflow");
        assert_eq!(error, Error::Overflow("k"));
        let overlapping = RawTensor {
            strides: [0, 0, 7, 1],
            ..args.o
        };
        let overlapping = RawForward {
            o: overlapping,
            ..args
        };
        let error = call(&overlapping).expect_err("an overlap");
        assert!(
            matches!(error, Error::Overlap { argument: "o", .. }),
            "{error}"
        );
    }
}
