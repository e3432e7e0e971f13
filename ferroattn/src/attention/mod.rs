//! The options of an attention call.

mod tensors;

use crate::device::{Device, RawStream, Stream};
use crate::error::{Error, Result};
use crate::forward::{Planner, Problem};
use crate::options::{Fp8, RawSequences, TensorOptions, Window, read_pages};
use crate::tensor::{expect_device, expect_shape};
use std::ptr::null_mut;
use std::sync::Arc;

/// Options of scaled dot-product attention, `softmax(scale * Q K^T + mask) V`, and borrowed tensors of some of them.
///
/// q is `[batch, heads, seqlen_q, dim]`, k and v are `[batch, kv_heads, seqlen_kv, dim]`, with
/// `heads` a multiple of `kv_heads` and `dim` from 1 to 1024. v and o may have a `dim_v` of their own. Any
/// strides will do as long as dim has stride 1. A GPU works in place on inputs whose rows all start at multiples of 16
/// bytes and are multiples of 8 elements; of each other input it first makes a copy that does, which takes memory until the
/// work is done. So it does of outputs whose rows are no multiples of 8 elements.
///
/// ```
/// # fn main() -> ferroattn::Result<()> {
/// use ferroattn::{Attention, Device, Tensor, f16};
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
///
/// Options that borrow a tensor leave these as they are, so a type has both options and tensors of its own:
///
/// ```
/// # fn main() -> ferroattn::Result<()> {
/// use ferroattn::{Attention, BackwardInputs, Device, Result, Tensor};
///
/// /// A layer that learns its sinks.
/// struct Layer {
///     attention: Attention<'static>,
///     sinks: Tensor<f32, 1>,
/// }
///
/// impl Layer {
///     fn forward(&self, x: &Tensor<f32>) -> Result<(Tensor<f32>, Tensor<f32, 3>)> {
///         self.attention.sinks(&self.sinks).forward(x, x, x)
///     }
///
///     fn step(&mut self, inputs: &BackwardInputs<f32>) -> Result<()> {
///         let gradients = self.attention.sinks(&self.sinks).backward_all(inputs)?;
///         let d_sinks = gradients.d_sinks.expect("the call has sinks").to_vec()?;
///         let mut sinks = self.sinks.to_vec()?;
///         sinks.iter_mut().zip(d_sinks).for_each(|(sink, d)| *sink -= 0.1 * d);
///         self.sinks.copy_from_slice(&sinks)
///     }
/// }
///
/// let sinks = Tensor::zeros(&Device::cpu(), [1])?;
/// let mut layer = Layer { attention: Attention::new().causal(true), sinks };
/// let x = Tensor::new(&Device::cpu(), [1, 1, 3, 8], &[0.5; 24])?;
/// let (o, lse) = layer.forward(&x)?;
/// // A loss that wants more of o takes weight off the sink.
/// let less = Tensor::new(&Device::cpu(), [1, 1, 3, 8], &[-1.0; 24])?;
/// layer.step(&BackwardInputs::new(&x, &x, &x, &o, &lse, &less))?;
/// assert!(layer.sinks.to_vec()?[0] < 0.0);
/// assert!(layer.forward(&x)?.0.to_vec()?[0] > o.to_vec()?[0]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Attention<'a> {
    causal: bool,
    window: Window,
    scale: Option<f32>,
    softcap: Option<f32>,
    pub(crate) tensors: TensorOptions<'a>,
    pub(crate) kernel: Wanted,
    pub(crate) splits: u32,
    /// Whether a gradient may be summed in any order.
    pub(crate) any_order: bool,
    /// Where safe calls are queued, if not on the default stream.
    stream: Option<&'a Stream>,
}

/// Which kernel.
#[derive(Clone, Debug, Default)]
pub(crate) enum Wanted {
    #[default]
    Best,
    Named(Arc<str>),
    Planned(Arc<dyn Planner>),
}

impl Wanted {
    /// The name of a kernel of this crate.
    pub fn name(&self) -> Option<&str> {
        match self {
            Wanted::Named(name) => Some(name),
            Wanted::Best | Wanted::Planned(_) => None,
        }
    }
}

impl<'a> Attention<'a> {
    /// No mask, scale `1 / sqrt(dim)`, the best kernel.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether query `i` sees only keys up to `i + seqlen_kv - seqlen_q` (aligned bottom-right).
    /// A query that sees no key gets `o = 0` and `lse = -inf`.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Attention, Tensor};
    ///
    /// let q = Tensor::from_vec([1, 1, 2, 1], vec![0.0_f32; 2])?;
    /// let v = Tensor::from_vec([1, 1, 2, 1], vec![1.0_f32, 5.0])?;
    /// let (o, _) = Attention::new().causal(true).forward(&q, &q, &v)?;
    /// assert_eq!(o.to_vec()?, [1.0, 3.0]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn causal(mut self, causal: bool) -> Self {
        self.causal = causal;
        self
    }

    /// The sliding window: query `i` sees only keys `i + offset - left ..= i + offset + right`, with
    /// `offset = seqlen_kv - seqlen_q`; `None` is no bound on that side. With [`causal`](Self::causal), right is 0.
    /// A query that sees no key gets `o = 0` and `lse = -inf`.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Attention, Device, Tensor};
    ///
    /// let device = Device::cpu();
    /// let q = Tensor::new(&device, [1, 1, 3, 8], &[0.0_f32; 24])?;
    /// let v = Tensor::new(&device, [1, 1, 3, 8], &[[1.0; 8], [2.0; 8], [6.0; 8]].concat())?;
    /// let (o, _) = Attention::new().window(1, None).forward(&q, &q, &v)?;
    /// // Query 2 does not see key 0.
    /// assert_eq!(o.to_vec()?, [[3.0; 8], [3.0; 8], [4.0; 8]].concat());
    /// # Ok(())
    /// # }
    /// ```
    pub fn window(
        mut self,
        left: impl Into<Option<usize>>,
        right: impl Into<Option<usize>>,
    ) -> Self {
        let (left, right) = (left.into(), right.into());
        self.window = Window { left, right };
        self
    }

    /// The softmax scale; finite, of any sign. Default: `1 / sqrt(dim)`. From 65536 in size on, kernels with options serve the call.
    pub fn scale(mut self, scale: f32) -> Self {
        self.scale = Some(scale);
        self
    }

    /// A bound of scores: a score becomes `softcap * tanh(score / softcap)`; finite and above 0. Default: none.
    pub fn softcap(mut self, softcap: f32) -> Self {
        self.softcap = Some(softcap);
        self
    }

    /// The kernel to use, by a name from [`kernel::suitable`](crate::kernel::suitable). Default: the best one.
    pub fn kernel(mut self, name: impl AsRef<str>) -> Self {
        self.kernel = Wanted::Named(name.as_ref().into());
        self
    }

    /// Kernels of another crate to use.
    #[doc(hidden)]
    pub fn planner(mut self, planner: impl Planner + 'static) -> Self {
        self.kernel = Wanted::Planned(Arc::new(planner));
        self
    }

    /// Into how many splits the keys of each query are divided, for as many blocks of a GPU to work
    /// on at once; no more than there are blocks of keys. Default: 0, as many as fill the GPU. The
    /// CPU does not split.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Attention, Class, Dtype, Facts, Problem, RawForward};
    ///
    /// let (q, kv) = ([1, 1, 1, 64], [1, 1, 5000, 64]);
    /// let args = RawForward::row_major(&Problem::new(q, kv, kv, false, None)?);
    /// let facts = Facts::emulated(Class::Sm90);
    /// let plan = Attention::new().splits(2).plan(Some(&facts), Dtype::Bf16, &args)?;
    /// assert_eq!(plan.splits, 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn splits(mut self, splits: u32) -> Self {
        self.splits = splits;
        self
    }

    /// Keys of a split, rounded up to a multiple of a kernel's step: in place of a number of [`splits`](Self::splits). Sequences of
    /// every length are then divided at equal keys. Default: 0, off. The CPU does not split.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Attention, Class, Dtype, Facts, Problem, RawForward};
    ///
    /// let (q, kv) = ([1, 1, 1, 64], [1, 1, 5000, 64]);
    /// let args = RawForward::row_major(&Problem::new(q, kv, kv, false, None)?);
    /// let facts = Facts::emulated(Class::Sm90);
    /// let plan = Attention::new().split_keys(2048).plan(Some(&facts), Dtype::Bf16, &args)?;
    /// assert_eq!(plan.splits, 3);
    /// # Ok(())
    /// # }
    /// ```
    pub fn split_keys(mut self, keys: u32) -> Self {
        self.tensors.split_keys = keys;
        self
    }

    /// Whether the results of a query have the same bits in every call on a device with these options, head dims and
    /// [`split_keys`](Self::split_keys): beside any neighbours in the batch, and however its sequence is cut into chunks of
    /// queries, each with all keys up to its last one. So have gradients beside any neighbours. Default: false.
    ///
    /// One kernel then serves all numbers of queries, a block takes all keys of a query, or parts of so many, and maxima follow
    /// every block of keys. `docs/serving.md` has what that costs.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Attention, Device, Tensor};
    ///
    /// let all = Tensor::from_vec([1, 1, 4, 2], vec![0.1_f32, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8])?;
    /// let attention = Attention::new().causal(true).batch_invariant(true);
    /// let (whole, _) = attention.forward(&all, &all, &all)?;
    ///
    /// let last = Tensor::from_vec([1, 1, 1, 2], vec![0.7_f32, 0.8])?;
    /// let (step, _) = attention.forward(&last, &all, &all)?;
    /// assert_eq!(step.to_vec()?, whole.to_vec()?[6..]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn batch_invariant(mut self, invariant: bool) -> Self {
        self.tensors.batch_invariant = invariant;
        self
    }

    /// Products of FP8: kernels round q, k and v to e4m3, which tensor cores multiply at twice the rate of 16 bits. Default: off.
    /// [`Fp8`] says how they are rounded, `docs/fp8.md` what that costs and which calls gain.
    ///
    /// A GPU needs compute capability 9.0; head dims go up to 256. There are no gradients and no splits. Of the options
    /// [`window`](Self::window), [`softcap`](Self::softcap), [`sinks`](Self::sinks), [`packed`](Self::packed), [`padded`](Self::padded) and
    /// [`first_keys`](Self::first_keys) go with it.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Attention, Class, Dtype, Facts, Fp8, Problem, RawForward};
    ///
    /// let shape = [1, 16, 16_384, 128];
    /// let args = RawForward::row_major(&Problem::new(shape, shape, shape, false, None)?);
    /// let h100 = Facts::emulated(Class::Sm90);
    /// let plan = Attention::new().fp8(Fp8::new()).plan(Some(&h100), Dtype::Bf16, &args)?;
    /// assert_eq!(plan.kernel, "fp8_bf16_d128");
    /// assert_eq!(plan.steps.len(), 4, "k, moments of v, v, and attention, which rounds q");
    /// # Ok(())
    /// # }
    /// ```
    pub fn fp8(mut self, fp8: impl Into<Option<Fp8>>) -> Self {
        self.tensors.fp8 = fp8.into();
        self
    }

    /// Whether [`backward`](Self::backward) gives the same bits in every run on a device. Default: true; false may
    /// be faster on a GPU, where sums of dq, and of the gradient of a bias over axes that repeat, then have any order. The CPU is
    /// always deterministic.
    pub fn deterministic(mut self, deterministic: bool) -> Self {
        self.any_order = !deterministic;
        self
    }

    /// The stream on which safe calls are queued. Default: the device's default stream. Raw calls are on the one that they are given.
    ///
    /// ```
    /// # fn main() -> ferroattn::Result<()> {
    /// use ferroattn::{Attention, Device, Tensor};
    ///
    /// let device = Device::cuda(0).unwrap_or(Device::cpu());
    /// let stream = device.stream()?;
    /// let q = Tensor::new(&device, [1, 1, 1, 8], &[ferroattn::f16::ONE; 8])?;
    /// let (o, _) = Attention::new().on(&stream).forward(&q, &q, &q)?;
    /// stream.synchronize()?;
    /// assert_eq!(o.to_vec()?, [ferroattn::f16::ONE; 8]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn on<'b>(&self, stream: &'b Stream) -> Attention<'b>
    where
        'a: 'b,
    {
        self.with(|call| call.stream = Some(stream))
    }

    /// These options with another one, that borrows for a shorter time.
    pub(crate) fn with<'b>(&self, set: impl FnOnce(&mut Attention<'b>)) -> Attention<'b>
    where
        'a: 'b,
    {
        let mut call: Attention<'b> = self.clone();
        set(&mut call);
        call
    }

    /// Where safe calls on tensors of this device are queued.
    ///
    /// # Errors
    /// If the stream is of another device.
    pub(crate) fn stream_of(&self, device: &Device) -> Result<RawStream> {
        let Some(stream) = self.stream else {
            return Ok(null_mut());
        };
        expect_device(device, [("stream", stream.device().clone())])?;
        Ok(stream.raw())
    }

    /// The problem that q, k and v of these shapes pose with these options. Of a [cache](Self::cache_entries) it has the entries
    /// that a call reads, one for each entry of the batch; of [pages](Self::pages) as many keys as an entry's pages hold.
    ///
    /// # Errors
    /// Says which argument is wrong.
    pub fn problem(&self, q: [usize; 4], k: [usize; 4], v: [usize; 4]) -> Result<Problem> {
        let has_cache = self.tensors.cache_entries.is_some();
        let pages = self.tensors.pages.as_ref().map(|pages| pages.shape());
        let [k, v] = read_shapes(q, k, v, has_cache, pages, self.key_entries(None))?;
        self.problem_of_entries(q, k, v)
    }

    /// How many entries of keys one entry of q has in a call with these sequences, or else with its own.
    pub(crate) fn key_entries(&self, sequences: Option<RawSequences>) -> usize {
        let own = self.tensors.sequences.as_ref();
        let own = own.map(|own| own.map(|numbers| numbers.raw));
        let sequences = sequences.or(own);
        sequences.map_or(1, |sequences| sequences.key_entries())
    }

    /// The problem, on as many entries of k and v as q has.
    pub(crate) fn problem_of_entries(
        &self,
        q: [usize; 4],
        k: [usize; 4],
        v: [usize; 4],
    ) -> Result<Problem> {
        // A window that ends at a query's own place is the causal mask, whose kernels have no options.
        let causal = self.causal || self.window == Window::CAUSAL;
        let mut window = self.window;
        window.right = window.right.filter(|_| !causal);
        let problem = Problem {
            window,
            softcap: self.softcap,
            ..Problem::new(q, k, v, causal, self.scale)?
        };
        problem.validate()?;
        Ok(problem)
    }
}

/// The shapes of what a call reads of k and v, an entry for each entry of the batch: of tensors that have these, of a cache, or of
/// the pages of a table, of `key_entries` of its rows for each entry.
///
/// # Errors
/// If k and v have different numbers of entries or pages, or none, or pages have no power of 2 of keys.
pub(crate) fn read_shapes(
    q: [usize; 4],
    k: [usize; 4],
    v: [usize; 4],
    has_cache: bool,
    pages: Option<[usize; 2]>,
    key_entries: usize,
) -> Result<[[usize; 4]; 2]> {
    if !has_cache && pages.is_none() {
        return Ok([k, v]);
    }
    let [[entries, kv_heads, keys, dim], [_, .., dim_v]] = [k, v];
    expect_shape("v", &[entries, kv_heads, keys, dim_v], &v)?;
    let batch = q[0];
    if entries == 0 && batch > 0 {
        return Err(Error::Zero("the number of entries of k"));
    }
    let of_table = |[_, most]: [usize; 2]| read_pages(keys, most.saturating_mul(key_entries));
    let seqlen_kv = pages.map_or(Ok(keys), of_table)?;
    Ok([dim, dim_v].map(|dim| [batch, kv_heads, seqlen_kv, dim]))
}
