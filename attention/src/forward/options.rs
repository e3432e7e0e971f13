//! The options of an attention call, and the call.

use super::choice;
use super::cpu;
use super::plan::{Planner, plan};
use super::problem::Problem;
use crate::device::{Device, Facts, Stream};
use crate::error::{Error, Result};
use crate::plan::{CPU, Plan};
use crate::tensor::{
    Dtype, Element, Layout, Storage, StorageMut, Strided, StridedMut, Tensor, TensorBase,
    expect_device, expect_shape,
};
use half::{bf16, f16};
use kernels::abi::TensorRef;
use std::sync::Arc;

/// Options of scaled dot-product attention, `softmax(scale * Q K^T + mask) V`.
///
/// q is `[batch, heads, seqlen_q, dim]`, k and v are `[batch, kv_heads, seqlen_kv, dim]`, with
/// `heads` a multiple of `kv_heads` and `dim` a multiple of 8 up to 1024. Any strides will do as long
/// as dim has stride 1. A GPU works in place on inputs whose rows all start at multiples of 16 bytes;
/// of each other input it first makes a copy that does, which takes memory until the work is done.
///
/// ```
/// # fn main() -> attention::Result<()> {
/// use attention::{Attention, Device, Tensor, f16};
///
/// let device = Device::cpu();
/// let [q, k, v] = [1.0, 2.0, 3.0].map(f16::from_f32);
/// let q = Tensor::new(&device, [1, 2, 5, 16], &[q; 160])?;
/// let k = Tensor::new(&device, [1, 1, 7, 16], &[k; 112])?;
/// let v = Tensor::new(&device, [1, 1, 7, 16], &[v; 112])?;
///
/// let (o, lse) = Attention::new().causal(true).forward(&q, &k, &v)?;
///
/// assert_eq!(o.shape(), [1, 2, 5, 16]);
/// assert_eq!(lse.shape(), [1, 2, 5]);
/// assert_eq!(o.to_vec()?[0], f16::from_f32(3.0));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Attention {
    causal: bool,
    scale: Option<f32>,
    kernel: Wanted,
    splits: u32,
}

/// Which kernel.
#[derive(Clone, Debug, Default)]
enum Wanted {
    #[default]
    Best,
    Named(String),
    Planned(Arc<dyn Planner>),
}

/// Tensors of a forward pass by address, for [`Attention::forward_raw`].
///
/// Strides count elements; dim has stride 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RawForward {
    /// Queries, `[batch, heads, seqlen_q, dim]`.
    pub q: TensorRef,
    /// Keys, `[batch, kv_heads, seqlen_kv, dim]`.
    pub k: TensorRef,
    /// Values, `[batch, kv_heads, seqlen_kv, dim]`.
    pub v: TensorRef,
    /// Output, `[batch, heads, seqlen_q, dim]`.
    pub o: TensorRef,
    /// Address of the row log-sum-exp, `f32[batch, heads, seqlen_q]`, contiguous.
    pub lse: u64,
    /// Independent sequences.
    pub batch: usize,
    /// Query heads, a multiple of `kv_heads`.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Queries per head.
    pub seqlen_q: usize,
    /// Keys per head.
    pub seqlen_kv: usize,
    /// Elements of a query, key or value.
    pub dim: usize,
}

impl RawForward {
    /// Row-major tensors at address 0: enough to [plan](Attention::plan) a call whose tensors do not exist yet.
    #[must_use]
    pub fn row_major(problem: &Problem) -> Self {
        let tensor = |[_, heads, rows, dim]: [usize; 4]| {
            // Strides of valid problems fit: their tensors have fewer than 2^63 bytes.
            let [batch_stride, head_stride, row_stride] =
                [heads * rows * dim, rows * dim, dim].map(|stride| stride as i64);
            TensorRef {
                address: 0,
                batch_stride,
                head_stride,
                row_stride,
            }
        };
        let (q, kv) = (tensor(problem.q_shape()), tensor(problem.kv_shape()));
        RawForward {
            q,
            k: kv,
            v: kv,
            o: q,
            lse: 0,
            batch: problem.batch,
            heads: problem.heads,
            kv_heads: problem.kv_heads,
            seqlen_q: problem.seqlen_q,
            seqlen_kv: problem.seqlen_kv,
            dim: problem.dim,
        }
    }
}

impl Attention {
    /// No mask, scale `1 / sqrt(dim)`, the best kernel.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether query `i` sees only keys up to `i + seqlen_kv - seqlen_q` (aligned bottom-right).
    /// A query that sees no key gets `o = 0` and `lse = -inf`.
    #[must_use]
    pub fn causal(mut self, causal: bool) -> Self {
        self.causal = causal;
        self
    }

    /// The softmax scale; finite, of any sign. Default: `1 / sqrt(dim)`.
    #[must_use]
    pub fn scale(mut self, scale: f32) -> Self {
        self.scale = Some(scale);
        self
    }

    /// The kernel to use, by a name from [`kernel::suitable`](crate::kernel::suitable). Default: the best one.
    #[must_use]
    pub fn kernel(mut self, name: impl Into<String>) -> Self {
        self.kernel = Wanted::Named(name.into());
        self
    }

    /// Kernels of another crate to use.
    #[must_use]
    pub fn planner(mut self, planner: impl Planner + 'static) -> Self {
        self.kernel = Wanted::Planned(Arc::new(planner));
        self
    }

    /// Into how many splits the keys of each query are divided, for as many blocks of a GPU to work
    /// on at once; no more than there are blocks of keys. Default: 0, as many as fill the GPU. The
    /// CPU does not split.
    #[must_use]
    pub fn splits(mut self, splits: u32) -> Self {
        self.splits = splits;
        self
    }

    /// What a call launches on a device with these facts; nothing on the CPU, which is `None`.
    ///
    /// ```
    /// # fn main() -> attention::Result<()> {
    /// use attention::{Attention, Class, Dtype, Facts, Problem, RawForward};
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
    /// As [`forward`](Self::forward).
    pub fn plan(&self, facts: Option<&Facts>, dtype: Dtype, args: &RawForward) -> Result<Plan> {
        self.plan_of(&self.checked(args)?, facts, dtype, args)
    }

    /// Computes o `[batch, heads, seqlen_q, dim]` and lse `[batch, heads, seqlen_q]`, the natural
    /// logarithm of the sum of each row's exponentials, on the device of the inputs.
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
        let problem = self.problem([q.shape(), k.shape(), v.shape()])?;
        let mut o = Tensor::zeros(&q.device(), problem.q_shape())?;
        let mut lse = Tensor::zeros(&q.device(), problem.lse_shape())?;
        self.forward_into(q, k, v, &mut o, &mut lse)?;
        Ok((o, lse))
    }

    /// Like [`forward`](Self::forward), into tensors of the caller: `o` of any strides that give
    /// every element its own place, with unit stride in dim, and `lse` contiguous.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn forward_into<T: Element>(
        &self,
        q: &TensorBase<impl Storage<Item = T>>,
        k: &TensorBase<impl Storage<Item = T>>,
        v: &TensorBase<impl Storage<Item = T>>,
        o: &mut TensorBase<impl StorageMut<Item = T>>,
        lse: &mut TensorBase<impl StorageMut<Item = f32>, 3>,
    ) -> Result<()> {
        let problem = self.problem([q.shape(), k.shape(), v.shape()])?;
        let device = q.device();
        for (argument, found) in [
            ("k", k.device()),
            ("v", v.device()),
            ("o", o.device()),
            ("lse", lse.device()),
        ] {
            expect_device(argument, &device, &found)?;
        }
        expect_shape("o", &problem.q_shape(), &o.shape())?;
        expect_shape("lse", &problem.lse_shape(), &lse.shape())?;
        if !lse.is_contiguous() {
            return Err(Error::NotContiguous { argument: "lse" });
        }
        let o_address = o.address_mut();
        let args = RawForward {
            q: q.raw("q", q.address())?,
            k: k.raw("k", k.address())?,
            v: v.raw("v", v.address())?,
            o: o.raw("o", o_address)?,
            lse: lse.address_mut(),
            batch: problem.batch,
            heads: problem.heads,
            kv_heads: problem.kv_heads,
            seqlen_q: problem.seqlen_q,
            seqlen_kv: problem.seqlen_kv,
            dim: problem.dim,
        };
        // SAFETY: a tensor lies inside its own buffer on the device, and the shapes were compared.
        // No other argument borrows the buffer of o or lse, so they overlap nothing. A buffer that is
        // dropped early is freed by the driver after the work on the default stream.
        unsafe { self.forward_raw(&device, T::DTYPE, &args, std::ptr::null_mut()) }
    }

    /// Like [`forward_into`](Self::forward_into), on memory of any owner and on the caller's stream.
    /// On a CUDA device the call returns before the work is done.
    ///
    /// An input is used where it lies if it [is aligned](TensorRef::is_aligned), and else copied, in
    /// the order of the stream, to memory that is freed in that order. The same goes for the partial
    /// results of [splits](Self::splits). On a device without memory pools a call that needs such
    /// memory allocates it at once, and waits for the stream before it frees it and returns.
    ///
    /// On a CUDA device, addresses and stream belong to its primary context, as those of the CUDA
    /// runtime, candle, burn and cudarc do; a null stream is the legacy default stream. On the CPU,
    /// addresses are host addresses and the stream is ignored, as it is on the emulator.
    ///
    /// # Errors
    /// Says which argument is wrong, or what the device lacks.
    ///
    /// # Safety
    /// - Every element of q, k, v, o and lse, by the sizes in `args`, lies in live memory of the
    ///   device, aligned to its type, until the work is done.
    /// - q, k, v and o hold elements of `dtype`.
    /// - Until then nothing else writes q, k or v, or touches o or lse. The memory from the first
    ///   to the last element of o, and of lse, holds no element of the others.
    /// - `stream` is null or a live stream of the device's primary context.
    pub unsafe fn forward_raw(
        &self,
        device: &Device,
        dtype: Dtype,
        args: &RawForward,
        stream: Stream,
    ) -> Result<()> {
        let problem = self.checked(args)?;
        let plan = self.plan_of(&problem, device.facts(), dtype, args)?;
        match dtype {
            // SAFETY: the caller's word; the plan has each kernel's own parameters and grid.
            _ if !device.is_cpu() => unsafe { plan.run(device, stream)? },
            // SAFETY: the caller's word.
            Dtype::F16 => unsafe { forward_cpu::<f16>(&problem, args) },
            // SAFETY: the caller's word.
            Dtype::Bf16 => unsafe { forward_cpu::<bf16>(&problem, args) },
            // SAFETY: the caller's word.
            Dtype::F32 => unsafe { forward_cpu::<f32>(&problem, args) },
        }
        Ok(())
    }

    /// The problem that the tensors pose, if each lies in an address space and o has a place for every element.
    fn checked(&self, args: &RawForward) -> Result<Problem> {
        let shape = |heads, rows| [args.batch, heads, rows, args.dim];
        let q_shape = shape(args.heads, args.seqlen_q);
        let kv_shape = shape(args.kv_heads, args.seqlen_kv);
        let problem = Problem::new(q_shape, kv_shape, kv_shape, self.causal, self.scale)?;
        for (argument, tensor, shape) in [
            ("q", args.q, q_shape),
            ("k", args.k, kv_shape),
            ("v", args.v, kv_shape),
            ("o", args.o, q_shape),
        ] {
            Layout::of_tensor(tensor, shape)
                .span()
                .ok_or(Error::Overflow { argument })?;
        }
        let o = Layout::of_tensor(args.o, q_shape);
        if !o.is_injective() {
            return Err(Error::Overlap {
                argument: "o",
                strides: o.strides.to_vec(),
            });
        }
        Ok(problem)
    }

    fn plan_of(
        &self,
        problem: &Problem,
        facts: Option<&Facts>,
        dtype: Dtype,
        args: &RawForward,
    ) -> Result<Plan> {
        let splits = (self.splits > 0).then_some(self.splits);
        let name = match &self.kernel {
            Wanted::Best => None,
            Wanted::Named(name) => Some(name.as_str()),
            Wanted::Planned(planner) => {
                return planner.plan(facts, dtype.of_kernels()?, problem, args, splits);
            }
        };
        match facts {
            None => {
                name.map_or(Ok(()), |name| choice::resolve_cpu(name, dtype, problem))?;
                Ok(Plan::without_steps(CPU))
            }
            Some(facts) => {
                let kernel = choice::resolve(name, dtype.of_kernels()?, problem, facts)?;
                plan(kernel, problem, facts, args, splits)
            }
        }
    }

    fn problem(&self, [q, k, v]: [[usize; 4]; 3]) -> Result<Problem> {
        Problem::new(q, k, v, self.causal, self.scale)
    }
}

/// # Safety
/// As for [`Attention::forward_raw`] on the CPU, with `T` the element type.
unsafe fn forward_cpu<T: Element>(problem: &Problem, args: &RawForward) {
    // SAFETY: the caller vouches for the memory of each tensor, and that nothing writes the inputs.
    let [q, k, v] = unsafe {
        [
            Strided::<T>::from_raw(args.q, problem.q_shape()),
            Strided::<T>::from_raw(args.k, problem.kv_shape()),
            Strided::<T>::from_raw(args.v, problem.kv_shape()),
        ]
    };
    // SAFETY: the caller vouches for the memory from o's first to last element, and that nothing
    // else touches it.
    let o = unsafe { StridedMut::from_raw(args.o, problem.q_shape()) };
    let lse = std::ptr::with_exposed_provenance_mut(args.lse as usize);
    // SAFETY: as for o; lse is contiguous.
    let lse = unsafe { std::slice::from_raw_parts_mut(lse, problem.lse_shape().iter().product()) };
    cpu::forward(problem, q, k, v, o, lse);
}

#[cfg(test)]
mod tests {
    use super::{Attention, RawForward};
    use crate::device::Device;
    use crate::error::Error;
    use crate::tensor::{Dtype, Tensor};
    use half::f16;
    use kernels::abi::TensorRef;

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
                Error::DimStride {
                    argument: "k",
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
    fn raw_addresses_are_used_in_place() {
        // One packed [rows, (q, k, v), dim] buffer of 5 rows, and o with its rows reversed.
        let mut packed = vec![f16::ZERO; 5 * 3 * 8];
        for (row, packed) in packed.chunks_mut(24).enumerate() {
            packed[16..].fill(f16::from_f32(row as f32));
        }
        let (mut o, mut lse) = ([f16::NAN; 40], [f32::NAN; 5]);
        let origin = packed.as_ptr().expose_provenance();
        let input = |first: usize| TensorRef {
            address: (origin + first * size_of::<f16>()) as u64,
            row_stride: 24,
            ..TensorRef::default()
        };
        let args = RawForward {
            q: input(0),
            k: input(8),
            v: input(16),
            o: TensorRef {
                address: (&raw mut o[32]).expose_provenance() as u64,
                row_stride: -8,
                ..TensorRef::default()
            },
            lse: lse.as_mut_ptr().expose_provenance() as u64,
            batch: 1,
            heads: 1,
            kv_heads: 1,
            seqlen_q: 5,
            seqlen_kv: 5,
            dim: 8,
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

        let far = TensorRef {
            row_stride: i64::MAX / 2,
            ..args.q
        };
        let error = call(&RawForward { k: far, ..args }).expect_err("an overflow");
        assert!(
            matches!(error, Error::Overflow { argument: "k" }),
            "{error}"
        );
        let error = call(&RawForward {
            o: input(0),
            dim: 32,
            ..args
        })
        .expect_err("an overlap");
        assert!(
            matches!(error, Error::Overlap { argument: "o", .. }),
            "{error}"
        );
    }
}
