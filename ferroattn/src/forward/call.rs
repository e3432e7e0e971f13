//! The forward call.

use super::{RawForward, prefix};
use crate::attention::Attention;
use crate::device::{Device, Facts, RawStream};
use crate::error::Result;
use crate::options::RawOptions;
use crate::plan::Plan;
use crate::run::Allocate;
use crate::tensor::{Dtype, Element, Storage, StorageMut, Tensor, TensorBase, expect_device};
use crate::workspace::RawWorkspace;

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
    /// - q, k, v and o hold elements of `dtype`; but q, k and v, or k and v, hold bytes where the options say that they are e4m3, and o
    ///   f32 where they say so.
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
mod tests;
